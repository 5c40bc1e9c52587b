"""How often an engine is asked, and since when nobody has: one that is idle leaves for others."""

from alembic import op

revision = "0062"
down_revision = "0061"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE replicas ADD COLUMN idle_since timestamptz, "
        "ADD COLUMN uses bigint NOT NULL DEFAULT 0 "
        "CONSTRAINT uses_are_counted CHECK (uses >= 0)"
    )
