"""Indexes for what each cycle, and each end of a job, asks of what was bought."""

from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.execute("CREATE INDEX nodes_by_block ON nodes (block_id) WHERE block_id IS NOT NULL")
    op.execute("CREATE INDEX blocks_live ON blocks (pool) WHERE state <> 'ENDED'")
    op.execute("CREATE INDEX machines_by_purchase ON machines (purchase_id)")
