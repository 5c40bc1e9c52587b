"""When the agent of a node registered for the first time is on record: a bought machine is idle
since then, or since its last job, whatever its agent does in between.

Workers of the version before insert nodes without it: it is the time of that then.
"""

from alembic import op

revision = "0078"
down_revision = "0077"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE nodes ADD COLUMN came_at timestamptz NOT NULL DEFAULT clock_timestamp()"
    )
    op.execute("UPDATE nodes SET came_at = registered_at")
