"""The end of a block: sales of its time, the block after it, and what was decided.

What the database refuses, whatever the code does:

- a placement on a node whose time is on sale or sold (trigger), and a sale of time of a node that
  a job holds (trigger); both lock the machine's row, so that one of them comes first;
- a second sale of one machine's time (trigger and unique index), a second sale of one key,
  an order of a market that belongs to another sale;
- a second purchase under way of the time after one block (unique index);
- a sale while buying is stopped (trigger of 0005).
"""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for statement in (*TABLES, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE sales (
        key text PRIMARY KEY,
        block_id text NOT NULL REFERENCES blocks (id),
        number integer NOT NULL CHECK (number > 0),
        machine text NOT NULL REFERENCES machines (name),
        provider text NOT NULL,
        account text,
        starts_at timestamptz NOT NULL,
        ends_at timestamptz NOT NULL CHECK (ends_at > starts_at),
        request jsonb NOT NULL,
        state text NOT NULL DEFAULT 'INTENT'
            CHECK (state IN ('INTENT', 'PLACED', 'SOLD', 'UNSOLD')),
        sent_at timestamptz,
        order_id text,
        order_state text,
        fee_bps integer NOT NULL DEFAULT 0 CHECK (fee_bps BETWEEN 0 AND 10000),
        fee_flat bigint NOT NULL DEFAULT 0 CHECK (fee_flat >= 0),
        proceeds bigint NOT NULL DEFAULT 0 CHECK (proceeds >= 0),
        fee bigint NOT NULL DEFAULT 0 CHECK (fee >= 0),
        refused text NOT NULL DEFAULT '',
        simulated boolean NOT NULL DEFAULT false,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        closed_at timestamptz
    )""",
    "CREATE UNIQUE INDEX sales_numbers ON sales (block_id, number)",
    "CREATE UNIQUE INDEX sales_at_market ON sales (provider, order_id)",
    "CREATE UNIQUE INDEX sales_once ON sales (machine) WHERE state <> 'UNSOLD'",
    "ALTER TABLE machines ADD COLUMN sale_key text",
    "ALTER TABLE purchases ADD COLUMN renews text",
    """
    CREATE UNIQUE INDEX purchases_renew_once ON purchases (renews)
     WHERE state NOT IN ('ENDED', 'REFUSED')""",
    """
    ALTER TABLE blocks
        ADD COLUMN place text,
        ADD COLUMN decision jsonb,
        ADD COLUMN decided_at timestamptz,
        ADD COLUMN tried_at timestamptz""",
    """
    CREATE TABLE block_nodes (
        block_id text NOT NULL REFERENCES blocks (id),
        node_id text NOT NULL,
        next_block text NOT NULL REFERENCES blocks (id),
        handed_over_at timestamptz,
        PRIMARY KEY (block_id, node_id)
    )""",
)

FUNCTIONS = (
    """
    CREATE FUNCTION placement_needs_time() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        sold text;
    BEGIN
        SELECT sale_key INTO sold FROM machines WHERE name = NEW.node_id FOR SHARE;
        IF sold IS NOT NULL THEN
            RAISE EXCEPTION 'the time of node % is for sale (%)', NEW.node_id, sold
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'time_is_sold';
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION sale_needs_free_time() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.sale_key IS NOT NULL AND OLD.sale_key <> NEW.sale_key THEN
            RAISE EXCEPTION 'the time of machine % is for sale already (%)', NEW.name, OLD.sale_key
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'time_is_sold';
        END IF;
        IF EXISTS (SELECT FROM placements WHERE node_id = NEW.name AND ended_at IS NULL) THEN
            RAISE EXCEPTION 'a job holds node %: its time is not sold', NEW.name
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'time_is_held';
        END IF;
        RETURN NEW;
    END $$""",
)

TRIGGERS = (
    """
    CREATE TRIGGER sale_needs_buying BEFORE INSERT ON sales
        FOR EACH ROW EXECUTE FUNCTION buying_is_on()""",
    """
    CREATE TRIGGER placement_needs_time BEFORE INSERT ON placements
        FOR EACH ROW EXECUTE FUNCTION placement_needs_time()""",
    """
    CREATE TRIGGER sale_needs_free_time BEFORE UPDATE OF sale_key ON machines
        FOR EACH ROW WHEN (NEW.sale_key IS NOT NULL)
        EXECUTE FUNCTION sale_needs_free_time()""",
)
