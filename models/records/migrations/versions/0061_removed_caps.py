"""A cap that is removed has no envelopes below it any more.

They stayed. A charge that was opened later counted in no removed cap, and was taken off it as it
was closed: the sum of the cap came below zero, which the database refuses, so that neither jobs
could end that an envelope of it paid for nor cycles close their charges.
"""

from alembic import op

revision = "0061"
down_revision = "0060"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    """
    CREATE FUNCTION cap_goes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM funding_cap_members WHERE cap_id = NEW.id;
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER cap_goes AFTER UPDATE OF removed_at ON funding_caps
       FOR EACH ROW WHEN (OLD.removed_at IS NULL AND NEW.removed_at IS NOT NULL)
       EXECUTE FUNCTION cap_goes()""",
    """
    DELETE FROM funding_cap_members
     WHERE cap_id IN (SELECT id FROM funding_caps WHERE removed_at IS NOT NULL)""",
)
