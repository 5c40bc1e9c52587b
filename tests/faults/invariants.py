"""What must hold after any fault once all is quiet: database, Temporal and machine agree."""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import job_workflow_id, node_workflow_id, pool_workflow_id
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeStatus
from tests.faults.fleet import PATIENCE, Fleet
from tests.faults.journal import ended, violations
from tests.support.waiting import eventually

_LEASED_TWICE = """
    SELECT a.id, b.id AS other, a.node_id, a.gpu_index, a.job_id, b.job_id AS other_job
      FROM leases a JOIN leases b
        ON a.node_id = b.node_id AND a.gpu_index = b.gpu_index AND a.id < b.id
       AND tstzrange(a.started_at, a.ended_at) && tstzrange(b.started_at, b.ended_at)
       AND (a.borrowed_from, b.borrowed_from) IS DISTINCT FROM (NULL, a.job_id)
       AND (a.borrowed_from, b.borrowed_from) IS DISTINCT FROM (b.job_id, NULL)
       AND (a.milli = 1000 OR b.milli = 1000 OR a.slices & b.slices <> 0
            OR lease_kind(a.milli, a.mig_profile) <> lease_kind(b.milli, b.mig_profile))
"""
_RUNS_BESIDE_ITS_LENDER = """
    SELECT b.job_id, b.borrowed_from, b.node_id, b.gpu_index
      FROM leases b JOIN leases a
        ON a.node_id = b.node_id AND a.gpu_index = b.gpu_index AND a.job_id = b.borrowed_from
       AND tstzrange(a.started_at, a.ended_at) && tstzrange(b.started_at, b.ended_at)
      JOIN placements p ON (p.job_id, p.attempt, p.rank) = (a.job_id, a.attempt, a.rank)
     WHERE NOT p.spare
"""
_LENT_BY_NOBODY = """
    SELECT b.job_id, b.borrowed_from, b.node_id, b.gpu_index, b.started_at, b.ended_at
      FROM leases b
     WHERE b.borrowed_from IS NOT NULL
       AND NOT EXISTS (
           SELECT FROM placements first JOIN placements last USING (job_id, rank, node_id, epoch)
            WHERE first.job_id = b.borrowed_from AND first.node_id = b.node_id
              AND first.epoch = b.epoch AND first.lendable AND last.lendable
              AND b.gpu_index = ANY (first.gpu_indices) AND b.gpu_index = ANY (last.gpu_indices)
              AND tstzrange(first.placed_at, first.ended_at) @> b.started_at
              AND last.ended_at > b.ended_at - interval '1 s')
"""
"""A swap may leave a spare as it is: it is lent on in the next attempt. Where both end with their
node, which of the two is first is left open."""
_SHARED_TOO_OFTEN = """
    SELECT a.node_id, a.gpu_index, a.started_at, sum(b.milli) AS milli, sum(b.vram_mb) AS vram_mb
      FROM leases a JOIN leases b
        ON a.node_id = b.node_id AND a.gpu_index = b.gpu_index
       AND tstzrange(b.started_at, b.ended_at) @> a.started_at
      JOIN gpus g ON g.node_id = a.node_id AND g.index = a.gpu_index
     WHERE a.borrowed_from IS NULL AND b.borrowed_from IS NULL
     GROUP BY a.id, a.node_id, a.gpu_index, a.started_at, g.vram_mb
    HAVING sum(b.milli) > 1000 OR sum(b.vram_mb) > g.vram_mb
"""
"""Use rises only where a lease starts: at those moments all live ones are added up."""
_BESIDE_ONE_ALONE = """
    SELECT a.job_id, a.attempt, b.job_id AS other, b.attempt AS of_attempt, a.node_id
      FROM placements a JOIN placements b
        ON a.node_id = b.node_id AND a.job_id <> b.job_id
       AND tstzrange(a.placed_at, a.ended_at) && tstzrange(b.placed_at, b.ended_at)
     WHERE a.alone
"""
MUST_BE_EMPTY = {
    "a GPU was leased twice at one time": _LEASED_TWICE,
    "a GPU was used by a job and by the gang that lends it": _RUNS_BESIDE_ITS_LENDER,
    "a GPU was borrowed that nobody lent": _LENT_BY_NOBODY,
    "a GPU was paid for by the job that borrowed it": (
        "SELECT c.id, b.job_id, b.borrowed_from FROM charges c"
        " JOIN leases b USING (job_id, attempt, rank)"
        " WHERE b.borrowed_from IS NOT NULL"
        " AND tstzrange(c.started_at, c.ended_at) && tstzrange(b.started_at, b.ended_at)"
    ),
    "a GPU was shared beyond its size": _SHARED_TOO_OFTEN,
    "a lease is open": "SELECT job_id, attempt, node_id FROM leases WHERE ended_at IS NULL",
    "a placement is open": (
        "SELECT job_id, attempt, node_id FROM placements WHERE ended_at IS NULL"
    ),
    "a job is still queued": "SELECT job_id, attempt FROM queue",
    "a job has not ended": "SELECT id FROM jobs WHERE ended_at IS NULL",
    "a node's ledger is not at zero": (
        "SELECT id, cpu_milli_used, ram_mb_used, storage_mb_s_used, milliwatts_used FROM nodes"
        " WHERE cpu_milli_used <> 0 OR ram_mb_used <> 0 OR storage_mb_s_used <> 0"
        " OR milliwatts_used <> 0"
    ),
    "a node is held alone by a job that has left": (
        "SELECT id, held_alone_by FROM nodes WHERE held_alone_by IS NOT NULL"
    ),
    "a job ran beside one that holds its node alone": _BESIDE_ONE_ALONE,
    "a charge is open": "SELECT id, job_id, attempt FROM charges WHERE ended_at IS NULL",
    "the sum of an envelope or a cap is not at zero": (
        "SELECT tenant, name, used FROM envelopes WHERE used <> 0 OR lent <> 0"
        " UNION ALL SELECT tenant, name, used FROM funding_caps WHERE used <> 0"
    ),
    "a GPU was paid for twice at one time": (
        "SELECT a.id, b.id AS other FROM charges a JOIN charges b USING (job_id, attempt, rank)"
        " WHERE a.id < b.id AND a.gpu_indices && b.gpu_indices"
        " AND tstzrange(a.started_at, a.ended_at) && tstzrange(b.started_at, b.ended_at)"
    ),
    "a charge is longer than its placement": (
        "SELECT c.id FROM charges c JOIN placements p USING (job_id, attempt, rank)"
        " WHERE c.started_at < p.placed_at"
        " OR c.ended_at > greatest(p.ended_at, c.started_at)"
    ),
    "a charge is outside the window of its envelope": (
        "SELECT c.id FROM charges c JOIN envelopes e ON e.id = c.envelope_id"
        " WHERE c.started_at < e.starts_at"
        " OR c.ended_at > greatest(coalesce(e.ends_at, 'infinity'), c.started_at)"
    ),
    "a GPU's ledger is not at zero": (
        "SELECT node_id, index, vram_mb_used, milli_used, slices_used, kind FROM gpus"
        " WHERE vram_mb_used <> 0 OR milli_used <> 0 OR slices_used <> 0 OR kind IS NOT NULL"
        " OR borrowed_by IS NOT NULL"
    ),
    "an element of an array has not ended": (
        "SELECT array_id, index, attempt, state FROM elements WHERE ended_at IS NULL"
    ),
    "an array is not on record with all its elements": (
        "SELECT a.id, a.elements, count(e.index) AS found FROM arrays a"
        " LEFT JOIN elements e ON e.array_id = a.id AND e.newest"
        " GROUP BY a.id HAVING count(e.index) <> a.elements"
    ),
    "a replica of a service has not ended": (
        "SELECT service, job_id, stage FROM replicas WHERE ended_at IS NULL"
    ),
    "a replica of a service ran, and its job has not ended": (
        "SELECT r.service, r.job_id FROM replicas r LEFT JOIN jobs j ON j.id = r.job_id"
        " WHERE r.attempt > 0 AND j.ended_at IS NULL"
    ),
    "a lease's placement ended at another time": (
        "SELECT l.id FROM leases l JOIN placements p USING (job_id, attempt, rank)"
        " WHERE l.ended_at IS DISTINCT FROM p.ended_at"
        "   AND (l.end_reason <> 'kept' OR l.ended_at IS DISTINCT FROM p.kept_at)"
    ),
}
NOT_PAID_FOR = """
    SELECT p.job_id, p.attempt, p.placed_at, p.ended_at, c.started_at, c.ended_at AS paid_until
      FROM placements p
      JOIN jobs j ON j.id = p.job_id AND j.tenant = %s
      LEFT JOIN LATERAL (
          SELECT min(started_at) AS started_at, max(ended_at) AS ended_at,
                 sum(cardinality(gpu_indices) * (ended_at - started_at)) AS paid
            FROM charges c WHERE (c.job_id, c.attempt, c.rank) = (p.job_id, p.attempt, p.rank)
      ) c ON true
     WHERE c.paid IS DISTINCT FROM cardinality(p.gpu_indices) * (p.ended_at - p.placed_at)
       AND p.ended_at > p.placed_at
"""
"""Of a tenant whose envelope has room for all of its jobs at any time."""
_JOBS = """
    SELECT id, end_state, attempts, spec -> 'malleable' -> 'in_place' = 'true' AS in_place
      FROM jobs
"""
_LIVE = (NodeState.READY.value, NodeState.DRAINING.value)


