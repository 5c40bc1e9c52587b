"""Who pays comes before the class: a job gives way to one that a budget pays for before it."""

from alembic import op

revision = "0053"
down_revision = "0052"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE preemptions ADD COLUMN by_payer boolean NOT NULL DEFAULT false,"
        " DROP CONSTRAINT no_higher_class_gives_way"
    )
    op.execute(
        "ALTER TABLE preemptions ADD CONSTRAINT no_higher_class_gives_way"
        " CHECK (by_payer OR priority <= for_priority)"
    )
