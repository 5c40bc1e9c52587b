"""A revision of a service says on how many GPUs its engines may run, and is never rewritten in
that either."""

from alembic import op

revision = "0063"
down_revision = "0062"


def upgrade() -> None:
    for statement in CHANGES:
        op.execute(statement)


CHANGES = (
    "ALTER TABLE service_revisions ADD COLUMN sizes jsonb",
    """
    CREATE OR REPLACE FUNCTION revision_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (NEW.service, NEW.number, NEW.spec, NEW.engine, NEW.model_revision, NEW.sizes,
            NEW.created_at)
           IS DISTINCT FROM
           (OLD.service, OLD.number, OLD.spec, OLD.engine, OLD.model_revision, OLD.sizes,
            OLD.created_at) THEN
            RAISE EXCEPTION 'revision % of service % is never rewritten', OLD.number, OLD.service
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$""",
)
