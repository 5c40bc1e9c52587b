"""What a pool decided last about buying, also where that was to buy nothing."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.execute("ALTER TABLE pools ADD COLUMN buying_decision jsonb")
