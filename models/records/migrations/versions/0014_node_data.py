"""What data was used lately on which node."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE node_data (
            node_id text NOT NULL REFERENCES nodes (id),
            name text NOT NULL,
            used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (node_id, name)
        )"""
    )
