"""When the agent of a node registered for the first time is on record: a bought machine is idle
since then, or since its last job, whatever its agent does in between.

Workers of the version before insert nodes without it: it is the time of that then.
"""

from alembic import op

revision = "0078"
down_revision = "0077"


def upgrade() -> None:
    # All that this and 0079 lock, in the order in which workers lock their rows: an upgrade is one
    # transaction, and with the nodes first workers would wait for it, and it for them.
    op.execute("LOCK TABLE purchases, orders, nodes")
    op.execute(
        "ALTER TABLE nodes ADD COLUMN came_at timestamptz NOT NULL DEFAULT clock_timestamp()"
    )
    op.execute("UPDATE nodes SET came_at = registered_at")
