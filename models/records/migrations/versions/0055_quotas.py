"""Quotas of a tenant and all below it: what they may hold at one time, and how many may wait.

What the database refuses, whatever the code does: placements with which a tenant and those below
it would hold more GPUs, nodes, running jobs or nodes alone than a quota of it, or of one above it,
says; and a new job in a queue above `max_queued`.

It counts what is live under a lock on the rows of the tenants that have such a quota, by name:
of two that want the last GPU the second counts what the first has placed. Where nobody has a quota
nothing is locked, and nothing counted. A quota that is lowered ends nothing: what does not add is
not held against it, nor is an attempt that a spare goes on with.
"""

from alembic import op

revision = "0055"
down_revision = "0054"


def upgrade() -> None:
    for statement in (*CHECKS, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


CHECKS = (
    "CREATE INDEX tenants_with_quotas ON tenants (name) WHERE quotas <> '{}'",
    # What SQL computes with; the rest of the quotas is read by who packs.
    """
    ALTER TABLE tenants ADD CONSTRAINT tenants_quotas_in_bounds
        CHECK (whole_or_absent(quotas -> 'max_nodes', 0, 1000000000)
               AND whole_or_absent(quotas -> 'max_jobs', 0, 1000000000)
               AND whole_or_absent(quotas -> 'max_queued', 0, 1000000000)
               AND whole_or_absent(quotas -> 'sensitive_nodes', 0, 1000000000)
               AND CASE coalesce(jsonb_typeof(quotas -> 'max_gpus'), 'null')
                   WHEN 'null' THEN true
                   WHEN 'number' THEN (quotas ->> 'max_gpus')::numeric BETWEEN 0 AND 1000000000
                   ELSE false END)""",
)

FUNCTIONS = (
    """
    CREATE FUNCTION quota_exceeded(its_name text, field text, before numeric, more numeric,
                                   most numeric) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF more > 0 AND before + more > most THEN
            RAISE EXCEPTION 'quota of tenant %: %: % + % > %', its_name, field,
                trim_scale(before), trim_scale(more), trim_scale(most)
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'quota';
        END IF;
    END $$""",
    """
    CREATE FUNCTION placements_within_quotas() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        kept record;
        held record;
    BEGIN
        IF NOT EXISTS (SELECT FROM tenants
                        WHERE quotas <> '{}'
                          AND quotas ?| '{max_gpus,max_nodes,max_jobs,sensitive_nodes}') THEN
            RETURN NULL;
        END IF;
        FOR kept IN
            SELECT t.name, t.quotas FROM tenants t
             WHERE t.quotas <> '{}'
               AND t.quotas ?| '{max_gpus,max_nodes,max_jobs,sensitive_nodes}'
               AND t.name IN (SELECT above.name
                                FROM (SELECT DISTINCT j.tenant
                                        FROM placed p JOIN jobs j ON j.id = p.job_id) AS its,
                                     LATERAL tenants_above(its.tenant) AS above)
             ORDER BY t.name FOR NO KEY UPDATE OF t
        LOOP
            SELECT coalesce(sum(amount) FILTER (WHERE NOT is_new), 0) / 1000.0 AS gpus_before,
                   coalesce(sum(amount) FILTER (WHERE is_new), 0) / 1000.0 AS gpus_more,
                   count(DISTINCT node_id) FILTER (WHERE NOT is_new) AS nodes_before,
                   count(DISTINCT node_id) AS nodes,
                   count(DISTINCT job_id) FILTER (WHERE NOT is_new) AS jobs_before,
                   count(DISTINCT job_id) AS jobs,
                   count(DISTINCT node_id) FILTER (WHERE alone AND NOT is_new) AS alone_before,
                   count(DISTINCT node_id) FILTER (WHERE alone) AS alone
              INTO held
              FROM (SELECT p.job_id, p.node_id, p.alone,
                           cardinality(p.gpu_indices)
                           * CASE WHEN p.slices > 0 THEN bit_count(p.slices::bit(8)) * 125
                                  ELSE p.milli END AS amount,
                           n.job_id IS NOT NULL
                           -- An attempt that a spare goes on with holds what the last one held.
                           AND NOT EXISTS (SELECT FROM placements o
                                            WHERE o.job_id = p.job_id
                                              AND o.attempt = p.attempt - 1
                                              AND o.end_reason = 'swapped'
                                              AND o.ended_at >= now()) AS is_new
                      FROM placements p
                      JOIN jobs j ON j.id = p.job_id
                      LEFT JOIN placed n
                        ON (n.job_id, n.attempt, n.rank) = (p.job_id, p.attempt, p.rank)
                     WHERE p.ended_at IS NULL
                       AND j.tenant IN (SELECT name FROM tenants_below(kept.name))) AS live;
            PERFORM quota_exceeded(kept.name, 'max_gpus', held.gpus_before, held.gpus_more,
                                   (kept.quotas ->> 'max_gpus')::numeric),
                    quota_exceeded(kept.name, 'max_nodes', held.nodes_before,
                                   held.nodes - held.nodes_before,
                                   (kept.quotas ->> 'max_nodes')::numeric),
                    quota_exceeded(kept.name, 'max_jobs', held.jobs_before,
                                   held.jobs - held.jobs_before,
                                   (kept.quotas ->> 'max_jobs')::numeric),
                    quota_exceeded(kept.name, 'sensitive_nodes', held.alone_before,
                                   held.alone - held.alone_before,
                                   (kept.quotas ->> 'sensitive_nodes')::numeric);
        END LOOP;
        RETURN NULL;
    END $$""",
    # Of a job that is there already, and comes back into the queue, nothing is asked.
    """
    CREATE FUNCTION queue_within_quotas() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        kept record;
        waiting bigint;
        more bigint;
    BEGIN
        IF NOT EXISTS (SELECT FROM tenants WHERE quotas <> '{}' AND quotas ? 'max_queued')
           OR NOT EXISTS (SELECT FROM came WHERE attempt = 1) THEN
            RETURN NULL;
        END IF;
        FOR kept IN
            SELECT t.name, t.quotas FROM tenants t
             WHERE t.quotas <> '{}' AND t.quotas ? 'max_queued'
               AND t.name IN (SELECT above.name
                                FROM (SELECT DISTINCT j.tenant
                                        FROM came c JOIN jobs j ON j.id = c.job_id
                                       WHERE c.attempt = 1) AS its,
                                     LATERAL tenants_above(its.tenant) AS above)
             ORDER BY t.name FOR NO KEY UPDATE OF t
        LOOP
            SELECT count(*), count(c.job_id) INTO waiting, more
              FROM queue q
              JOIN jobs j ON j.id = q.job_id
              LEFT JOIN came c ON c.job_id = q.job_id AND c.attempt = 1
             WHERE j.tenant IN (SELECT name FROM tenants_below(kept.name));
            PERFORM quota_exceeded(kept.name, 'max_queued', waiting - more, more,
                                   (kept.quotas ->> 'max_queued')::numeric);
        END LOOP;
        RETURN NULL;
    END $$""",
)

TRIGGERS = (
    """CREATE TRIGGER placements_within_quotas AFTER INSERT ON placements
       REFERENCING NEW TABLE AS placed
       FOR EACH STATEMENT EXECUTE FUNCTION placements_within_quotas()""",
    """CREATE TRIGGER queue_within_quotas AFTER INSERT ON queue
       REFERENCING NEW TABLE AS came
       FOR EACH STATEMENT EXECUTE FUNCTION queue_within_quotas()""",
)
