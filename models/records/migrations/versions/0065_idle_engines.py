"""An engine that nobody asks leaves for a job of any class."""

from alembic import op

revision = "0065"
down_revision = "0064"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE preemptions ADD COLUMN idle boolean NOT NULL DEFAULT false,"
        " DROP CONSTRAINT no_higher_class_gives_way"
    )
    op.execute(
        "ALTER TABLE preemptions ADD CONSTRAINT no_higher_class_gives_way"
        " CHECK (by_payer OR idle OR priority <= for_priority)"
    )
