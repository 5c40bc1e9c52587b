"""Whose job waits, for the order of a pool that looks at what tenants have had.

A worker of an older version leaves it out: such a job counts as one of a tenant of which nothing
is known.
"""

from alembic import op

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    op.execute("ALTER TABLE queue ADD COLUMN tenant text")
    op.execute("UPDATE queue q SET tenant = j.tenant FROM jobs j WHERE j.id = q.job_id")
