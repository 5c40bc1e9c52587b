"""What a machine is used longer is paid by those for whose jobs it went on, also where that time
ends early: each order keeps from when on who pays, and what it has cost is divided by its time.

So the split of a purchase stays again while money is committed: `purchases.longer` is what of it
is for longer times, by tenant, as the orders say it. Both functions are written whole: databases
that took 0074 before there was 0073 lack what that changed.

A budget is asked only where the part of a tenant below it grows.
"""

from alembic import op

revision = "0076"
down_revision = "0075"


def upgrade() -> None:
    for statement in (LOCKS, IS_LONGER, *COLUMNS, *PARTS, CHARGES, COMMITS, *TRIGGERS):
        op.execute(statement)


# In the order in which workers lock their rows: else this would wait for them, and they for this.
LOCKS = "LOCK TABLE purchases, orders"

# No other function in it: a dump restores checks before it finds those.
IS_LONGER = """
    CREATE FUNCTION is_longer(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE jsonb_typeof(value) WHEN 'array' THEN
            jsonb_array_length(value) = jsonb_array_length(jsonb_path_query_array(value,
                'strict $[*] ? (@.type() == "object"
                                && @.after.type() == "number" && @.after >= 0
                                && @.split.type() == "object" && exists(@.split.* ? (@ > 0))
                                && !exists(@.split.* ? (@.type() != "number" || @ < 0)))'))
            ELSE false END
    $$"""

COLUMNS = (
    "ALTER TABLE orders ADD COLUMN longer jsonb"
    " CONSTRAINT orders_longer_in_numbers CHECK (longer IS NULL OR is_longer(longer))",
    "ALTER TABLE purchases ADD COLUMN longer jsonb",
)

PARTS = (
    """
    CREATE FUNCTION longer_parts(its_purchase text)
    RETURNS TABLE (tenant text, part bigint) LANGUAGE sql STABLE AS $$
        WITH lasts AS (
            SELECT o.key, o.longer, greatest(o.committed, o.spent) AS cost,
                   extract(epoch FROM CASE WHEN o.state = 'CLOSED' THEN
                               least(coalesce((SELECT max(m.ended_at) FROM machines m
                                                WHERE m.block_id = o.key), o.closed_at),
                                     o.ends_at)
                                      ELSE o.ends_at END - o.starts_at) AS seconds
              FROM orders o WHERE o.purchase_id = its_purchase AND o.longer IS NOT NULL
        ), times AS (
            SELECT l.cost, l.seconds, each.said -> 'split' AS split,
                   least((each.said ->> 'after')::numeric, l.seconds) AS since,
                   least(lead((each.said ->> 'after')::numeric)
                             OVER (PARTITION BY l.key ORDER BY each.place), l.seconds) AS until
              FROM lasts l
             CROSS JOIN LATERAL jsonb_array_elements(l.longer)
                   WITH ORDINALITY AS each (said, place)
             WHERE l.seconds > 0
        )
        SELECT parts.tenant, sum(parts.part)::bigint
          FROM times t
         CROSS JOIN LATERAL purchase_parts(
                   greatest(floor(t.cost * t.until / t.seconds)
                            - floor(t.cost * t.since / t.seconds), 0)::bigint, t.split, NULL
               ) AS parts
         GROUP BY parts.tenant HAVING sum(parts.part) > 0
    $$""",
    """
    CREATE FUNCTION purchase_parts(total bigint, its_split jsonb, its_tenant text,
                                   its_longer jsonb)
    RETURNS TABLE (tenant text, part bigint) LANGUAGE sql IMMUTABLE AS $$
        SELECT parts.tenant, sum(parts.part)::bigint
          FROM (SELECT least(total, coalesce(sum(value::numeric), 0))::bigint AS part
                  FROM jsonb_each_text(its_longer)) AS longer
         CROSS JOIN LATERAL (
               SELECT * FROM purchase_parts(total - longer.part, its_split, its_tenant)
                UNION ALL
               SELECT * FROM purchase_parts(longer.part, its_longer, its_tenant)
                WHERE longer.part > 0) AS parts
         GROUP BY parts.tenant
    $$""",
)

CHARGES = """
    CREATE OR REPLACE FUNCTION purchase_charges() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND OLD.committed <> 0 THEN
            IF NEW.split IS DISTINCT FROM OLD.split AND NEW.committed > OLD.committed
               AND (OLD.pool, OLD.tier, OLD.tenant, OLD.day)
                   IS NOT DISTINCT FROM (NEW.pool, NEW.tier, NEW.tenant, NEW.day) THEN
                -- Workers of the version before do so, and take what a cap refuses for an answer.
                RAISE EXCEPTION
                    'a longer time is divided over its tenants by workers of the new version alone'
                    USING ERRCODE = 'integrity_constraint_violation',
                          CONSTRAINT = 'purchase_cap';
            END IF;
            IF (OLD.pool, OLD.tier, OLD.tenant, OLD.day, OLD.split)
               IS DISTINCT FROM (NEW.pool, NEW.tier, NEW.tenant, NEW.day, NEW.split) THEN
                RAISE EXCEPTION
                    'pool, tier, tenant, day and split of purchase % stay as they are while % '
                    'micro-dollars are committed', OLD.id, OLD.committed
                    USING ERRCODE = 'integrity_constraint_violation',
                          CONSTRAINT = 'purchase_charges';
            END IF;
        ELSIF is_split(NEW.split) THEN
            SELECT jsonb_object_agg(known.tenant, known.share) INTO NEW.split
              FROM (SELECT CASE WHEN each.tenant = 'default'
                                  OR EXISTS (SELECT FROM tenants t WHERE t.name = each.tenant)
                                  OR EXISTS (SELECT FROM jobs j WHERE j.tenant = each.tenant)
                                THEN each.tenant ELSE NEW.tenant END AS tenant,
                           sum(each.share::numeric) AS share
                      FROM jsonb_each_text(NEW.split) AS each (tenant, share) GROUP BY 1) AS known;
        END IF;
        SELECT jsonb_object_agg(parts.tenant, parts.part) INTO NEW.longer
          FROM longer_parts(NEW.id) parts;
        RETURN NEW;
    END $$"""

