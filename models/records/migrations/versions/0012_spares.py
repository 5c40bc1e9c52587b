"""Spares of a gang: placements that stand by, on nodes where the gang runs nothing.

What the database refuses besides: a rank and a spare of one attempt on one node (the index on
ranks), a spare as rank 0 (check), and a spare that becomes a rank or a rank a spare (trigger):
who takes a place does so in the next attempt.
"""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    """
    ALTER TABLE placements
        ADD COLUMN spare boolean NOT NULL DEFAULT false,
        ADD CONSTRAINT placements_begin_with_a_rank CHECK (rank > 0 OR NOT spare)""",
    """
    CREATE FUNCTION placement_stays_what_it_is() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'a spare of job % takes a place in the next attempt only', NEW.job_id
            USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
    """
    CREATE TRIGGER placement_stays_what_it_is BEFORE UPDATE OF spare ON placements
        FOR EACH ROW WHEN (NEW.spare <> OLD.spare)
        EXECUTE FUNCTION placement_stays_what_it_is()""",
)
