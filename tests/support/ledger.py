"""The activities on one database, run as Temporal runs them, and a look at the rows they leave."""

import dataclasses
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import text
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from longshore.activities.cycle import CycleActivities
from longshore.activities.database import Database
from longshore.activities.holdings import HoldingActivities
from longshore.activities.joins import JoinActivities
from longshore.activities.queue import QueueActivities
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.registry import RegistryActivities
from longshore.activities.resizes import ResizeActivities
from longshore.activities.signals import Signals
from longshore.activities.spares import SpareActivities
from longshore.activities.views import set_pool
from longshore.models import proof
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult, JobState
from longshore.models.messages import (
    CycleReply,
    CycleRequest,
    EnqueueReply,
    EnqueueRequest,
    FinishRequest,
    LeaseEnd,
    ReleaseRequest,
    job_workflow_id,
    pool_workflow_id,
)
from longshore.models.mig import positions_of
from longshore.models.node import GPUInventory, Inventory, Liveness, NodeIdentity
from longshore.models.node_messages import Registered, Registration
from longshore.models.placement import PlacementKey
from longshore.models.pool import Growth, PoolSpec
from longshore.models.protocol import PROTOCOL
from tests.support.control import on_task_queue

TOKEN = "the join token of this test"
SUBMITTED_AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
WAITING_FOR_LOCKS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
"""Counts the sessions of the database that wait for another to commit."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Ledger:
    """One capacity database with one pool, and every activity that works on it."""

    def __init__(self, database: Database, temporal: Client, pool: str) -> None:
        # Nobody works on the pool: a signal that comes during a workflow task shows up late.
        self._nobody = f"nobody-{pool}"
        signals = Signals(on_task_queue(temporal, self._nobody))
        self.database = database
        self.temporal = temporal
        self.pool = pool
        self.queue = QueueActivities(database, signals)
        self.cycles = CycleActivities(database, signals)
        self.spares = SpareActivities(database, signals)
        self.resizes = ResizeActivities(database, signals)
        self.joins = JoinActivities(database)
        self.holdings = HoldingActivities(database)
        self.registry = RegistryActivities(
            database, signals, TOKEN, Liveness.within(timedelta(seconds=12))
        )

    async def run(
        self,
        activity: Callable[[Request], Awaitable[Reply]],
        request: Request,
        *,
        attempt: int = 1,
    ) -> Reply:
        """Run an activity as its `attempt`-th delivery."""
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(
            environment.info, attempt=attempt, scheduled_time=datetime.now(UTC)
        )
        return await environment.run(activity, request)

    async def keep_order_of_age(self) -> None:
        """Make the pool as one of before that was stored without a score: what a step does shows
        without ranks."""
        async with self.database.transaction() as connection:
            await set_pool(connection, PoolSpec(name=self.pool))

    async def rows(self, statement: str, **values: object) -> list[dict[str, Any]]:
        async with self.database.transaction() as connection:
            found = await connection.execute(text(statement), values)
            return [dict(row) for row in found.mappings()] if found.returns_rows else []

    async def value(self, statement: str, **values: object) -> Any:
        rows = await self.rows(statement, **values)
        return next(iter(rows[0].values())) if rows else None

    async def set_growth(self, growth: Growth) -> None:
        async with self.database.transaction() as connection:
            await set_pool(connection, PoolSpec(name=self.pool, growth=growth))

    async def register(
        self,
        node: str = "node-a",
        *,
        boot: str = "boot-1",
        gpus: int = 2,
        mig: Collection[int] = (),
        delivery: int = 1,
        **inventory: Any,
    ) -> Registered:
        """Admit a node of 80 GB GPUs of 700 W, some in MIG mode, 16 cores and 64 GB."""
        request = registration(self.pool, node, boot=boot, gpus=gpus, mig=mig, **inventory)
        return await self.run(self.registry.register_node, request, attempt=delivery)

    async def enqueue(
        self,
        job: str,
        *,
        attempt: int = 1,
        held: bool = False,
        delivery: int = 1,
        path_behind: float = 0.0,
        **spec: Any,
    ) -> EnqueueReply:
        return await self.run(
            self.queue.enqueue,
            EnqueueRequest(
                job_id=job, attempt=attempt, spec=self.spec(**spec), submitted_at=SUBMITTED_AT,
                held=held, path_behind=path_behind,
            ),
            attempt=delivery,
        )  # fmt: skip

    async def cycle(self, cycle_id: str, *, delivery: int = 1) -> CycleReply:
        request = CycleRequest(pool=self.pool, cycle_id=cycle_id)
        return await self.run(self.cycles.run_cycle, request, attempt=delivery)

    async def release(self, job: str, attempt: int = 1, *, delivery: int = 1) -> None:
        key = PlacementKey(job_id=job, attempt=attempt)
        request = ReleaseRequest(key=key, reason=LeaseEnd.HELD, message="held")
        await self.run(self.queue.release, request, attempt=delivery)

    async def finish(
        self, job: str, attempt: int = 1, *, delivery: int = 1, exit_code: int = 0
    ) -> None:
        result = JobResult(
            job_id=job, state=JobState.SUCCEEDED, exit_code=exit_code, attempts=attempt
        )
        key = PlacementKey(job_id=job, attempt=attempt)
        request = FinishRequest(key=key, reason=LeaseEnd.FINISHED, result=result)
        await self.run(self.queue.finish, request, attempt=delivery)

    def spec(self, **fields: Any) -> JobSpec:
        return JobSpec.model_validate(
            {"name": "job", "command": "true", "pool": self.pool, **fields}
        )

    async def add_job(self, job: str) -> None:
        """Write a job's record, and nothing else."""
        async with self.database.transaction() as connection:
            await ensure_pool(connection, self.pool)
        await self.rows(
            "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
            " VALUES (:id, 'job', 'default', :pool, CAST(:spec AS jsonb), now(), '')",
            id=job, pool=self.pool, spec=self.spec().model_dump_json(),
        )  # fmt: skip

    async def place(self, job: str, gpus: Sequence[int] = (0,), **fields: Any) -> None:
        """Write a placement with its leases as a cycle does, unless the database refuses."""
        values = {
            "job": job, "attempt": 1, "rank": 0, "node": "node-a", "epoch": 1, "gpus": list(gpus),
            "cpu": 1000, "ram": 1000, "storage": 0, "power": 0, "vram": 1000, "milli": 1000,
            "slices": 0, "mig": None, "alone": False, "idle": [], "from": None,
            "cycle": f"by-hand/{uuid.uuid4().hex}", "pool": self.pool, **fields,
        }  # fmt: skip
        async with self.database.transaction() as connection:
            for statement in _PLACE_BY_HAND:
                await connection.execute(text(statement), values)

    async def drift(self) -> list[dict[str, Any]]:
        """Return every node and GPU whose use is not the sum of its live rows."""
        return await self.rows(_DRIFT)

    async def pokes(self) -> int:
        """Return how many pokes the pool's workflow has been sent."""
        handle = self.temporal.get_workflow_handle(pool_workflow_id(self.pool))
        return await self._signals_of(handle.id, "poke")

    async def told(self, job: str, signal: str) -> int:
        """Return how many times the job's workflow was sent this signal."""
        return await self._signals_of(job_workflow_id(job), signal)

    async def signals(self, job: str, signal: str) -> list[dict[str, Any]]:
        """Return what the job's workflow was told by this signal, each time."""
        handle = self.temporal.get_workflow_handle(job_workflow_id(job))
        history = await handle.fetch_history()
        sent = [event.workflow_execution_signaled_event_attributes for event in history.events]
        return [
            json.loads(each.input.payloads[0].data) for each in sent if each.signal_name == signal
        ]

    async def _signals_of(self, workflow_id: str, signal: str) -> int:
        handle = self.temporal.get_workflow_handle(workflow_id)
        try:
            history = await handle.fetch_history()
        except RPCError:
            return 0
        names = [
            event.workflow_execution_signaled_event_attributes.signal_name
            for event in history.events
        ]
        return names.count(signal)

    @asynccontextmanager
    async def listening(self, *jobs: str) -> AsyncIterator[None]:
        """Let each job have a workflow that takes signals and does nothing."""
        handles = [
            await self.temporal.start_workflow(
                "Listener", id=job_workflow_id(job), task_queue=self._nobody
            )
            for job in jobs
        ]
        try:
            yield
        finally:
            for handle in handles:
                await handle.terminate()


