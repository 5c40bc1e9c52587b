"""Ranks that join an attempt while it runs, also on a node that the attempt has left."""

from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    """
    ALTER TABLE placements
        ADD COLUMN joined boolean NOT NULL DEFAULT false,
        ADD CONSTRAINT placements_join_after_rank_0 CHECK (NOT joined OR rank > 0 AND NOT spare)
    """,
    "DROP INDEX placements_one_rank_per_node",
    """
    CREATE UNIQUE INDEX placements_one_rank_per_node ON placements (job_id, attempt, node_id)
        WHERE ended_at IS NULL""",
)
