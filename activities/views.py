"""Reading jobs, nodes and pools for people: the client and the console show these."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.deadlines import COMING_START, judgment_of_job
from longshore.activities.job_selection import label_conditions, like
from longshore.activities.placements import SETTLED
from longshore.activities.prices.rows import forget_series, store_series
from longshore.activities.prices.views import price_view, with_prices
from longshore.activities.risen import with_classes
from longshore.activities.snapshot import WAITS_SINCE
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_pools import pool_and_trouble
from longshore.activities.stored_specs import stored_error, why_unreadable
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.errors import NotFoundError, SpecError, StoredError
from longshore.models.job import JobSpec, Tier
from longshore.models.job_status import JobState
from longshore.models.labels import Selector
from longshore.models.moment import says_begin
from longshore.models.node import HostFirmware, NodeState
from longshore.models.placement import Decision
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan, Spared
from longshore.models.price_series import PriceSeries
from longshore.models.problems import beyond_bounds, describe_all
from longshore.models.resources import WHOLE
from longshore.models.views import (
    SPEC_UNREADABLE,
    UNREADABLE,
    AttemptView,
    GPUView,
    JobView,
    NodeView,
    PartView,
    PoolView,
)
from longshore.models.visible import shown
from longshore.scheduling.durations import says_learnt

_LABELS = TypeAdapter(dict[str, str])
_FIRMWARE = TypeAdapter(tuple[HostFirmware, ...])
MOST_ATTEMPTS = 50
"""Of one job that are read: the last ones."""


class Views:
    """Read-only views of the capacity database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def jobs(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        states: frozenset[JobState] = frozenset(),
        labels: Selector = (),
        named: str | None = None,
        name: str | None = None,
        ids: tuple[str, ...] = (),
        ended_since: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[JobView, ...]:
        """Return the newest jobs first, at most `limit`; an empty filter takes all.

        `named` is the form of their names, such as ``a-*``. With `ended_since` none that ended
        before. `after` is the id of the last one of the page before.
        """
        asked = {
            "pool": pool, "tenant": tenant, "name": name, "ids": list(ids), "since": ended_since,
            "states": [state.value for state in states], "after": after,
            "named": named and like(named),
        }  # fmt: skip
        asked = {name: value for name, value in asked.items() if value}
        wanted, values = label_conditions(labels)
        query, values = _of_jobs(asked, wanted), asked | values | {"limit": limit}
        async with self._database.transaction() as connection:
            rows = (await connection.execute(text(query), values)).mappings().all()
            now = await clock(connection)
            found = await with_classes(connection, [_job(row, now) for row in rows], now)
            return await with_prices(connection, found)

    async def id_of(self, ref: str) -> str:
        """Return the id of the job with this id, or of the newest of this name.

        Raises NotFoundError.
        """
        async with self._database.transaction() as connection:
            job_id = await connection.scalar(text(_ID_OF), {"ref": ref})
        if job_id is None:
            raise NotFoundError(f"no job {shown(ref)}: `longshore jobs --all` lists them")
        return job_id

    async def job(self, ref: str) -> JobView:
        """Return the job with this id, or the newest of this name. Raises NotFoundError."""
        found = await self.jobs(ids=(ref,)) or await self.jobs(name=ref, limit=1)
        if not found:
            raise NotFoundError(f"no job {shown(ref)}: `longshore jobs --all` lists them")
        return found[0]

    async def spec(self, job_id: str) -> JobSpec:
        """Return what was submitted as this job. Raises NotFoundError, and StoredError where what
        is stored cannot be read."""
        async with self._database.transaction() as connection:
            found = await connection.execute(
                text("SELECT spec FROM jobs WHERE id = :id"), {"id": job_id}
            )
            row = found.one_or_none()
        if row is None:
            raise NotFoundError(f"no job {shown(job_id)}: `longshore jobs --all` lists them")
        what = f"what is stored of job {job_id}"
        try:
            return JobSpec.as_known(row.spec)
        except ValidationError as error:
            raise stored_error(what, row.spec, error) from error
        except (TypeError, KeyError, AttributeError, ValueError) as error:  # no mapping at all
            raise StoredError(what, (f"{what}: {why_unreadable(row.spec)}",)) from error

    async def why_unreadable(self, job_id: str) -> str:
        """Return why what was submitted as this job cannot be read; empty where it can."""
        async with self._database.transaction() as connection:
            spec = await connection.scalar(
                text("SELECT spec FROM jobs WHERE id = :id"), {"id": job_id}
            )
        return why_unreadable(spec)

    async def last_decision(self, job_id: str) -> tuple[Decision | None, RowMapping | None]:
        """Return what the last cycle said of a queued job, and its queue row."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_QUEUED), {"id": job_id})
            row = rows.mappings().first()
        if row is None or row["decision"] is None:
            return None, row
        return Decision.model_validate(row["decision"]), row

    async def making_room(self, job_id: str) -> PreemptionPlan | None:
        """Return the plan that preempts running jobs for a queued one; None without one."""
        async with self._database.transaction() as connection:
            plan = await connection.scalar(text(_MAKING_ROOM), {"id": job_id})
        return None if plan is None else PreemptionPlan.model_validate(plan)

    async def spared(self, job_id: str) -> tuple[Spared, ...]:
        """Return the running jobs that would make room for a queued one, and are left alone for a
        time because they were preempted lately, by the last preemption plan."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(_SPARED), {"id": job_id})
            return tuple(Spared.model_validate(dict(row)) for row in rows.mappings())

    async def gave_way(self, job_id: str) -> PreemptionPlan | None:
        """Return the plan that preempted a job last, or does now; None if it never was."""
        async with self._database.transaction() as connection:
            plan = await connection.scalar(text(_GAVE_WAY), {"id": job_id})
        return None if plan is None else PreemptionPlan.model_validate(plan)

    async def saving(self, job_id: str) -> CheckpointDecision | None:
        """Return what was decided last about a save of a job; None where nobody has looked."""
        async with self._database.transaction() as connection:
            decision = await connection.scalar(
                text("SELECT decision FROM checkpoint_decisions WHERE job_id = :id"),
                {"id": job_id},
            )
        return None if decision is None else CheckpointDecision.model_validate(decision)

    async def attempts(self, job_id: str) -> tuple[AttemptView, ...]:
        """Return the last attempts of a job, oldest first, with what each has or had."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(
                text(_ATTEMPTS), {"id": job_id, "limit": MOST_ATTEMPTS}
            )
            return tuple(
                AttemptView.model_validate(dict(row))
                for row in sorted(rows.mappings(), key=lambda row: row["attempt"])
            )

    async def placed_by(self, job_id: str) -> Decision | None:
        """Return the decision that placed the last attempt of a job; None before its first."""
        async with self._database.transaction() as connection:
            decision = await connection.scalar(text(_PLACED_BY), {"id": job_id})
        return None if decision is None else Decision.model_validate(decision)

    async def nodes(
        self, *, pool: str | None = None, with_gone: bool = False
    ) -> tuple[NodeView, ...]:
        """Return the nodes by id, with who holds each GPU."""
        where = {"pool": pool, "gone": with_gone}
        async with self._database.transaction() as connection:
            # Nodes first: one that registers in between is not seen without its GPUs.
            nodes = (await connection.execute(text(_NODES), where)).mappings().all()
            all_gpus = (await connection.execute(text(_GPUS), where)).mappings().all()
            leases: dict[tuple[str, int], list[RowMapping]] = {}
            for row in (await connection.execute(text(_LEASES), where)).mappings():
                leases.setdefault((row["node_id"], row["gpu_index"]), []).append(row)
            gpus: dict[str, list[GPUView]] = {}
            for row in all_gpus:
                held = leases.get((row["node_id"], row["index"]), [])
                gpus.setdefault(row["node_id"], []).append(_gpu(row, held))
            return tuple(_node(row, tuple(gpus.get(row["id"], ()))) for row in nodes)

    async def pools(self) -> tuple[PoolView, ...]:
        async with self._database.transaction() as connection:
            pools = [_pool(row) for row in (await connection.execute(text(POOLS))).mappings()]
            return tuple([await _with_price(connection, pool) for pool in pools])


async def set_pool(
    connection: AsyncConnection, spec: PoolSpec, prices: PriceSeries | None = None
) -> None:
    """Store a pool's settings, with the series of `prices` that was read from the source that
    they name; the pool is made where it is new. Raises SpecError where they have more than they
    may."""
    if problems := beyond_bounds(spec):
        raise SpecError(f"pool {spec.name}", problems)
    await connection.execute(
        text(
            "INSERT INTO pools (name, spec) VALUES (:name, CAST(:spec AS jsonb))"
            " ON CONFLICT (name) DO UPDATE SET spec = excluded.spec"
        ),
        {"name": spec.name, "spec": spec.model_dump_json()},
    )
    await forget_series(connection, spec.name, [spec.price.source] if spec.price else [])
    if spec.price is not None and prices is not None:
        now = await clock(connection)
        await store_series(connection, spec.name, spec.price.source, prices, now)


def _pool(row: RowMapping) -> PoolView:
    spec, trouble = pool_and_trouble(row["name"], row["spec"])
    return PoolView(spec=spec, trouble=trouble, **_without(row, "name", "spec"))


async def _with_price(connection: AsyncConnection, pool: PoolView) -> PoolView:
    if pool.spec.price is None:
        return pool
    price = await price_view(connection, pool.spec, await clock(connection))
    return pool.model_copy(update={"price": price})


def _job(stored: Mapping[Any, Any], now: datetime) -> JobView:
    learnt = stored_learnt(stored["learnt"])
    said = says_learnt(learnt) if learnt else ""
    row = {**stored, "labels": stored["labels"] or {}, "learnt": said}
    try:
        found = _with_end(_with_begin(JobView.model_validate(row), now))
    except ValidationError as error:
        # Somebody has written into the row by hand. The list shows the others, and says so of it.
        wrong = {field: _UNREADABLE[str(field)] for field in {m["loc"][0] for m in error.errors()}}
        why = "; ".join(describe_all(error, row)) if row["has_fields"] else "must be a mapping"
        what = f"its last decision {UNREADABLE}" if wrong.keys() <= _DECIDED else SPEC_UNREADABLE
        found = JobView.model_validate({**row, **wrong, "reason": f"{what}: {why}"})
    if row["deadline_at"] is None:
        return found
    judgment = judgment_of_job(found, stored, now)
    return found.model_copy(update={"deadline": judgment})


def _with_begin(job: JobView, now: datetime) -> JobView:
    """Return a job that is held with when it begins, as far as that is to come."""
    if job.state is not JobState.HELD or job.begins_at is None:
        return job
    if not job.begin_only and job.begins_at <= now:
        return job
    said = says_begin(job.begins_at, now, "" if job.begin_only else "held")
    return job.model_copy(update={"reason": said})


def _with_end(job: JobView) -> JobView:
    """Return a job that runs with when it will have run for as long as it may."""
    limit, since = job.max_duration, job.started_at
    if job.state is not JobState.RUNNING or limit is None or since is None:
        return job
    return job.model_copy(update={"ends_by": since + limit})


_UNREADABLE = {
    "tier": Tier.FLEX, "priority": 0, "gpus": 0, "malleable": None, "gpu_type": None,
    "milli": WHOLE, "mig": None, "counted_as": None, "estimated_start": None, "start_range": None,
    "labels": {},    "max_duration": None, "start_below": None,
}  # fmt: skip
"""What a list shows of what it cannot read. All else the database bounds."""
_DECIDED = {"counted_as", "estimated_start", "start_range"}
"""What of it is no part of a spec: a cycle has written it."""


def _gpu(row: RowMapping, leases: Sequence[RowMapping]) -> GPUView:
    lent_to = next((lease["job_id"] for lease in leases if lease["borrowed_from"]), None)
    held = (lease for lease in leases if not lease["borrowed_from"])
    whole = next((lease for lease in held if lease["milli"] == WHOLE), None)
    parts = tuple(
        PartView(
            job_id=lease["job_id"], job_name=lease["job_name"], vram=lease["vram_mb"] / 1000,
            milli=lease["milli"], mig=lease["mig_profile"], slices=lease["slices"],
        )
        for lease in leases
        if lease is not whole and not lease["borrowed_from"]
    )  # fmt: skip
    return GPUView(
        index=row["index"], model=row["model"], vram=row["vram_mb"] / 1000,
        vram_used=row["vram_mb_used"] / 1000, job_id=whole["job_id"] if whole else None,
        job_name=whole["job_name"] if whole else None, mig=row["in_mig_mode"],
        spare=bool(whole and whole["spare"]), lent_to=lent_to,
        milli_used=sum(part.milli for part in parts), parts=parts,
    )  # fmt: skip


def _node(row: RowMapping, gpus: tuple[GPUView, ...]) -> NodeView:
    idle = all(gpu.job_id is None and not gpu.parts for gpu in gpus)
    values = _without(
        row, "cpu_milli", "cpu_milli_used", "ram_mb", "ram_mb_used", "storage_mb_s",
        "storage_mb_s_used", "milliwatts", "milliwatts_used",
    )  # fmt: skip
    storage, power = row["storage_mb_s"], row["milliwatts"]
    try:
        _LABELS.validate_python(row["labels"], strict=True)
    except ValidationError:
        said = "its labels cannot be read as they are stored"
        values |= {"labels": {}, "state_reason": values["state_reason"] or said}
    try:
        _FIRMWARE.validate_python(row["firmware"])
    except ValidationError:
        said = "what its firmware is cannot be read as it is stored"
        values |= {"firmware": (), "state_reason": values["state_reason"] or said}
    return NodeView(
        **values, gpus=gpus, drained=row["state"] == NodeState.DRAINING.value and idle,
        cpus=row["cpu_milli"] / 1000, cpus_used=row["cpu_milli_used"] / 1000,
        ram=row["ram_mb"] / 1000, ram_used=row["ram_mb_used"] / 1000,
        storage_bandwidth=None if storage is None else storage / 1000,
        storage_used=row["storage_mb_s_used"] / 1000,
        power=None if power is None else power / 1000,
        power_used=row["milliwatts_used"] / 1000,
    )  # fmt: skip


def _without(row: RowMapping, *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


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
           coalesce(j.spec->'milli', '1000') AS milli, j.spec->'mig' AS mig,
           j.spec->'labels' AS labels, j.spec->'max_duration' AS max_duration,
           CASE WHEN j.ended_at IS NOT NULL THEN j.end_state
                WHEN p.ended_at IS NULL AND p.attempt IS NOT NULL THEN 'RUNNING'
                WHEN a.held OR (a.id IS NOT NULL AND j.begins_at > clock_timestamp()) THEN 'HELD'
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
               j.begins_at > clock_timestamp(), false) AS begin_only,
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
                ELSE 0 END AS claimed
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
placed for tells of those that it had then."""

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


def _of_jobs(asked: Mapping[str, Any], wanted: Sequence[str]) -> str:
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


_ID_OF = """
    SELECT coalesce(
        (SELECT id FROM jobs WHERE id = :ref),
        (SELECT id FROM jobs WHERE name = :ref ORDER BY submitted_at DESC, id LIMIT 1))
"""

_QUEUED = f"""
    SELECT job_id, attempt, held, decision, decided_at, queued_at, request, attained, can_stop,
           duration_known, learnt, tenant, {WAITS_SINCE} AS waits_since
      FROM queue WHERE job_id = :id
"""

_MAKING_ROOM = f"""
    SELECT d.plan
      FROM preemptions d
      JOIN placements p ON p.job_id = d.job_id AND p.attempt = d.attempt AND p.ended_at IS NULL
     WHERE d.for_job = :id AND NOT {SETTLED}
     ORDER BY d.decided_at DESC LIMIT 1
"""

_SPARED = """
    SELECT s.job_id, s.until
      FROM queue q
     CROSS JOIN LATERAL jsonb_to_recordset(q.spared) AS s (job_id text, until timestamptz)
     WHERE q.job_id = :id AND s.until > clock_timestamp()
       AND EXISTS (SELECT FROM placements p WHERE p.job_id = s.job_id AND p.ended_at IS NULL)
     ORDER BY s.until, s.job_id
"""

_GAVE_WAY = """
    SELECT plan FROM preemptions WHERE job_id = :id ORDER BY attempt DESC LIMIT 1
"""

_ATTEMPTS = """
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
           SELECT p.ended_at IS NOT NULL AND NOT p.spare
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
Those of which rank 0 ended alike ended with the attempt, an instant apart."""

_PLACED_BY = """
    SELECT decision FROM placements WHERE job_id = :id AND NOT spare
     ORDER BY attempt DESC, rank LIMIT 1
"""

_GPUS = """
    SELECT g.node_id, g.index, g.model, g.vram_mb, g.vram_mb_used, g.mig IS NOT NULL AS in_mig_mode
      FROM gpus g JOIN nodes n ON n.id = g.node_id
     WHERE (CAST(:pool AS text) IS NULL OR n.pool = :pool)
       AND (:gone OR n.state NOT IN ('GONE'))
     ORDER BY g.node_id, g.index
"""

_LEASES = """
    SELECT l.node_id, l.gpu_index, l.job_id, j.name AS job_name, l.vram_mb, l.milli, l.slices,
           l.mig_profile, p.spare, l.borrowed_from
      FROM leases l JOIN nodes n ON n.id = l.node_id JOIN jobs j ON j.id = l.job_id
      JOIN placements p ON p.job_id = l.job_id AND p.attempt = l.attempt AND p.rank = l.rank
     WHERE l.ended_at IS NULL AND (CAST(:pool AS text) IS NULL OR n.pool = :pool)
       AND (:gone OR n.state NOT IN ('GONE'))
     ORDER BY l.node_id, l.gpu_index, l.milli DESC, l.slices, l.job_id
"""

_NODES = """
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