def registration(
    pool: str,
    node: str,
    *,
    boot: str = "boot-1",
    gpus: int = 2,
    mig: Collection[int] = (),
    token: str = TOKEN,
    block: str | None = None,
    expires_at: datetime | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
    **inventory: Any,
) -> Registration:
    """Return what the agent of a node of 80 GB GPUs of 700 W, 16 cores and 64 GB sends."""
    identity = NodeIdentity(
        node_id=node, agent_id=f"agent-{node}", boot_id=boot, pool=pool, block_id=block,
        expires_at=expires_at, labels=dict(labels),
    )  # fmt: skip
    found = Inventory(
        **{"gpu_type": "H100", "cpus": 16, "ram": 64, "simulated": True, **inventory},
        gpus=tuple(
            GPUInventory(
                index=i, model="H100", vram=80, power=700,
                mig=positions_of("H100", 80) if i in mig else None,
            )
            for i in range(gpus)
        ),
    )  # fmt: skip
    claim = Registration(
        identity=identity, inventory=found, issued_at=datetime.now(UTC), protocol=PROTOCOL
    )
    return proof.sign(token, claim)


_PLACE_BY_HAND = (
    "INSERT INTO cycles (id, pool, queued, placed, refused, took_ms)"
    " VALUES (:cycle, :pool, 1, 1, 0, 0)",
    "INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,"
    " cpu_milli, ram_mb, storage_mb_s, milliwatts, vram_mb, milli, slices, mig_profile,"
    " expected_seconds, decision, alone, idle, borrowed_from)"
    " VALUES (:job, :attempt, :rank, :cycle, :node, :epoch, :gpus, :cpu, :ram, :storage, :power,"
    " :vram, :milli, :slices, :mig, 60, '{}', :alone, :idle, :from)",
    "INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, milli, slices,"
    " mig_profile, tenant, borrowed_from)"
    " SELECT :job, :attempt, :rank, :node, :epoch, g, :vram, :milli, :slices, :mig, 'default',"
    "        :from"
    "   FROM unnest(CAST(:gpus AS integer[])) AS g",
)

