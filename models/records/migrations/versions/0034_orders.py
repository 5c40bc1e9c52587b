"""Orders to buy and to sell are one table. What the database refused of either, it refuses still.

The two tables before are views: control workers of the version before read and write through them
until they are upgraded.
"""

from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    for statement in (*TABLE, *SALES, *VIEWS):
        op.execute(statement)


TABLE = (
    "ALTER TABLE purchase_orders RENAME TO orders",
    """
    DO $$
    DECLARE
        old text;
    BEGIN
        FOR old IN SELECT conname FROM pg_constraint
                    WHERE conrelid = 'orders'::regclass AND conname LIKE 'purchase_orders%'
        LOOP
            EXECUTE format('ALTER TABLE orders RENAME CONSTRAINT %I TO %I', old,
                           replace(old, 'purchase_orders', 'orders'));
        END LOOP;
    END $$""",
    "DROP INDEX purchase_orders_at_market",
    "ALTER INDEX purchase_orders_numbers RENAME TO orders_numbers",
    "ALTER INDEX purchase_orders_refused RENAME TO orders_refused",
    """
    ALTER TABLE orders
        ADD COLUMN side text NOT NULL DEFAULT 'buy',
        ADD COLUMN block_id text REFERENCES blocks (id),
        ADD COLUMN machine text REFERENCES machines (name),
        ADD COLUMN fee_bps integer NOT NULL DEFAULT 0 CHECK (fee_bps BETWEEN 0 AND 10000),
        ADD COLUMN fee_flat bigint NOT NULL DEFAULT 0 CHECK (fee_flat >= 0),
        ADD COLUMN proceeds bigint NOT NULL DEFAULT 0 CHECK (proceeds >= 0),
        ADD COLUMN fee bigint NOT NULL DEFAULT 0 CHECK (fee >= 0),
        ADD COLUMN simulated boolean NOT NULL DEFAULT false,
        ALTER COLUMN purchase_id DROP NOT NULL,
        ALTER COLUMN option DROP NOT NULL,
        ALTER COLUMN gpus_per_node DROP NOT NULL,
        DROP CONSTRAINT orders_state_check,
        ADD CONSTRAINT orders_side CHECK (CASE side
            WHEN 'buy' THEN state IN ('INTENT', 'PLACED', 'CLOSED')
                AND num_nulls(purchase_id, option, gpus_per_node) = 0
                AND num_nonnulls(block_id, machine) = 0
            WHEN 'sell' THEN state IN ('INTENT', 'PLACED', 'SOLD', 'UNSOLD')
                AND num_nulls(block_id, machine, starts_at, ends_at) = 0
                AND ends_at > starts_at AND purchase_id IS NULL AND NOT is_machine
                AND committed = 0 AND spent = 0
            ELSE false END)""",
    "UPDATE orders o SET simulated = p.simulated FROM purchases p WHERE p.id = o.purchase_id",
)

SALES = (
    # What is stored was allowed when it was: buying may be stopped by now.
    "ALTER TABLE orders DISABLE TRIGGER order_needs_buying",
    """
    INSERT INTO orders (side, is_machine, committed, key, block_id, number, machine, provider,
                        account, starts_at, ends_at, request, state, sent_at, order_id,
                        order_state, fee_bps, fee_flat, proceeds, fee, refused, simulated,
                        created_at, closed_at)
    SELECT 'sell', false, 0, key, block_id, number, machine, provider,
           account, starts_at, ends_at, request, state, sent_at, order_id,
           order_state, fee_bps, fee_flat, proceeds, fee, refused, simulated,
           created_at, closed_at
      FROM sales""",
    "ALTER TABLE orders ENABLE TRIGGER order_needs_buying",
    "DROP TABLE sales",
    "CREATE UNIQUE INDEX orders_at_market ON orders (provider, side, order_id)",
    "CREATE UNIQUE INDEX sales_numbers ON orders (block_id, number)",
    """
    CREATE UNIQUE INDEX sales_once ON orders (machine)
     WHERE side = 'sell' AND state <> 'UNSOLD'""",
)

VIEWS = (
    "CREATE VIEW purchase_orders AS SELECT * FROM orders WHERE side = 'buy'",
    "CREATE VIEW sales AS SELECT * FROM orders WHERE side = 'sell'",
    """
    ALTER VIEW sales
        ALTER side SET DEFAULT 'sell', ALTER is_machine SET DEFAULT false,
        ALTER committed SET DEFAULT 0""",
)
