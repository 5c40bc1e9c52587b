"""Money of budgets: what purchases of a tenant, and of those below it, may commit.

A purchase is split over tenants by weights, by rounded running totals: so the parts are whole
micro-dollars and their sum is the purchase, whatever it comes to. What is kept is each tenant's
own part of each day; what a budget has spent is summed over its subtree as it is now, under a lock
on the tenants with money, by name. So a tenant that gets money at noon, or another parent, counts
what was bought in the morning.
"""

from alembic import op

revision = "0054"
down_revision = "0053"


def upgrade() -> None:
    op.execute("ALTER TABLE purchases ADD COLUMN split jsonb")
    # Purchases of before are paid by one tenant.
    op.execute(
        "INSERT INTO purchase_sums (scope, name, day, committed)"
        " SELECT 'part', name, day, committed FROM purchase_sums WHERE scope = 'tenant'"
    )
    for statement in FUNCTIONS:
        op.execute(statement)


FUNCTIONS = (
    """
    CREATE FUNCTION month_of(its_day date) RETURNS date LANGUAGE sql IMMUTABLE AS $$
        SELECT date_trunc('month', its_day::timestamp)::date
    $$""",
    """
    CREATE FUNCTION budget_spent(its_name text, since date, until date) RETURNS bigint
    LANGUAGE sql STABLE AS $$
        SELECT coalesce(sum(committed), 0)::bigint FROM purchase_sums
         WHERE scope = 'part' AND name IN (SELECT tenants_below(its_name))
           AND day BETWEEN since AND until
    $$""",
    """
    CREATE FUNCTION purchase_parts(total bigint, its_split jsonb, its_tenant text)
    RETURNS TABLE (tenant text, part bigint) LANGUAGE sql IMMUTABLE AS $$
        WITH weights (tenant, weight) AS (
            SELECT key, value::numeric
              FROM jsonb_each_text(coalesce(its_split, jsonb_build_object(its_tenant, 1)))
        ), running AS (
            SELECT w.tenant, sum(weight) OVER (ORDER BY w.tenant) AS upto, weight,
                   sum(weight) OVER () AS whole
              FROM weights w
        )
        SELECT r.tenant, (floor(total * upto / whole)
                          - floor(total * (upto - weight) / whole))::bigint
          FROM running r WHERE whole > 0
    $$""",
    """
    CREATE OR REPLACE FUNCTION purchase_commits() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        more bigint := NEW.committed;
        before bigint := 0;
        is_spent boolean := NEW.committed <= NEW.spent;
        caps jsonb;
        kept record;
        total bigint;
        most bigint;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            before := OLD.committed;
            more := NEW.committed - OLD.committed;
        END IF;
        IF more = 0 THEN
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
          FROM purchase_parts(NEW.committed, NEW.split, NEW.tenant) n ORDER BY n.tenant
            ON CONFLICT DO NOTHING;
        FOR kept IN
            SELECT tenant AS name, n.part - coalesce(o.part, 0) AS more
              FROM purchase_parts(NEW.committed, NEW.split, NEW.tenant) n
              LEFT JOIN purchase_parts(before, NEW.split, NEW.tenant) o USING (tenant)
             ORDER BY tenant
        LOOP
            UPDATE purchase_sums SET committed = committed + kept.more
             WHERE scope = 'part' AND name = kept.name AND day = NEW.day;
        END LOOP;
        IF more < 0 OR is_spent THEN
            RETURN NEW;
        END IF;
        FOR kept IN
            SELECT t.name, t.money_per_day, t.money_per_month FROM tenants t
             WHERE (t.money_per_day IS NOT NULL OR t.money_per_month IS NOT NULL)
               AND t.name IN (SELECT up.name
                                FROM purchase_parts(NEW.committed, NEW.split, NEW.tenant) n
                               CROSS JOIN LATERAL tenants_above(n.tenant) up)
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
    END $$""",
)
