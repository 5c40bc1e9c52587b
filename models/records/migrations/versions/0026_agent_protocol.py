"""The protocol that the agent of a node speaks; 0 until it registers again."""

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.execute("ALTER TABLE nodes ADD COLUMN agent_protocol integer NOT NULL DEFAULT 0")
