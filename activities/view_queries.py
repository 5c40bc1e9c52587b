"""The queries that views of jobs, nodes and pools are read with."""

from collections.abc import Mapping, Sequence
from typing import Any

from longshore.activities.deadlines import COMING_START, START_KEPT
from longshore.activities.placements import SETTLED
from longshore.activities.snapshot import WAITS_SINCE
from longshore.models.job_status import JobState

_JOBS = f"""
    SELECT j.id, j.name, j.tenant, j.pool, jsonb_typeof(j.spec) = 'object' AS has_fields,
           j.spec->'tier' AS tier,
           j.spec->'priority' AS priority, j.spec->'gpu_type' AS gpu_type,
           CASE WHEN jsonb_typeof(j.spec->'malleable') IS DISTINCT FROM 'object'
                THEN j.spec->'gpus'
                WHEN q.job_id IS NULL AND r.gpus IS NOT NULL THEN to_jsonb(r.gpus)
                WHEN jsonb_typeof(j.spec->'malleable'->'desired') = 'number'
                THEN j.spec->'malleable'->'desired'
                ELSE j.spec->'malleable'->'max' END AS gpus,
           j.spec->'malleable' AS malleable,
           coalesce(j.spec->'milli', '1000') AS milli,
           coalesce(j.spec->'vram_per_gpu', '0') AS vram_per_gpu, j.spec->'mig' AS mig,
           jsonb_typeof(j.spec->'engine') IS NOT DISTINCT FROM 'object' AS runs_engine,
           j.spec->'labels' AS labels, j.spec->'max_duration' AS max_duration,
           CASE WHEN j.ended_at IS NOT NULL THEN j.end_state
                WHEN p.ended_at IS NULL AND p.attempt IS NOT NULL THEN 'RUNNING'
                WHEN a.held OR (a.id IS NOT NULL AND j.begins_at > statement_timestamp())
                     THEN 'HELD'
                WHEN a.id IS NOT NULL THEN
                    CASE WHEN EXISTS (SELECT FROM array_slots s
                                        JOIN placements sp ON sp.job_id = s.job_id
                                       WHERE s.array_id = a.id AND sp.ended_at IS NULL)
                           OR EXISTS (SELECT FROM array_slots s
                                        JOIN elements e ON e.job_id = s.job_id
                                       WHERE s.array_id = a.id AND e.state = 'RUNNING')
                         THEN 'RUNNING' ELSE 'QUEUED' END
                WHEN q.held AND q.price_since IS NULL THEN 'HELD'
                WHEN q.job_id IS NOT NULL THEN 'QUEUED'
                ELSE 'RETRYING' END AS state,
           greatest(coalesce(q.attempt, 0), coalesce(p.attempt, 0)) AS attempt,
           p.node_id, coalesce(p.gpu_indices, '{{}}') AS gpu_indices,
           coalesce(p.slices, 0) AS slices,
           coalesce(r.nodes, '{{}}') AS nodes, coalesce(r.spares, '{{}}') AS spares,
           CASE WHEN r.spares IS NULL THEN '{{}}'
                ELSE ARRAY(SELECT b.job_id FROM placements b
                            WHERE b.borrowed_from = j.id AND b.ended_at IS NULL
                              AND b.kept_at IS NULL ORDER BY 1) END AS lent_to,
           coalesce(r.node_gpus, '[]') AS node_gpus,
           CASE WHEN a.id IS NULL THEN coalesce(n.simulated, false)
                ELSE EXISTS (SELECT FROM array_slots s
                               JOIN placements sp ON sp.job_id = s.job_id
                               JOIN nodes sn ON sn.id = sp.node_id
                              WHERE s.array_id = a.id AND sn.simulated) END AS simulated,
           j.submitted_at, j.begins_at, j.deadline_at, j.late_since,
           j.spec->'expected_duration' AS expected_duration,
           j.ended_at IS NULL AND coalesce(q.begin_only, NOT a.held AND
               j.begins_at > statement_timestamp(), false) AS begin_only,
           j.spec->'start_below' AS start_below,
           coalesce(q.held AND q.price_since IS NOT NULL, false) AS waits_for_price,
           coalesce(q.waited, p.waited, interval '0') AS waited,
           CASE WHEN q.job_id IS NULL THEN p.decision->'counted_as'
                ELSE q.decision->'counted_as' END AS counted_as,
           q.queued_at, p.placed_at AS started_at, f.placed_at AS first_started_at, j.ended_at,
           j.failure, j.exit_code,
           CASE WHEN j.ended_at IS NOT NULL THEN j.message
                WHEN q.job_id IS NOT NULL THEN coalesce(q.decision->>'reason', '')
                WHEN p.ended_at IS NULL AND p.attempt IS NOT NULL
                     THEN coalesce(i.reason, p.decision->>'reason', '')
                          || CASE WHEN p.kept_at IS NULL THEN ''
                                  ELSE '; the GPUs are its own since that job gave them up' END
                ELSE coalesce(p.end_message, '') END AS reason,
           coalesce(c.start, q.decision->>'estimated_start') AS estimated_start,
           CASE WHEN c.start IS NULL THEN q.decision->'start_range' END AS start_range,
           {START_KEPT} AS start_kept,
           CASE WHEN j.ended_at IS NOT NULL THEN NULL WHEN q.job_id IS NOT NULL THEN q.learnt
                WHEN p.ended_at IS NULL THEN p.learnt END AS learnt,
           CASE WHEN a.id IS NOT NULL AND j.ended_at IS NULL THEN (
                SELECT json_object_agg(state, number)
                  FROM (SELECT state, count(*) AS number FROM elements
                         WHERE array_id = a.id AND newest GROUP BY state) e)
                END AS elements,
           CASE WHEN a.id IS NOT NULL AND j.ended_at IS NULL THEN (
                SELECT count(*) - count(DISTINCT job_id) FROM elements
                 WHERE array_id = a.id AND state = 'RUNNING')
                ELSE 0 END AS claimed,
           CASE WHEN a.id IS NOT NULL AND j.ended_at IS NULL THEN (
                SELECT count(*) FROM array_slots s JOIN queue sq ON sq.job_id = s.job_id
                 WHERE s.array_id = a.id AND sq.decision->>'kind' = 'SET_ASIDE')
                ELSE 0 END AS slots_aside
      FROM jobs j
      LEFT JOIN arrays a ON a.id = j.id
      LEFT JOIN queue q ON q.job_id = j.id
      LEFT JOIN LATERAL (SELECT * FROM placements WHERE job_id = j.id AND NOT spare
                          ORDER BY attempt DESC, ended_at IS NOT NULL, rank LIMIT 1) p ON true
      LEFT JOIN LATERAL (SELECT array_agg(node_id ORDER BY rank) FILTER (WHERE NOT spare) AS nodes,
                                json_agg(gpu_indices ORDER BY rank) FILTER (WHERE NOT spare)
                                    AS node_gpus,
                                sum(cardinality(gpu_indices)) FILTER (WHERE NOT spare) AS gpus,
                                array_agg(node_id ORDER BY rank)
                                    FILTER (WHERE spare AND ended_at IS NULL) AS spares
                           FROM placements
                          WHERE job_id = j.id AND attempt = p.attempt
                            AND (ended_at IS NULL
                                 OR j.spec->'malleable'->'in_place' IS DISTINCT FROM 'true'
                                 OR ended_at >= p.ended_at
                                 OR (end_reason, end_message) = (p.end_reason, p.end_message))
                        ) r ON true
      LEFT JOIN LATERAL (SELECT format('%s GPU%s on %s; %s', r.gpus,
                                       CASE WHEN r.gpus = 1 THEN '' ELSE 's' END,
                                       CASE WHEN cardinality(r.nodes) > 8
                                            THEN cardinality(r.nodes) || ' nodes'
                                            ELSE array_to_string(r.nodes, ', ') END,
                                       c.said) AS reason
                           FROM (SELECT placed_at AS at, decision->>'reason' AS said
                                   FROM placements
                                  WHERE job_id = j.id AND attempt = p.attempt AND joined
                                  UNION ALL
                                 SELECT ended_at, end_message FROM placements
                                  WHERE job_id = j.id AND attempt = p.attempt AND NOT spare
                                    AND ended_at IS NOT NULL) c
                          ORDER BY c.at DESC LIMIT 1) i
             ON p.ended_at IS NULL AND j.spec->'malleable'->'in_place' = 'true'
      LEFT JOIN LATERAL (SELECT placed_at FROM placements WHERE job_id = j.id
                          UNION ALL
                         SELECT sp.placed_at FROM array_slots s
                           JOIN placements sp ON sp.job_id = s.job_id
                          WHERE s.array_id = a.id
                          ORDER BY placed_at LIMIT 1) f ON true
      LEFT JOIN nodes n ON n.id = p.node_id
{COMING_START}"""
"""Of a job that has changed its size in place, why it has the nodes that it has now: what it was
placed for tells of those that it had then. With `clock_timestamp()`, which may change within a
statement, PostgreSQL would read all jobs to list the newest."""

