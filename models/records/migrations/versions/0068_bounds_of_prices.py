"""Prices over time have the bounds that files have, and the parts of a purchase are numbers by
tenant: a price of 2^63 in a row written by hand, or one at infinity, ended `pools` and `jobs` for
everybody and the cycle of its pool, and parts that were a list the workflow of a block.

`NOT VALID`: what is there already is not looked at, so that no such row keeps from the upgrade.
"""

from alembic import op

revision = "0068"
down_revision = "0067"


def upgrade() -> None:
    # With the ten years of a duration more or less they stay in the calendar.
    reach = "BETWEEN '1000-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'"
    op.execute(
        "ALTER TABLE price_points ADD CONSTRAINT price_points_in_bounds CHECK"
        f" (price <= 1000000000000000 AND at {reach}) NOT VALID"
    )
    op.execute(
        "ALTER TABLE price_series ADD CONSTRAINT price_series_times_in_reach CHECK"
        f" (ends_at {reach} AND read_at {reach} AND tried_at {reach}) NOT VALID"
    )
    op.execute(
        "ALTER TABLE purchases ADD CONSTRAINT purchases_split_in_numbers CHECK"
        " (jsonb_typeof(split) = 'object' AND NOT"
        """ jsonb_path_exists(split, 'strict $.* ? (@.type() != "number" || @ < 0)')) NOT VALID"""
    )
