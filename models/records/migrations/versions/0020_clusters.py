"""A cluster is several machines with one id at their market.

Each of them is a row with a name of its own, which is its node's; `part` tells them apart.
"""

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.execute("ALTER TABLE machines ADD COLUMN part smallint NOT NULL DEFAULT 0")
    op.execute("DROP INDEX machines_at_market")
    op.execute("CREATE UNIQUE INDEX machines_at_market ON machines (provider, machine_id, part)")
