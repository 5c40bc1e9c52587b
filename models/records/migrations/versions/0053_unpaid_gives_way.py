"""A job that no budget pays for gives way to one that a budget pays for, whatever their class."""

from alembic import op

revision = "0053"
down_revision = "0052"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE preemptions ADD COLUMN unpaid boolean NOT NULL DEFAULT false,"
        " DROP CONSTRAINT no_higher_class_gives_way"
    )
    op.execute(
        "ALTER TABLE preemptions ADD CONSTRAINT no_higher_class_gives_way"
        " CHECK (unpaid OR priority <= for_priority)"
    )
