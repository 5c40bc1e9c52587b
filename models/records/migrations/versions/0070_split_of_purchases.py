"""No row written by hand gets by the caps on money through what tenants pay for a purchase: some
tenant has a share, shares of names that nobody knows are the purchase's own tenant's, and what the
sums of the caps were reckoned by stays while money is committed.

The splits without a share that are there already counted to no tenant. They are taken away, and
their purchases count to their tenants, as all without a split do.
"""

from alembic import op

revision = "0070"
down_revision = "0069"


def upgrade() -> None:
    for statement in (IS_SPLIT, CONSTRAINT, MEND, VALIDATE, CHARGES, TRIGGER):
        op.execute(statement)


IS_SPLIT = """
    CREATE FUNCTION is_split(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT jsonb_typeof(value) = 'object'
           AND NOT jsonb_path_exists(value, 'strict $.* ? (@.type() != "number" || @ < 0)')
           AND jsonb_path_exists(value, 'strict $.* ? (@ > 0)')
    $$"""

CONSTRAINT = """
    ALTER TABLE purchases
        DROP CONSTRAINT purchases_split_in_numbers,
        ADD CONSTRAINT purchases_split_in_numbers CHECK (is_split(split)) NOT VALID"""

MEND = """
    WITH mended AS (
        UPDATE purchases SET split = NULL WHERE NOT is_split(split)
        RETURNING tenant, day, committed)
    INSERT INTO purchase_sums AS s (scope, name, day, committed)
    SELECT 'part', tenant, day, sum(committed) FROM mended GROUP BY tenant, day
        ON CONFLICT (scope, name, day) DO UPDATE
       SET committed = s.committed + excluded.committed"""

VALIDATE = "ALTER TABLE purchases VALIDATE CONSTRAINT purchases_split_in_numbers"

# Before money is committed, and never again: a name that is heard of later would move what was
# counted. `default` has no row: it pays for the warm target.
CHARGES = """
    CREATE FUNCTION purchase_charges() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND OLD.committed <> 0 THEN
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
        RETURN NEW;
    END $$"""

# Triggers go by their names: this one has to come before `purchase_commits`.
TRIGGER = """
    CREATE TRIGGER purchase_charges
        BEFORE INSERT OR UPDATE OF pool, tier, tenant, day, split ON purchases
        FOR EACH ROW EXECUTE FUNCTION purchase_charges()"""
