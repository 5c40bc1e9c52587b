"""Charges fit: whose envelope pays is near enough to the tenant, and it is for such GPUs.

What the database refuses beside what 0052 does: a charge that is shared by a tenant other than a
parent, sibling, grandparent, aunt or cousin of the job's (two steps up, and down from there, and
never one below it); and one of an envelope that is for another pool or type of GPU, or for labels
that the node does not have.

The tree and the nodes are looked at and not locked: where one changes in the same moment, the next
cycle closes what no longer fits, as it does where they change later.
"""

from alembic import op

revision = "0057"
down_revision = "0056"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    # As `scheduling.funding.ladder.Tree.steps`: two for whom this is true are never the same.
    """
    CREATE FUNCTION tenants_are_near(its_name text, its_owner text) RETURNS boolean
    LANGUAGE sql STABLE AS $$
        SELECT EXISTS (
            SELECT FROM tenants t
              JOIN tenants o ON o.name = its_owner AND o.name <> t.name
              LEFT JOIN tenants up ON up.name = t.parent
              LEFT JOIN tenants of_owner ON of_owner.name = o.parent
             WHERE t.name = its_name
               AND (o.name IN (t.parent, up.parent) OR o.parent IN (t.parent, up.parent)
                    OR of_owner.parent = up.parent))
    $$""",
    """
    CREATE FUNCTION charges_fit() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        wrong record;
        node record;
    BEGIN
        -- By keys, row by row, and no further than it takes: nodes of envelopes for any GPU, and
        -- the tree of own ones, are not looked at.
        SELECT e.tenant || '/' || e.name AS its, j.tenant, e.tenant AS owner, o.job_id, o.attempt,
               o.rank, e.gpu_type, e.pool, e.labels, o.lent INTO wrong
          FROM opened o
          JOIN envelopes e ON e.id = o.envelope_id
          JOIN LATERAL (SELECT tenant FROM jobs WHERE id = o.job_id OFFSET 0) j ON true
         WHERE CASE WHEN o.lent OR j.tenant = e.tenant THEN false
                    ELSE NOT tenants_are_near(j.tenant, e.tenant) END
            OR CASE WHEN e.gpu_type IS NULL AND e.pool IS NULL AND e.labels = '{}' THEN false
                    ELSE (SELECT e.pool <> n.pool OR lower(e.gpu_type) <> lower(n.gpu_type)
                                 OR (e.labels <> '{}' AND NOT n.labels @> e.labels)
                            FROM placements p JOIN nodes n ON n.id = p.node_id
                           WHERE (p.job_id, p.attempt, p.rank) = (o.job_id, o.attempt, o.rank))
               END
         ORDER BY o.id LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        IF NOT (wrong.lent OR wrong.tenant = wrong.owner
                OR tenants_are_near(wrong.tenant, wrong.owner)) THEN
            RAISE EXCEPTION
                'envelope % does not pay for tenant %: % is no parent, sibling, grandparent, aunt '
                'or cousin of it', wrong.its, wrong.tenant, wrong.owner
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'charges_tenant';
        END IF;
        SELECT n.* INTO node
          FROM placements p JOIN nodes n ON n.id = p.node_id
         WHERE (p.job_id, p.attempt, p.rank) = (wrong.job_id, wrong.attempt, wrong.rank);
        RAISE EXCEPTION 'envelope % is for %, and node % is %', wrong.its,
            concat_ws(', ', wrong.gpu_type, 'pool ' || wrong.pool,
                      CASE WHEN wrong.labels <> '{}' THEN wrong.labels::text END),
            node.id,
            concat_ws(', ', node.gpu_type, 'pool ' || node.pool,
                      CASE WHEN wrong.labels <> '{}' THEN node.labels::text END)
            USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'charges_selector';
    END $$""",
    """CREATE TRIGGER charges_fit AFTER INSERT ON charges REFERENCING NEW TABLE AS opened
       FOR EACH STATEMENT EXECUTE FUNCTION charges_fit()""",
)
