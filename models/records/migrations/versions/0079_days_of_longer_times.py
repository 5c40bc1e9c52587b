"""A longer time of a machine counts on the day on which its money is committed, and is refused by
the caps and the budgets of that day: it counted on the day of its purchase, however long ago.

The database stamps the day, whichever version of a worker has the machine go on. What went on
before this counts on the day of its purchase, as before.
"""

from alembic import op

revision = "0079"
down_revision = "0077"


def upgrade() -> None:
    for statement in (LOCKS, COLUMN, STAMP, STAMPS, *PARTS, CHARGES, COMMITS, *TRIGGERS):
        op.execute(statement)


# In the order in which workers lock their rows: else this would wait for them, and they for this.
LOCKS = "LOCK TABLE purchases, orders"

COLUMN = "ALTER TABLE purchases ADD COLUMN longer_days jsonb"

STAMP = """
    CREATE FUNCTION longer_is_stamped() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF is_longer(NEW.longer) THEN
            SELECT jsonb_agg(CASE WHEN each.place <= coalesce(jsonb_array_length(OLD.longer), 0)
                                  THEN each.said
                                  ELSE each.said || jsonb_build_object(
                                      'day', (clock_timestamp() AT TIME ZONE 'UTC')::date) END
                             ORDER BY each.place)
              INTO NEW.longer
              FROM jsonb_array_elements(NEW.longer) WITH ORDINALITY AS each (said, place);
        END IF;
        RETURN NEW;
    END $$"""

STAMPS = """
    CREATE TRIGGER longer_is_stamped BEFORE UPDATE OF longer ON orders
       FOR EACH ROW WHEN (NEW.longer IS DISTINCT FROM OLD.longer)
       EXECUTE FUNCTION longer_is_stamped()"""

PARTS = (
    # As `longer_parts` of 0076, by day: null is the day of the purchase.
    r"""
    CREATE FUNCTION longer_parts_by_day(its_purchase text)
    RETURNS TABLE (day date, tenant text, part bigint) LANGUAGE sql STABLE AS $$
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
                   CASE WHEN pg_input_is_valid(each.said ->> 'day', 'date')
                        THEN (each.said ->> 'day')::date END AS day,
                   least((each.said ->> 'after')::numeric, l.seconds) AS since,
                   least(lead((each.said ->> 'after')::numeric)
                             OVER (PARTITION BY l.key ORDER BY each.place), l.seconds) AS until
              FROM lasts l
             CROSS JOIN LATERAL jsonb_array_elements(l.longer)
                   WITH ORDINALITY AS each (said, place)
             WHERE l.seconds > 0
        )
        SELECT t.day, parts.tenant, sum(parts.part)::bigint
          FROM times t
         CROSS JOIN LATERAL purchase_parts(
                   greatest(floor(t.cost * t.until / t.seconds)
                            - floor(t.cost * t.since / t.seconds), 0)::bigint, t.split, NULL
               ) AS parts
         GROUP BY t.day, parts.tenant HAVING sum(parts.part) > 0
    $$""",
    """
    CREATE OR REPLACE FUNCTION longer_parts(its_purchase text)
    RETURNS TABLE (tenant text, part bigint) LANGUAGE sql STABLE AS $$
        SELECT d.tenant, sum(d.part)::bigint
          FROM longer_parts_by_day(its_purchase) d GROUP BY d.tenant
    $$""",
    # What counts on each day to each tenant; the purchase's own day has the rest, with longer
    # times of that day. No day has more than there is, in their order.
    """
    CREATE FUNCTION purchase_days(total bigint, its_split jsonb, its_tenant text, its_day date,
                                  its_longer jsonb, its_days jsonb)
    RETURNS TABLE (day date, tenant text, part bigint) LANGUAGE sql IMMUTABLE AS $$
        WITH others AS (
            SELECT each.key::date AS day, each.value AS split, s.part,
                   sum(s.part) OVER (ORDER BY each.key) AS upto
              FROM jsonb_each(its_days) AS each
             CROSS JOIN LATERAL (SELECT sum(value::numeric) AS part
                                   FROM jsonb_each_text(each.value)) AS s
             WHERE each.key::date <> its_day
        ), counted AS (
            SELECT o.day, o.split,
                   (least(o.upto, total) - least(o.upto - o.part, total))::bigint AS part
              FROM others o
        ), rest AS (
            SELECT (total - (SELECT coalesce(sum(c.part), 0) FROM counted c))::bigint AS part
        )
        SELECT c.day, p.tenant, p.part
          FROM counted c CROSS JOIN LATERAL purchase_parts(c.part, c.split, its_tenant) p
         UNION ALL
        SELECT its_day, p.tenant, p.part
          FROM rest r
         CROSS JOIN LATERAL purchase_parts(r.part, its_split, its_tenant, (
               SELECT jsonb_object_agg(l.key, l.value::numeric - coalesce((
                          SELECT sum((o.split ->> l.key)::numeric) FROM others o), 0))
                 FROM jsonb_each_text(its_longer) l)) p
    $$""",
)