# Both for the same columns: where the parts are written, the sums follow.
TRIGGERS = tuple(
    statement
    for name in ("purchase_charges", "purchase_commits")
    for statement in (
        f"DROP TRIGGER {name} ON purchases",
        f"""
        CREATE TRIGGER {name}
            BEFORE INSERT OR UPDATE OF pool, tier, tenant, day, split, committed, longer
            ON purchases FOR EACH ROW EXECUTE FUNCTION {name}()""",
    )
)

# What a part grows by rounding, of at most so many times and tenants, is not asked for.
COMMITS = """
    CREATE OR REPLACE FUNCTION purchase_commits() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        more bigint := NEW.committed;
        before bigint := 0;
        was_split jsonb := NEW.split;
        was_longer jsonb;
        -- No more is committed than is spent, or than was spent since.
        is_spent boolean := (NEW.committed <= NEW.spent OR TG_OP = 'UPDATE'
                             AND NEW.committed - OLD.committed <= NEW.spent - OLD.spent);
        caps jsonb;
        kept record;
        growing text[] := '{}';
        total bigint;
        most bigint;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            before := OLD.committed;
            more := NEW.committed - OLD.committed;
            was_longer := OLD.longer;
            -- Of longer times no more than was spent since: else one is promised, also where so
            -- much was spent before that no more is committed. A little is by rounding alone.
            SELECT is_spent AND coalesce(sum(each.part), 0) <= NEW.spent - OLD.spent + 10
              INTO is_spent
              FROM (SELECT value::numeric AS part FROM jsonb_each_text(NEW.longer)
                     UNION ALL
                    SELECT -value::numeric FROM jsonb_each_text(OLD.longer)) AS each;
        END IF;
        IF more = 0 AND NEW.longer IS NOT DISTINCT FROM was_longer THEN
            RETURN NEW;
        END IF;
        SELECT spec #> '{buying,caps}' INTO caps FROM pools WHERE name = NEW.pool;
        most := least(purchase_cap('purchase', NEW.id), (caps ->> 'per_purchase')::bigint);
        IF more > 0 AND NEW.committed > most AND NOT is_spent THEN
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
            IF more > 0 AND total > most AND NOT is_spent THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for % % on %, and % is the most',
                    total, kept.scope, kept.name, NEW.day, most
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
        END LOOP;
        INSERT INTO purchase_sums (scope, name, day)
        SELECT 'part', n.tenant, NEW.day
          FROM purchase_parts(NEW.committed, NEW.split, NEW.tenant, NEW.longer) n
         ORDER BY n.tenant
            ON CONFLICT DO NOTHING;
        FOR kept IN
            SELECT tenant AS name, coalesce(n.part, 0) - coalesce(o.part, 0) AS more
              FROM purchase_parts(NEW.committed, NEW.split, NEW.tenant, NEW.longer) n
              FULL JOIN purchase_parts(before, NEW.split, NEW.tenant, was_longer) o USING (tenant)
             ORDER BY tenant
        LOOP
            UPDATE purchase_sums SET committed = committed + kept.more
             WHERE scope = 'part' AND name = kept.name AND day = NEW.day;
            -- Of what was divided before, a part may be a little more by rounding alone.
            IF kept.more > 10 OR before = 0 AND kept.more > 0 THEN
                growing := growing || kept.name;
            END IF;
        END LOOP;
        IF more < 0 OR is_spent THEN
            RETURN NEW;
        END IF;
        FOR kept IN
            SELECT t.name, t.money_per_day, t.money_per_month FROM tenants t
             WHERE (t.money_per_day IS NOT NULL OR t.money_per_month IS NOT NULL)
               AND t.name IN (SELECT up.name FROM unnest(growing) AS each (tenant)
                               CROSS JOIN LATERAL tenants_above(each.tenant) up)
             ORDER BY t.name FOR NO KEY UPDATE
        LOOP
            total := budget_spent(kept.name, NEW.day, NEW.day);
            IF total > kept.money_per_day THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for the budget of % on %, and '
                    '% is the most', total, kept.name, NEW.day, kept.money_per_day
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
            total := budget_spent(kept.name, month_of(NEW.day),
                                  (month_of(NEW.day) + interval '1 month - 1 day')::date);
            IF total > kept.money_per_month THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for the budget of % in the month '
                    'of %, and % is the most', total, kept.name, NEW.day, kept.money_per_month
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
        END LOOP;
        RETURN NEW;
    END $$"""
