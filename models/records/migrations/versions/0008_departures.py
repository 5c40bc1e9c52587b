"""Nodes whose jobs are to leave, apart from nodes that only take no new job."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("ALTER TABLE nodes ADD COLUMN clearing boolean NOT NULL DEFAULT false")
