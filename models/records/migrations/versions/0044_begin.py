"""From when on a job may start that is not to start before, and whether that alone holds it.

Jobs of an older version have no `begin`.
"""

from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN begins_at timestamptz")
    # It says something of a row that is held, and nothing of others: a worker of an older version
    # lets a job in without it.
    op.execute("ALTER TABLE queue ADD COLUMN begin_only boolean NOT NULL DEFAULT false")