CHARGES = """
    CREATE OR REPLACE FUNCTION purchase_charges() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND OLD.committed <> 0 THEN
            IF NEW.split IS DISTINCT FROM OLD.split AND NEW.committed > OLD.committed
               AND (OLD.pool, OLD.tier, OLD.tenant, OLD.day)
                   IS NOT DISTINCT FROM (NEW.pool, NEW.tier, NEW.tenant, NEW.day) THEN
                -- Workers of before 0076 do so, and take what a cap refuses for an answer.
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
        SELECT jsonb_object_agg(days.day, days.split) INTO NEW.longer_days
          FROM (SELECT parts.day, jsonb_object_agg(parts.tenant, parts.part) AS split
                  FROM longer_parts_by_day(NEW.id) parts
                 WHERE parts.day <> NEW.day GROUP BY parts.day) AS days;
        RETURN NEW;
    END $$"""

TRIGGERS = tuple(
    statement
    for name in ("purchase_charges", "purchase_commits")
    for statement in (
        f"DROP TRIGGER {name} ON purchases",
        f"""
        CREATE TRIGGER {name}
            BEFORE INSERT OR UPDATE OF pool, tier, tenant, day, split, committed, longer,
                                       longer_days
            ON purchases FOR EACH ROW EXECUTE FUNCTION {name}()""",
    )
)