_WHERE = {
    "pool": "pool = :pool",
    "tenant": "tenant = :tenant",
    "name": "name = :name",
    "named": "name LIKE :named",
    "ids": "id = ANY(:ids)",
    "states": "state IN (SELECT unnest(CAST(:states AS text[])))",
    "since": "(ended_at IS NULL OR ended_at > :since)",
    "after": "submitted_at <= (SELECT submitted_at FROM jobs WHERE id = :after)"
    " AND (submitted_at < (SELECT submitted_at FROM jobs WHERE id = :after) OR id > :after)",
}
_RUNS = (
    "id = ANY(ARRAY(SELECT job_id FROM placements WHERE ended_at IS NULL UNION"
    " SELECT s.array_id FROM array_slots s JOIN placements p ON p.job_id = s.job_id"
    " WHERE p.ended_at IS NULL UNION SELECT array_id FROM elements WHERE state = 'RUNNING'))"
)
_NO_SLOTS = "NOT EXISTS (SELECT FROM array_slots s WHERE s.job_id = j.id)"
"""A list has an array once, and not its slots, unless it is asked for them by id or name."""
_ENDED, _OPEN = "ended_at IS NOT NULL", "ended_at IS NULL"
_DERIVED = {JobState.QUEUED, JobState.HELD, JobState.RUNNING, JobState.RETRYING}
"""The states that a job has here which has not ended: where all of them are asked for, none has to
be derived."""


