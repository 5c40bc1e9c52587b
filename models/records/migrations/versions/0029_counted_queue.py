"""Indexes of the few jobs of a queue that are held or set aside: lists of pools count them."""

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.execute("CREATE INDEX queue_held ON queue (pool) WHERE held")
    op.execute(
        "CREATE INDEX queue_set_aside ON queue (pool)"
        " WHERE NOT held AND decision->>'kind' = 'SET_ASIDE'"
    )
