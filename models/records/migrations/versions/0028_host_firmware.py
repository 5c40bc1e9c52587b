"""Which firmware of a node's host is in its fingerprint, and which could not be read; nothing is
known of a node until its agent registers again."""

from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.execute("ALTER TABLE nodes ADD COLUMN firmware jsonb")
