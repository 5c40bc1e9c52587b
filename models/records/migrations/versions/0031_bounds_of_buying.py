"""Bounds of what SQL and the decisions compute with of purchases, orders, blocks, machines and
sales: one value out of the range of a type would end a decision to buy, or a list, for everybody.

What Longshore stores keeps to them; they are for what is written by hand. Of what is stored as
JSON only what SQL reads has bounds: who reads the rest leaves out what it cannot read.
"""

from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    for statement in FUNCTIONS:
        op.execute(statement)
    for table, columns in TIMES.items():
        checks = " AND ".join(f"in_reach({column})" for column in columns)
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_times_in_reach CHECK ({checks})")
    for statement in AMOUNTS:
        op.execute(statement)


FUNCTIONS = (
    # With the ten years of a duration more or less it stays in the calendar.
    """
    CREATE FUNCTION in_reach(at timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT at BETWEEN '1000-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'
    $$""",
    """
    CREATE FUNCTION whole_or_absent(value jsonb, lowest numeric, highest numeric)
    RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE coalesce(jsonb_typeof(value), 'null')
               WHEN 'null' THEN true
               WHEN 'number' THEN scale(value::numeric) = 0
                                  AND value::numeric BETWEEN lowest AND highest
               ELSE false END
    $$""",
    """
    CREATE FUNCTION array_or_absent(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT coalesce(jsonb_typeof(value), 'array') = 'array'
    $$""",
)

TIMES = {
    "block_nodes": ("handed_over_at",),
    "blocks": ("created_at", "starts_at", "ends_at", "ended_at", "decided_at", "tried_at",
               "woken_at"),
    "machines": ("created_at", "asked_at", "started_at", "refused_at", "ended_at"),
    "market_refusals": ("at",),
    "purchase_orders": ("created_at", "sent_at", "starts_at", "ends_at", "closed_at"),
    "purchases": ("created_at", "changed_at", "ended_at"),
    "sales": ("created_at", "starts_at", "ends_at", "sent_at", "closed_at"),
}  # fmt: skip

AMOUNTS = (
    # A window that is followed has both ends: without them no look at it succeeds.
    """
    ALTER TABLE blocks ADD CONSTRAINT blocks_bought_have_their_time
        CHECK (state = 'ENDED' OR purchase_id IS NULL
               OR (starts_at IS NOT NULL AND ends_at IS NOT NULL))""",
    # A thousand million dollars, as of every amount of money, for each GPU of a node.
    """
    ALTER TABLE blocks ADD CONSTRAINT blocks_amounts
        CHECK (nodes <= 10000 AND gpus_per_node <= 10000
               AND price_micro_per_gpu_hour::numeric * gpus_per_node <= 9000000000000000000)""",
    """
    ALTER TABLE purchases
        ADD CONSTRAINT purchases_request_in_bounds
            CHECK (whole_or_absent(request -> 'nodes', 1, 10000)
                   AND array_or_absent(request -> 'options')
                   AND NOT jsonb_path_exists(
                       request, '$.options[*].fast_fabric ? (@.type() != "boolean")')
                   AND NOT jsonb_path_exists(
                       request, '$.options[*].for_gang ? (@.type() != "boolean")')),
        -- Text that is no interval is refused by the cast itself.
        ADD CONSTRAINT purchases_ready_within_ten_years
            CHECK (CAST(request ->> 'ready_within' AS interval)
                   BETWEEN interval '0' AND interval '3653 days'),
        ADD CONSTRAINT purchases_serve_a_list CHECK (array_or_absent(decision -> 'serves'))""",
    """
    ALTER TABLE purchase_orders
        ADD CONSTRAINT purchase_orders_request_in_bounds
            CHECK (whole_or_absent(request -> 'limit', 0, 1000000000000000)
                   AND whole_or_absent(request -> 'nodes', 1, 10000))""",
    """
    ALTER TABLE sales
        ADD CONSTRAINT sales_request_in_bounds
            CHECK (whole_or_absent(request -> 'limit', 0, 1000000000000000))""",
)
