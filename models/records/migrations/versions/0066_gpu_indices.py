"""A node has at most 1,024 GPUs, with indices below that: a plan takes time and memory that grow
with the highest index, and one written by hand kept all pools from planning.

A GPU with a higher index is removed: no machine has it. Its node has its own again when its agent
registers next.
"""

from alembic import op

revision = "0066"
down_revision = "0065"


def upgrade() -> None:
    op.execute("DELETE FROM gpus WHERE index >= 1024")
    op.execute("ALTER TABLE gpus ADD CONSTRAINT gpus_index_in_bounds CHECK (index < 1024)")
