"""The price of a GPU-hour in a pool over time, and which jobs wait for it to fall.

Jobs of an older version wait for no price.
"""

from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE price_series (
            pool text PRIMARY KEY REFERENCES pools (name),
            source text NOT NULL,
            whence text NOT NULL DEFAULT '',
            ends_at timestamptz,
            read_at timestamptz,
            tried_at timestamptz NOT NULL,
            trouble text NOT NULL DEFAULT '',
            CONSTRAINT price_series_read CHECK ((ends_at IS NULL) = (read_at IS NULL))
        )"""
    )
    op.execute(
        """
        CREATE TABLE price_points (
            pool text NOT NULL REFERENCES price_series (pool) ON DELETE CASCADE,
            at timestamptz NOT NULL,
            price bigint NOT NULL CONSTRAINT price_points_not_below_zero CHECK (price >= 0),
            PRIMARY KEY (pool, at)
        )"""
    )
    # `price_since` says something of a row that is held, and nothing of others, as `begin_only`.
    op.execute(
        "ALTER TABLE queue"
        " ADD COLUMN start_below bigint CONSTRAINT queue_start_below_above_zero"
        " CHECK (start_below > 0),"
        " ADD COLUMN price_since timestamptz"
    )
    op.execute("CREATE INDEX queue_waits_for_price ON queue (pool) WHERE price_since IS NOT NULL")
    op.execute("CREATE INDEX queue_start_below ON queue (pool) WHERE start_below IS NOT NULL")