async def check(
    fleet: Fleet,
    jobs: Sequence[str],
    cancelled: Sequence[str] = (),
    patience: float = PATIENCE,
) -> None:
    """Wait until these jobs have ended and the nodes are ready; then fail with all that is wrong.

    `jobs` had to succeed, `cancelled` may have been too late for that. Earlier jobs of the fleet
    are looked at again. Raises TimeoutError where a job does not end, AssertionError with all that
    is wrong; what may still be changing, `patience` seconds later.
    """
    async with asyncio.timeout(2 * PATIENCE):
        results = [await fleet.longshore.wait(job_id) for job_id in (*jobs, *cancelled)]
    problems = _of_results(fleet, results, set(cancelled))
    await fleet.all_ready()
    for what, statement in MUST_BE_EMPTY.items():
        problems += [f"{what}: {row}" for row in fleet.rows(statement)]
    problems += await _workflows_without_row(fleet, patience)
    assert not problems, "\n".join(problems)
    # A node may be ending at this very moment: first its row, then its workflow.
    await eventually(lambda: _rows_and_workflows_agree(fleet), timeout=patience, interval=0.2)


def _of_results(
    fleet: Fleet, results: Sequence[JobResult], cancelled: AbstractSet[str]
) -> list[str]:
    """Return where what a workflow says of a job is not what row and journal say."""
    rows = {row["id"]: row for row in fleet.rows(_JOBS)}
    journal = fleet.journal.by_job()
    problems: list[str] = []
    for result in results:
        job_id = result.job_id
        lines = journal[job_id]
        problems += violations(lines)
        may_be = (JobState.CANCELLED,) if job_id in cancelled else ()
        if result.state not in (JobState.SUCCEEDED, *may_be):
            problems.append(f"{job_id} ended as {result.state}: {result.message}")
        elif result.state is JobState.SUCCEEDED and not ended(
            lines, result.attempts, in_place=bool(rows.get(job_id, {}).get("in_place"))
        ):
            problems.append(
                f"{job_id} succeeded, but attempt {result.attempts} never came to its end"
            )
        row = rows.get(job_id)
        if row is None or (row["end_state"], row["attempts"]) != (result.state, result.attempts):
            problems.append(f"{job_id}: the workflow says {result}, the database {row}")
    return problems


