"""An engine that waits for its turn to load says for whom."""

from alembic import op

revision = "0063"
down_revision = "0061"


def upgrade() -> None:
    op.execute("ALTER TABLE replicas ADD COLUMN waits text NOT NULL DEFAULT ''")
