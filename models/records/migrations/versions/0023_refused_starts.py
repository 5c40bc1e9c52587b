"""When a market refused to start a machine last: its paid time may be sold while nobody asks."""

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.execute("ALTER TABLE machines ADD COLUMN refused_at timestamptz")
