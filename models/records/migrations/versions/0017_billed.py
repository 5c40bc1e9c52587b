"""What a market bills is booked, whatever became of what was bought.

A machine that is of no use is FAILED until its market says that it has ended: what it has cost is
known then, and booked. A cap refuses what may be spent, and nothing that has been.
"""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.execute("ALTER TABLE machines DROP CONSTRAINT machines_state_check")
    op.execute(
        "ALTER TABLE machines ADD CONSTRAINT machines_state_check"
        " CHECK (state IN ('INTENT', 'STARTING', 'READY', 'FAILED', 'ENDED'))"
    )
    op.execute(PURCHASE_COMMITS)


# As in 0005 but for `is_spent`: PostgreSQL replaces a function as a whole.
PURCHASE_COMMITS = """
    CREATE OR REPLACE FUNCTION purchase_commits() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        more bigint := NEW.committed;
        is_spent boolean := NEW.committed <= NEW.spent;
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
        RETURN NEW;
    END $$"""
