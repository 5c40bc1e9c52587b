"""Machines that were stopped on purpose: their nodes are gone, not lost."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("ALTER TABLE machines ADD COLUMN stop_reason text")