# What a part grows by rounding, of at most so many times and tenants, is not asked for.
COMMITS = """
    CREATE OR REPLACE FUNCTION purchase_commits() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        more bigint := NEW.committed;
        before bigint := 0;
        was_longer jsonb;
        was_days jsonb;
        -- No more is committed than is spent, or than was spent since.
        is_spent boolean := (NEW.committed <= NEW.spent OR TG_OP = 'UPDATE'
                             AND NEW.committed - OLD.committed <= NEW.spent - OLD.spent);
        caps jsonb;
        kept record;
        growing jsonb := '[]';
        total bigint;
        most bigint;
        -- Where it is divided over days, one may have a little more by rounding alone.
        rounds bigint := CASE WHEN NEW.longer_days IS NULL THEN 0 ELSE 10 END;
    BEGIN
        IF TG_OP = 'UPDATE' THEN
            before := OLD.committed;
            more := NEW.committed - OLD.committed;
            was_longer := OLD.longer;
            was_days := OLD.longer_days;
            -- Of longer times no more than was spent since: else one is promised, also where so
            -- much was spent before that no more is committed. A little is by rounding alone.
            SELECT is_spent AND coalesce(sum(each.part), 0) <= NEW.spent - OLD.spent + 10
              INTO is_spent
              FROM (SELECT value::numeric AS part FROM jsonb_each_text(NEW.longer)
                     UNION ALL
                    SELECT -value::numeric FROM jsonb_each_text(OLD.longer)) AS each;
        END IF;
        IF more = 0 AND NEW.longer IS NOT DISTINCT FROM was_longer
           AND NEW.longer_days IS NOT DISTINCT FROM was_days THEN
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
            SELECT sums.*, days.day, days.more
              FROM (VALUES
                (1, 'day', 'all', NULL::bigint),
                (2, 'pool', NEW.pool, (caps ->> 'per_day')::bigint),
                (3, 'tier', NEW.tier, NULL),
                (4, 'tenant', NEW.tenant, NULL),
                (5, 'pool tier', NEW.pool || '/' || NEW.tier,
                    (caps -> 'per_tier_day' ->> NEW.tier)::bigint),
                (6, 'pool tenant', NEW.pool || '/' || NEW.tenant,
                    (caps ->> 'per_tenant_day')::bigint)
              ) AS sums (place, scope, name, cap)
             CROSS JOIN (
                SELECT each.day, sum(each.part)::bigint AS more
                  FROM (SELECT n.day, n.part
                          FROM purchase_days(NEW.committed, NEW.split, NEW.tenant, NEW.day,
                                             NEW.longer, NEW.longer_days) n
                         UNION ALL
                        SELECT o.day, -o.part
                          FROM purchase_days(before, NEW.split, NEW.tenant, NEW.day,
                                             was_longer, was_days) o) AS each
                 GROUP BY each.day) AS days
             ORDER BY place, days.day
        LOOP
            CONTINUE WHEN kept.more = 0;
            INSERT INTO purchase_sums (scope, name, day) VALUES (kept.scope, kept.name, kept.day)
                ON CONFLICT DO NOTHING;
            UPDATE purchase_sums SET committed = committed + kept.more
             WHERE scope = kept.scope AND name = kept.name AND day = kept.day
             RETURNING committed INTO total;
            most := least(purchase_cap(kept.scope, kept.name), kept.cap);
            IF kept.more > rounds AND total > most AND NOT is_spent THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for % % on %, and % is the most',
                    total, kept.scope, kept.name, kept.day, most
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
        END LOOP;
        INSERT INTO purchase_sums (scope, name, day)
        SELECT 'part', n.tenant, n.day
          FROM purchase_days(NEW.committed, NEW.split, NEW.tenant, NEW.day,
                             NEW.longer, NEW.longer_days) n
         ORDER BY n.day, n.tenant
            ON CONFLICT DO NOTHING;
        FOR kept IN
            SELECT each.day, each.tenant AS name, sum(each.part)::bigint AS more
              FROM (SELECT n.day, n.tenant, n.part
                      FROM purchase_days(NEW.committed, NEW.split, NEW.tenant, NEW.day,
                                         NEW.longer, NEW.longer_days) n
                     UNION ALL
                    SELECT o.day, o.tenant, -o.part
                      FROM purchase_days(before, NEW.split, NEW.tenant, NEW.day,
                                         was_longer, was_days) o) AS each
             GROUP BY each.day, each.tenant ORDER BY each.day, each.tenant
        LOOP
            UPDATE purchase_sums SET committed = committed + kept.more
             WHERE scope = 'part' AND name = kept.name AND day = kept.day;
            -- Of what was divided before, a part may be a little more by rounding alone.
            IF kept.more > 10 OR before = 0 AND kept.more > 0 THEN
                growing := growing || jsonb_build_object('tenant', kept.name, 'day', kept.day);
            END IF;
        END LOOP;
        IF more < 0 OR is_spent THEN
            RETURN NEW;
        END IF;
        FOR kept IN
            SELECT t.name, up.day, t.money_per_day, t.money_per_month
              FROM tenants t
              JOIN (SELECT DISTINCT above.name, (each.said ->> 'day')::date AS day
                      FROM jsonb_array_elements(growing) AS each (said)
                     CROSS JOIN LATERAL tenants_above(each.said ->> 'tenant') above) AS up
                   ON up.name = t.name
             WHERE t.money_per_day IS NOT NULL OR t.money_per_month IS NOT NULL
             ORDER BY t.name, up.day FOR NO KEY UPDATE OF t
        LOOP
            total := budget_spent(kept.name, kept.day, kept.day);
            IF total > kept.money_per_day THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for the budget of % on %, and '
                    '% is the most', total, kept.name, kept.day, kept.money_per_day
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
            total := budget_spent(kept.name, month_of(kept.day),
                                  (month_of(kept.day) + interval '1 month - 1 day')::date);
            IF total > kept.money_per_month THEN
                RAISE EXCEPTION
                    'with it % micro-dollars would be committed for the budget of % in the month '
                    'of %, and % is the most', total, kept.name, kept.day, kept.money_per_month
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'purchase_cap';
            END IF;
        END LOOP;
        RETURN NEW;
    END $$"""