_DRIFT = """
    SELECT n.id, CAST(NULL AS integer) AS gpu, n.cpu_milli_used AS used,
           coalesce(sum(p.cpu_milli), 0) AS live
      FROM nodes n LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL
       AND (p.borrowed_from IS NULL OR p.kept_at IS NOT NULL)
     GROUP BY n.id HAVING n.cpu_milli_used <> coalesce(sum(p.cpu_milli), 0)
    UNION ALL
    SELECT n.id, NULL, n.ram_mb_used, coalesce(sum(p.ram_mb), 0)
      FROM nodes n LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL
       AND (p.borrowed_from IS NULL OR p.kept_at IS NOT NULL)
     GROUP BY n.id HAVING n.ram_mb_used <> coalesce(sum(p.ram_mb), 0)
    UNION ALL
    SELECT n.id, NULL, n.storage_mb_s_used, coalesce(sum(p.storage_mb_s), 0)
      FROM nodes n LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL
       AND (p.borrowed_from IS NULL OR p.kept_at IS NOT NULL)
     GROUP BY n.id HAVING n.storage_mb_s_used <> coalesce(sum(p.storage_mb_s), 0)
    UNION ALL
    SELECT n.id, NULL, n.milliwatts_used, coalesce(sum(p.milliwatts), 0)
      FROM nodes n LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL
       AND (p.borrowed_from IS NULL OR p.kept_at IS NOT NULL)
     GROUP BY n.id HAVING n.milliwatts_used <> coalesce(sum(p.milliwatts), 0)
    UNION ALL
    SELECT g.node_id, g.index, g.vram_mb_used, coalesce(sum(l.vram_mb), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.vram_mb_used <> coalesce(sum(l.vram_mb), 0)
    UNION ALL
    SELECT g.node_id, g.index, g.milli_used, coalesce(sum(l.milli), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.milli_used <> coalesce(sum(l.milli), 0)
    UNION ALL
    SELECT g.node_id, g.index, g.slices_used, coalesce(sum(l.slices), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.slices_used <> coalesce(sum(l.slices), 0)
    UNION ALL
    SELECT p.node_id, NULL, cardinality(p.gpu_indices), count(l.id)
      FROM placements p LEFT JOIN leases l
        ON l.job_id = p.job_id AND l.attempt = p.attempt AND l.rank = p.rank
       AND l.ended_at IS NULL
     WHERE p.ended_at IS NULL
     GROUP BY p.job_id, p.attempt, p.rank HAVING count(l.id) <> cardinality(p.gpu_indices)
"""