def of_jobs(asked: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Return the query for the jobs that were asked for, of which all `wanted` holds.

    It says what was asked, and nothing of the rest: PostgreSQL keeps its plan, and one that has
    to do for all that could be asked reads all jobs.
    """
    states = {JobState(value) for value in asked.get("states", ())}
    all_open = states >= _DERIVED and not any(state.ended for state in states)
    asked = {name: value for name, value in asked.items() if name != "states" or not all_open}
    where = [*(_WHERE[name] for name in asked), *wanted]
    # What follows from the states, and PostgreSQL does not see.
    if states:
        if states == {JobState.RUNNING}:
            where.append(_RUNS)
        if all(state.ended for state in states):
            where.append(_ENDED)
        if not any(state.ended for state in states):
            where.append(_OPEN)
    if not asked.keys() & {"ids", "name"}:
        where.append(_NO_SLOTS)
    only = " AND ".join(where) or "true"
    return f"SELECT * FROM ({_JOBS}) AS j WHERE {only} ORDER BY submitted_at DESC, id LIMIT :limit"


ID_OF = """
    SELECT coalesce(
        (SELECT id FROM jobs WHERE id = :ref),
        (SELECT id FROM jobs WHERE name = :ref ORDER BY submitted_at DESC, id LIMIT 1))
"""

QUEUED = f"""
    SELECT job_id, attempt, held, decision, decided_at, queued_at, request, attained, can_stop,
           duration_known, learnt, tenant, submitted_at, {WAITS_SINCE} AS waits_since
      FROM queue WHERE job_id = :id
"""

MAKING_ROOM = f"""
    SELECT d.plan
      FROM preemptions d
      JOIN placements p ON p.job_id = d.job_id AND p.attempt = d.attempt AND p.ended_at IS NULL
     WHERE d.for_job = :id AND NOT {SETTLED}
     ORDER BY d.decided_at DESC LIMIT 1
"""

MADE_ROOM = """
    SELECT plan FROM preemptions WHERE for_job = :id AND for_attempt = :attempt
     ORDER BY decided_at DESC LIMIT 1
"""

TOOK_SPARES = """
    SELECT s.job_id, s.node_id, s.gpu_indices, s.ended_at AS at
      FROM placements p
      JOIN placements s ON s.node_id = p.node_id AND s.spare AND s.ended_at <= p.placed_at
     WHERE p.job_id = :id AND p.attempt = :attempt
       AND s.end_reason = :preempted AND s.end_message = :message
     ORDER BY s.job_id, s.node_id
"""
"""On the nodes of an attempt."""

SPARED = "SELECT spared FROM queue WHERE job_id = :id"

RUNNING_OF = """
    SELECT DISTINCT job_id FROM placements WHERE job_id = ANY(:ids) AND ended_at IS NULL
"""

GAVE_WAY = """
    SELECT plan FROM preemptions WHERE job_id = :id ORDER BY attempt DESC LIMIT 1
"""

ATTEMPTS = """
    SELECT p.attempt, min(p.placed_at) AS placed_at,
           CASE WHEN bool_or(p.ended_at IS NULL) THEN NULL ELSE max(p.ended_at) END AS ended_at,
           (array_agg(p.end_reason ORDER BY p.spare, l.left_it, p.ended_at, p.rank))[1]
               AS end_reason,
           (array_agg(p.end_message ORDER BY p.spare, l.left_it, p.ended_at, p.rank))[1]
               AS end_message,
           coalesce((array_agg(p.decision->>'reason' ORDER BY p.spare, p.rank))[1], '') AS reason,
           json_agg(json_build_object(
               'node_id', p.node_id, 'rank', p.rank, 'gpu_indices', p.gpu_indices,
               'slices', p.slices, 'spare', p.spare, 'simulated', n.simulated,
               'left_at', CASE WHEN l.left_it THEN p.ended_at END,
               'joined_at', CASE WHEN p.joined THEN p.placed_at END,
               'join_reason', coalesce(CASE WHEN p.joined THEN p.decision->>'reason' END, ''),
               'end_reason', CASE WHEN l.left_it THEN p.end_reason END,
               'end_message', CASE WHEN l.left_it THEN p.end_message ELSE '' END
           ) ORDER BY p.spare, p.rank) AS shares
      FROM placements p JOIN nodes n ON n.id = p.node_id
      JOIN jobs j ON j.id = p.job_id
     CROSS JOIN LATERAL (
           SELECT p.ended_at IS NOT NULL AND p.spare
                  AND EXISTS (SELECT FROM placements o
                               WHERE o.job_id = p.job_id AND o.attempt = p.attempt AND o.rank = 0
                                 AND (o.ended_at IS NULL
                                      OR o.ended_at > p.ended_at + interval '1 second'))
               OR p.ended_at IS NOT NULL AND NOT p.spare
                  AND coalesce(j.spec->'malleable'->'in_place' = 'true', false)
                  AND EXISTS (SELECT FROM placements o
                               WHERE o.job_id = p.job_id AND o.attempt = p.attempt AND o.rank = 0
                                 AND (o.ended_at IS NULL
                                      OR o.ended_at > p.ended_at
                                     AND (o.end_reason, CASE p.end_reason WHEN 'resized'
                                                        THEN o.end_message ELSE '' END)
                                      <> (p.end_reason, CASE p.end_reason WHEN 'resized'
                                                        THEN p.end_message ELSE '' END)))
                  AS left_it) l
     WHERE p.job_id = :id
     GROUP BY p.attempt
     ORDER BY p.attempt DESC LIMIT :limit
"""
"""A rank of a job that changes its size in place has left where the attempt went on without it.
Those of which rank 0 ended alike ended with the attempt, an instant apart. So has what stands by
for a gang, where it went on for more than that."""

PLACED_BY = """
    SELECT decision FROM placements WHERE job_id = :id AND NOT spare
     ORDER BY attempt DESC, rank LIMIT 1
"""

GPUS = """
    SELECT g.node_id, g.index, g.model, g.vram_mb, g.vram_mb_used, g.mig IS NOT NULL AS in_mig_mode
      FROM gpus g JOIN nodes n ON n.id = g.node_id
     WHERE (CAST(:pool AS text) IS NULL OR n.pool = :pool)
       AND (:gone OR n.state NOT IN ('GONE'))
     ORDER BY g.node_id, g.index
"""

LEASES = """
    SELECT l.node_id, l.gpu_index, l.job_id, j.name AS job_name, l.vram_mb, l.milli, l.slices,
           l.mig_profile, p.spare, l.borrowed_from,
           jsonb_typeof(j.spec->'engine') IS NOT DISTINCT FROM 'object' AS runs_engine
      FROM leases l JOIN nodes n ON n.id = l.node_id JOIN jobs j ON j.id = l.job_id
      JOIN placements p ON p.job_id = l.job_id AND p.attempt = l.attempt AND p.rank = l.rank
     WHERE l.ended_at IS NULL AND (CAST(:pool AS text) IS NULL OR n.pool = :pool)
       AND (:gone OR n.state NOT IN ('GONE'))
     ORDER BY l.node_id, l.gpu_index, l.milli DESC, l.slices, l.job_id
"""

NODES = """
    SELECT id, pool, tier, provider, state, state_reason, epoch, simulated, gpu_type, cpu_milli,
           cpu_milli_used, ram_mb, ram_mb_used, storage_mb_s, storage_mb_s_used, milliwatts,
           milliwatts_used, expires_at, registered_at, hostname, clearing,
           container_runtime, labels, conformance,
           conformance <> accepted IS TRUE AS changed, coalesce(firmware, '[]') AS firmware
      FROM nodes n
     WHERE (CAST(:pool AS text) IS NULL OR pool = :pool)
       AND (:gone OR state NOT IN ('GONE'))
     ORDER BY id
"""

POOLS = """
    SELECT p.name, p.spec,
           (SELECT count(*) FROM nodes n WHERE n.pool = p.name
               AND n.state IN ('READY', 'DRAINING')) AS nodes,
           EXISTS (SELECT FROM nodes n WHERE n.pool = p.name AND n.simulated
                      AND n.state <> 'GONE') AS simulated,
           (SELECT count(*) FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE n.pool = p.name
               AND n.state IN ('READY', 'DRAINING')) AS gpus,
           (SELECT count(DISTINCT (l.node_id, l.gpu_index)) FROM leases l
              JOIN nodes n ON n.id = l.node_id
             WHERE n.pool = p.name AND l.ended_at IS NULL) AS gpus_used,
           queue_length(p.name) - h.held AS queued, h.held,
           (SELECT count(*) FROM queue WHERE pool = p.name AND NOT held
               AND decision->>'kind' = 'SET_ASIDE') AS set_aside,
           (SELECT count(DISTINCT l.job_id) FROM placements l JOIN nodes n ON n.id = l.node_id
             WHERE n.pool = p.name AND l.ended_at IS NULL) AS running,
           c.committed_at AS last_cycle_at, c.took_ms AS last_cycle_ms
      FROM pools p
     CROSS JOIN LATERAL (SELECT count(*) AS held
                           FROM queue
                          WHERE pool = p.name AND held AND price_since IS NULL) h
      LEFT JOIN LATERAL (SELECT committed_at, took_ms FROM cycles WHERE pool = p.name
                          ORDER BY committed_at DESC LIMIT 1) c ON true
     ORDER BY p.name
"""
"""Of the queue it counts rows from what a cycle noted on; indexes know those that are held or set
aside."""
