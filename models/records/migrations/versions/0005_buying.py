"""Buying: purchases and their orders, machines, caps, the switch, and the ledger of the money.

What the database refuses, whatever the code does:

- a purchase or an order while buying is stopped (trigger; whoever stops waits for intents that are
  being stored, so that none comes after it);
- commitments over a cap (trigger on locked sums): per purchase, and a day's per pool, tier, tenant
  and in all, from `purchase_caps` and from the caps of the pool's buying policy;
- a second purchase, order, machine or block of one id; an order or a machine of a market that
  belongs to another one already;
- any change of a row of the ledger, and its removal (trigger). A row moves money from one account
  to another: the sum over all accounts is zero.
"""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for statement in (*TABLES, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE market_switch (
        id boolean PRIMARY KEY DEFAULT true CHECK (id),
        stopped boolean NOT NULL DEFAULT false,
        reason text NOT NULL DEFAULT '',
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    "INSERT INTO market_switch DEFAULT VALUES",
    """
    CREATE TABLE purchase_caps (
        scope text NOT NULL CHECK (scope IN ('purchase', 'day', 'pool', 'tier', 'tenant')),
        name text NOT NULL DEFAULT '*',
        micro bigint NOT NULL CHECK (micro >= 0),
        PRIMARY KEY (scope, name)
    )""",
    """
    CREATE TABLE purchase_sums (
        scope text NOT NULL,
        name text NOT NULL,
        day date NOT NULL,
        committed bigint NOT NULL DEFAULT 0 CHECK (committed >= 0),
        PRIMARY KEY (scope, name, day)
    )""",
    """
    CREATE TABLE purchases (
        id text PRIMARY KEY,
        pool text NOT NULL REFERENCES pools (name),
        tenant text NOT NULL,
        tier text NOT NULL CHECK (tier IN ('FAST', 'FLEX')),
        state text NOT NULL CHECK (state IN ('INTENT', 'ORDERED', 'FILLED', 'STARTING', 'READY',
                                             'COMPENSATING', 'ENDED', 'REFUSED')),
        reason text NOT NULL DEFAULT '',
        request jsonb NOT NULL,
        decision jsonb,
        planned bigint NOT NULL CHECK (planned >= 0),
        committed bigint NOT NULL CHECK (committed >= 0),
        spent bigint NOT NULL DEFAULT 0 CHECK (spent >= 0),
        day date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
        simulated boolean NOT NULL DEFAULT false,
        buying boolean NOT NULL DEFAULT true,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended_at timestamptz
    )""",
    "CREATE INDEX purchases_by_time ON purchases (created_at)",
    """
    CREATE TABLE purchase_orders (
        key text PRIMARY KEY,
        purchase_id text NOT NULL REFERENCES purchases (id),
        number integer NOT NULL CHECK (number > 0),
        option integer NOT NULL CHECK (option >= 0),
        provider text NOT NULL,
        request jsonb NOT NULL,
        state text NOT NULL DEFAULT 'INTENT' CHECK (state IN ('INTENT', 'PLACED', 'CLOSED')),
        is_machine boolean NOT NULL,
        gpus_per_node integer NOT NULL CHECK (gpus_per_node > 0),
        account text,
        sent_at timestamptz,
        order_id text,
        order_state text,
        nodes integer NOT NULL DEFAULT 0 CHECK (nodes >= 0),
        starts_at timestamptz,
        ends_at timestamptz,
        committed bigint NOT NULL CHECK (committed >= 0),
        spent bigint NOT NULL DEFAULT 0 CHECK (spent >= 0),
        refused text NOT NULL DEFAULT '',
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        closed_at timestamptz
    )""",
    "CREATE UNIQUE INDEX purchase_orders_numbers ON purchase_orders (purchase_id, number)",
    "CREATE UNIQUE INDEX purchase_orders_at_market ON purchase_orders (provider, order_id)",
    """
    ALTER TABLE blocks
        ADD COLUMN purchase_id text REFERENCES purchases (id),
        ADD COLUMN pool text,
        ADD COLUMN state text NOT NULL DEFAULT 'OPEN'
            CHECK (state IN ('STARTING', 'OPEN', 'DRAINING', 'ENDED')),
        ADD COLUMN reason text NOT NULL DEFAULT '',
        ADD COLUMN nodes integer NOT NULL DEFAULT 0 CHECK (nodes >= 0),
        ADD COLUMN gpus_per_node integer NOT NULL DEFAULT 8 CHECK (gpus_per_node > 0),
        ADD COLUMN account text,
        ADD COLUMN simulated boolean NOT NULL DEFAULT false,
        ADD COLUMN ended_at timestamptz""",
    "CREATE INDEX blocks_by_purchase ON blocks (purchase_id)",
    """
    CREATE TABLE machines (
        name text PRIMARY KEY,
        purchase_id text NOT NULL REFERENCES purchases (id),
        block_id text NOT NULL REFERENCES blocks (id),
        provider text NOT NULL,
        machine_id text,
        state text NOT NULL DEFAULT 'INTENT'
            CHECK (state IN ('INTENT', 'STARTING', 'READY', 'ENDED')),
        reason text NOT NULL DEFAULT '',
        asked_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended_at timestamptz
    )""",
    "CREATE UNIQUE INDEX machines_at_market ON machines (provider, machine_id)",
    "CREATE INDEX machines_by_block ON machines (block_id)",
    """
    CREATE TABLE ledger (
        id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        kind text NOT NULL CHECK (kind IN ('purchase', 'refund', 'resale', 'fee', 'usage')),
        debit text NOT NULL,
        credit text NOT NULL CHECK (credit <> debit),
        micro bigint NOT NULL CHECK (micro > 0),
        purchase_id text REFERENCES purchases (id),
        block_id text REFERENCES blocks (id),
        reference text NOT NULL,
        simulated boolean NOT NULL
    )""",
    "CREATE UNIQUE INDEX ledger_once ON ledger (reference)",
    "CREATE INDEX ledger_by_block ON ledger (block_id)",
    "CREATE INDEX ledger_by_purchase ON ledger (purchase_id)",
    """
    CREATE VIEW balances AS
    SELECT account, sum(micro)::bigint AS micro
      FROM (SELECT debit AS account, micro FROM ledger
            UNION ALL
            SELECT credit, -micro FROM ledger) AS moved
     GROUP BY account""",
)

FUNCTIONS = (
    """
    CREATE FUNCTION buying_is_on() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        switch market_switch;
    BEGIN
        SELECT * INTO switch FROM market_switch FOR SHARE;
        IF switch.stopped THEN
            RAISE EXCEPTION 'buying is stopped: %', switch.reason
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'market_switch';
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION purchase_cap(its_scope text, its_name text) RETURNS bigint
    LANGUAGE sql STABLE AS $$
        SELECT micro FROM purchase_caps
         WHERE scope = its_scope AND name IN (its_name, '*')
         ORDER BY name = '*' LIMIT 1
    $$""",
    """
    CREATE FUNCTION purchase_commits() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        more bigint := NEW.committed;
        caps jsonb;
        kept record;
        total bigint;
        most bigint;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            more := NEW.committed - OLD.committed;
        END IF;
        IF more = 0 THEN
            RETURN NEW;
        END IF;
        SELECT spec #> '{buying,caps}' INTO caps FROM pools WHERE name = NEW.pool;
        most := least(purchase_cap('purchase', NEW.id), (caps ->> 'per_purchase')::bigint);
        IF more > 0 AND NEW.committed > most THEN
            RAISE EXCEPTION 'it may cost % micro-dollars, and a purchase may cost % at most',
                NEW.committed, most
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
        END IF;
        -- Always in this order: two purchases wait for each other, and never in a circle.
        FOR kept IN
            SELECT * FROM (VALUES
                (1, 'day', 'all', NULL::bigint),
                (2, 'pool', NEW.pool, (caps ->> 'per_day')::bigint),
                (3, 'tier', NEW.tier, NULL),
                (4, 'tenant', NEW.tenant, NULL),
                (5, 'pool tier', NEW.pool || '/' || NEW.tier,
                    (caps -> 'per_tier_day' ->> NEW.tier)::bigint),
                (6, 'pool tenant', NEW.pool || '/' || NEW.tenant,
                    (caps ->> 'per_tenant_day')::bigint)
            ) AS sums (place, scope, name, cap) ORDER BY place
        LOOP
            INSERT INTO purchase_sums (scope, name, day) VALUES (kept.scope, kept.name, NEW.day)
                ON CONFLICT DO NOTHING;
            UPDATE purchase_sums SET committed = committed + more
             WHERE scope = kept.scope AND name = kept.name AND day = NEW.day
             RETURNING committed INTO total;
            most := least(purchase_cap(kept.scope, kept.name), kept.cap);
            IF more > 0 AND total > most THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for % % on %, and % is the most',
                    total, kept.scope, kept.name, NEW.day, most
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
        END LOOP;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION ledger_stays() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'row % of the ledger is never rewritten', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
)

TRIGGERS = (
    """
    CREATE TRIGGER purchase_needs_buying BEFORE INSERT ON purchases
        FOR EACH ROW WHEN (NEW.state <> 'REFUSED') EXECUTE FUNCTION buying_is_on()""",
    """
    CREATE TRIGGER order_needs_buying BEFORE INSERT ON purchase_orders
        FOR EACH ROW EXECUTE FUNCTION buying_is_on()""",
    """
    CREATE TRIGGER purchase_commits BEFORE INSERT OR UPDATE OF committed ON purchases
        FOR EACH ROW EXECUTE FUNCTION purchase_commits()""",
    """
    CREATE TRIGGER ledger_stays BEFORE UPDATE OR DELETE ON ledger
        FOR EACH ROW EXECUTE FUNCTION ledger_stays()""",
)
