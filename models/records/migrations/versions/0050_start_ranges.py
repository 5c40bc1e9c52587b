"""Between when and when a start was told to come; null where one moment was told."""

from alembic import op

revision = "0050"
down_revision = "0049"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE start_estimates ADD COLUMN earliest timestamptz,"
        " ADD COLUMN latest timestamptz"
    )
