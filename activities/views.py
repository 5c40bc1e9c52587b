"""Reading jobs, nodes and pools for people: the client and the console show these."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.deadlines import judgment_of_job
from longshore.activities.job_selection import label_conditions, like
from longshore.activities.prices.rows import forget_series, store_series
from longshore.activities.prices.views import price_view, with_prices
from longshore.activities.risen import with_classes
from longshore.activities.stored_decisions import stored_decision, stored_spared
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_nodes import stored_labels
from longshore.activities.stored_pools import pool_and_trouble
from longshore.activities.stored_specs import stored_error, why_unreadable
from longshore.activities.view_queries import (
    ATTEMPTS,
    GAVE_WAY,
    GPUS,
    ID_OF,
    LEASES,
    MADE_ROOM,
    MAKING_ROOM,
    NODES,
    PLACED_BY,
    POOLS,
    QUEUED,
    RUNNING_OF,
    SPARED,
    TOOK_SPARES,
    of_jobs,
)
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.errors import NotFoundError, SpecError, StoredError
from longshore.models.job import JobSpec, Tier
from longshore.models.job_status import JobState
from longshore.models.labels import Selector
from longshore.models.messages import LeaseEnd
from longshore.models.moment import says_begin
from longshore.models.node import HostFirmware, NodeState
from longshore.models.placement import Decision
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan, Spared, TakenSpare
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
from longshore.scheduling.preemption.due import given_up_for

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
        query, values = of_jobs(asked, wanted), asked | values | {"limit": limit}
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
            job_id = await connection.scalar(text(ID_OF), {"ref": ref})
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
            rows = await connection.execute(text(QUEUED), {"id": job_id})
            row = rows.mappings().first()
        if row is None:
            return None, None
        return stored_decision(Decision, row["decision"]), row

    async def making_room(self, job_id: str) -> PreemptionPlan | None:
        """Return the plan that preempts running jobs for a queued one; None without one."""
        async with self._database.transaction() as connection:
            plan = await connection.scalar(text(MAKING_ROOM), {"id": job_id})
        return stored_decision(PreemptionPlan, plan)

    async def made_room(self, job_id: str, attempt: int) -> PreemptionPlan | None:
        """Return the plan that had others preempted for an attempt; None without one."""
        asked = {"id": job_id, "attempt": attempt}
        async with self._database.transaction() as connection:
            plan = await connection.scalar(text(MADE_ROOM), asked)
        return stored_decision(PreemptionPlan, plan)

    async def took_spares(self, job_id: str, attempt: int) -> tuple[TakenSpare, ...]:
        """Return what gangs gave up for an attempt of what stood by for them."""
        asked = {
            "id": job_id, "attempt": attempt, "preempted": LeaseEnd.PREEMPTED.value,
            "message": given_up_for(job_id),
        }  # fmt: skip
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(TOOK_SPARES), asked)
            return tuple(TakenSpare.model_validate(dict(row)) for row in rows.mappings())

    async def spared(self, job_id: str) -> tuple[Spared, ...]:
        """Return the running jobs that would make room for a queued one, and are left alone for a
        time because they were preempted lately, by the last preemption plan."""
        async with self._database.transaction() as connection:
            found = stored_spared(await connection.scalar(text(SPARED), {"id": job_id}))
            asked = {"ids": [each.job_id for each in found]}
            running = set(await connection.scalars(text(RUNNING_OF), asked)) if found else set()
            now = await clock(connection)
        found = [each for each in found if each.job_id in running and each.until > now]
        return tuple(sorted(found, key=lambda each: (each.until, each.job_id)))

    async def gave_way(self, job_id: str) -> PreemptionPlan | None:
        """Return the plan that preempted a job last, or does now; None if it never was."""
        async with self._database.transaction() as connection:
            plan = await connection.scalar(text(GAVE_WAY), {"id": job_id})
        return stored_decision(PreemptionPlan, plan)

    async def saving(self, job_id: str) -> CheckpointDecision | None:
        """Return what was decided last about a save of a job; None where nobody has looked."""
        async with self._database.transaction() as connection:
            decision = await connection.scalar(
                text("SELECT decision FROM checkpoint_decisions WHERE job_id = :id"),
                {"id": job_id},
            )
        return stored_decision(CheckpointDecision, decision)

    async def attempts(self, job_id: str) -> tuple[AttemptView, ...]:
        """Return the last attempts of a job, oldest first, with what each has or had."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(text(ATTEMPTS), {"id": job_id, "limit": MOST_ATTEMPTS})
            return tuple(
                AttemptView.model_validate(dict(row))
                for row in sorted(rows.mappings(), key=lambda row: row["attempt"])
            )

    async def placed_by(self, job_id: str) -> Decision | None:
        """Return the decision that placed the last attempt of a job; None before its first."""
        async with self._database.transaction() as connection:
            decision = await connection.scalar(text(PLACED_BY), {"id": job_id})
        return stored_decision(Decision, decision)

    async def nodes(
        self, *, pool: str | None = None, with_gone: bool = False
    ) -> tuple[NodeView, ...]:
        """Return the nodes by id, with who holds each GPU."""
        where = {"pool": pool, "gone": with_gone}
        async with self._database.transaction() as connection:
            # Nodes first: one that registers in between is not seen without its GPUs.
            nodes = (await connection.execute(text(NODES), where)).mappings().all()
            all_gpus = (await connection.execute(text(GPUS), where)).mappings().all()
            leases: dict[tuple[str, int], list[RowMapping]] = {}
            for row in (await connection.execute(text(LEASES), where)).mappings():
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
    "milli": WHOLE, "vram_per_gpu": 0.0, "mig": None, "counted_as": None,
    "estimated_start": None, "start_range": None, "labels": {}, "max_duration": None,
    "start_below": None,
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
            milli=lease["milli"], runs_engine=lease["runs_engine"], mig=lease["mig_profile"],
            slices=lease["slices"],
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
    if stored_labels(row["labels"]) is None:
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