async def _rows_and_workflows_agree(fleet: Fleet) -> bool:
    """Fail where a row's workflow is not in the state that the row says."""
    problems: list[str] = []
    for row in fleet.rows("SELECT id, end_state FROM jobs"):
        status = await _status(fleet, job_workflow_id(row["id"]))
        if status is not _CLOSED[row["end_state"]]:
            problems.append(f"job {row['id']} ended {row['end_state']}, its workflow is {status}")
    for row in fleet.rows("SELECT name FROM pools"):
        status = await _status(fleet, pool_workflow_id(row["name"]))
        if status is not WorkflowExecutionStatus.RUNNING:
            problems.append(f"the workflow of pool {row['name']} is {status}")
    for row in fleet.rows("SELECT id, state, epoch FROM nodes"):
        workflow_id = node_workflow_id(row["id"])
        running = await _status(fleet, workflow_id) is WorkflowExecutionStatus.RUNNING
        if running is not (row["state"] in _LIVE):
            problems.append(f"node {row}: its workflow runs: {running}")
        elif running:
            handle = fleet.longshore.temporal.get_workflow_handle(workflow_id)
            status = await handle.query("status", result_type=NodeStatus)
            if (status.state, status.epoch) != (row["state"], row["epoch"]):
                problems.append(f"node {row}: its workflow says {status}")
    assert not problems, "\n".join(problems)
    return True


async def _status(fleet: Fleet, workflow_id: str) -> WorkflowExecutionStatus | None:
    """Return how a workflow stands; None where there is none."""
    try:
        handle = fleet.longshore.temporal.get_workflow_handle(workflow_id)
        return (await handle.describe()).status
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def _workflows_without_row(fleet: Fleet, patience: float) -> list[str]:
    """Workflows that nothing in the database knows; the list lags a little behind."""
    known = {job_workflow_id(row["id"]) for row in fleet.rows("SELECT id FROM jobs")}
    query = "WorkflowType = 'JobWorkflow'"
    found: list[str] = []

    async def none_runs() -> bool:
        found[:] = []
        running: list[str] = []
        async for execution in fleet.longshore.temporal.list_workflows(query):
            found.append(execution.id)
            if execution.status is WorkflowExecutionStatus.RUNNING:
                running.append(execution.id)
        assert not running, f"these still run: {running}"
        return True

    try:
        await eventually(none_runs, timeout=patience, interval=0.2)
    except AssertionError as error:
        return [str(error)]
    return [f"{workflow_id} has no row" for workflow_id in found if workflow_id not in known]


_CLOSED = {
    JobState.SUCCEEDED.value: WorkflowExecutionStatus.COMPLETED,
    JobState.FAILED.value: WorkflowExecutionStatus.FAILED,
    JobState.CANCELLED.value: WorkflowExecutionStatus.CANCELED,
    None: WorkflowExecutionStatus.RUNNING,
}
