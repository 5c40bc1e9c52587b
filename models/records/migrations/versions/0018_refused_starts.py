"""Starts that a market refuses are tried again, and a market that refuses our key is let be.

`started_at` is when a machine's market took its start: its agent is waited for from then on.
`woken_at` is when a block was last told that it has lost its work.
"""

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE machines ADD COLUMN tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),"
        " ADD COLUMN refused text, ADD COLUMN started_at timestamptz"
    )
    op.execute(
        "CREATE TABLE market_refusals (provider text PRIMARY KEY, reason text NOT NULL,"
        " times integer NOT NULL CHECK (times > 0), at timestamptz NOT NULL)"
    )
    op.execute("ALTER TABLE blocks ADD COLUMN woken_at timestamptz")
