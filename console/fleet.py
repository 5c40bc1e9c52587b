"""Nodes and jobs, for whoever looks: read once for all that ask, with Temporal or without."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from temporalio.client import Client

from longshore.activities.checkpoints.rows import StoredCheckpoints
from longshore.activities.queue_history import QueueHistories
from longshore.client.api import Longshore
from longshore.client.array_reading import ArrayReading
from longshore.client.funding_reading import FundingReading
from longshore.client.model_registry import ModelReading
from longshore.client.services import ServiceReading
from longshore.client.web_ui import job_url
from longshore.console.answer_cache import Shared
from longshore.models.array_view import ElementView
from longshore.models.cycles import PoolCycles
from longshore.models.dag_view import DagState, DagSummary, DagView
from longshore.models.data import HeldData
from longshore.models.domains import PoolTopology
from longshore.models.durations import DurationsView
from longshore.models.elements import ElementState
from longshore.models.errors import LongshoreError, UnavailableError
from longshore.models.explanation import Explanation
from longshore.models.fund_view import FundView
from longshore.models.funding_use import FundingState, Leases, Payers, Usage, UsedBy
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState
from longshore.models.labels import Selector
from longshore.models.model_registry import ModelView, RuntimeView
from longshore.models.queue_view import QueueHistory, QueueView, StartErrorsView
from longshore.models.schedule import ScheduleView
from longshore.models.service import EvictedReplica, ReplicaView, ServiceView
from longshore.models.settings import Settings
from longshore.models.spending import JobCost
from longshore.models.views import JobView, NodeView, PoolView

KEPT = 1.0
"""Seconds for which the same answer is given to everybody."""
STORE_KEPT = 15.0
"""Seconds for which what the checkpoint store has is: to list it may take many requests."""
PAST_KEPT = 15.0
"""Seconds for which what was is: it hardly changes, and a day of it may be long."""
CONNECT_EVERY = 5.0
"""Seconds between two attempts to reach Temporal while it is away."""
PATIENCE = 3.0
"""Seconds that Temporal gets to answer before the database alone does."""

T = TypeVar("T")


class _Reading(ArrayReading, FundingReading, ModelReading, ServiceReading):
    """Reads without Temporal where that does not answer."""

    def __init__(
        self, settings: Settings, temporal: Callable[[], Awaitable[Client | None]]
    ) -> None:
        super().__init__(settings)
        self._answering = temporal

    async def _temporal(self) -> Client | None:
        return await self._answering()


class Fleet:
    """Reads what the commands read, by the same functions. Changes nothing but what `evict` does.

    Every call may raise UnavailableError. Temporal is looked for when a job is looked at first.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reading = _Reading(settings, self._answering)
        self._longshore: Longshore | None = None
        self._answers: Shared[Hashable, Any] = Shared(KEPT)
        self._stored: Shared[str, StoredCheckpoints] = Shared(STORE_KEPT)
        self._past: Shared[Hashable, Any] = Shared(PAST_KEPT)
        self._connected: Shared[str, Longshore] = Shared(CONNECT_EVERY)

    async def nodes(self, pool: str | None = None, *, gone: bool = False) -> tuple[NodeView, ...]:
        """Return the nodes by id, with who holds each GPU."""
        return await self._shared(
            ("nodes", pool, gone), lambda: self._reading.nodes(pool=pool, with_gone=gone)
        )

    async def holdings(self, node_ids: tuple[str, ...]) -> dict[str, tuple[HeldData, ...]]:
        """Return what the agents of these nodes say that they hold."""
        return await self._shared(("holdings", node_ids), lambda: self._reading.holdings(node_ids))

    async def topology(self, pool: str | None = None) -> tuple[PoolTopology, ...]:
        """Return the domains of one pool, or of all by name. Raises NotFoundError."""
        return await self._shared(("topology", pool), lambda: self._reading.topology(pool))

    async def pools(self) -> tuple[PoolView, ...]:
        """Return the pools by name."""
        return await self._shared(("pools",), self._reading.pools)

    async def cycles(self, pool: str | None = None, *, last: int = 0) -> tuple[PoolCycles, ...]:
        """Return what cycles did and took, of one pool or of all. Raises NotFoundError."""
        return await self._shared(
            ("cycles", pool, last), lambda: self._reading.cycles(pool, last=last)
        )

    async def queue(self, pool: str) -> QueueView:
        """Return who waits in a pool, in order. Raises NotFoundError."""
        return await self._shared(("queue", pool), lambda: self._reading.queue(pool))

    async def queue_history(self, pool: str) -> QueueHistory:
        """Return how many jobs of a pool waited and ran over the past day. Raises
        NotFoundError."""
        histories = QueueHistories(self._reading.database())
        return await self._past.get(("queue", pool), lambda: histories.history(pool))

    async def durations(self, tenant: str | None, name: str | None) -> DurationsView:
        """Return how long jobs run, as is learnt."""
        return await self._past.get(
            ("durations", tenant, name),
            lambda: self._reading.durations(tenant=tenant, name=name),
        )

    async def start_errors(self, pool: str, over: timedelta) -> StartErrorsView:
        """Return how far off the starts were that jobs of a pool were told. Raises
        NotFoundError."""
        return await self._past.get(
            ("start-errors", pool, over), lambda: self._reading.start_errors(pool, over)
        )

    async def funding(self) -> FundingState:
        """Return the tenants and budgets, and who pays for what is in use."""
        return await self._shared(("funding",), self._reading.funding)

    async def usage(self, hours: float, by: UsedBy, tenant: str | None = None) -> Usage:
        """Return the GPU-hours of the last so many hours by class and payer."""

        def read() -> Awaitable[Usage]:
            since = datetime.now(UTC) - timedelta(hours=hours)
            return self._reading.usage(since, by=by, tenant=tenant)

        return await self._past.get(("usage", hours, by, tenant), read)

    async def leases(
        self, at: datetime | None, node_id: str | None, gpu_index: int | None, job: str | None
    ) -> Leases:
        """Return who held GPUs at a moment, or now. Raises NotFoundError."""
        return await self._shared(
            ("leases", at, node_id, gpu_index, job),
            lambda: self._reading.leases(at, node_id=node_id, gpu_index=gpu_index, job=job),
        )

    async def fund(self, ref: str) -> FundView:
        """Return who pays for a job or would, envelope by envelope. Raises NotFoundError, and
        RefusedError for one that has ended."""
        return await self._shared(("fund", ref), lambda: self._reading.fund(ref))

    async def payers(self, ref: str) -> Payers:
        """Return who pays for a job, and who has; nobody where no tenant has a budget. Raises
        NotFoundError."""
        found = await self._shared(("payers", ref), lambda: self._reading.payers(ref))
        return found or Payers()

    async def jobs(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        states: frozenset[JobState] = frozenset(),
        labels: Selector = (),
        named: str | None = None,
        recent: bool = True,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[JobView, ...]:
        """Return jobs, newest first, those after the one with the id `after`; with `recent` none
        that ended more than an hour ago."""
        return await self._shared(
            ("jobs", pool, tenant, states, labels, named, recent, after, limit),
            lambda: self._reading.list(
                pool=pool,
                tenant=tenant,
                states=states,
                labels=labels,
                named=named,
                recent=recent,
                after=after,
                limit=limit,
            ),
        )

    async def dags(
        self,
        *,
        states: frozenset[DagState] = frozenset(),
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[DagSummary, ...]:
        """Return DAGs, newest first, those after the one with the id `after`."""
        return await self._shared(
            ("dags", states, after, limit),
            lambda: self._reading.dags(states=states, after=after, limit=limit),
        )

    async def dag(self, ref: str) -> DagView:
        """Return a DAG in full. Raises NotFoundError."""
        return await self._shared(("dag", ref), lambda: self._reading.dag(ref))

    async def schedules(self) -> tuple[ScheduleView, ...]:
        """Return the schedules by name, with their last runs; only Temporal knows them."""
        return await self._shared(
            ("schedules",), lambda: self._of_temporal(lambda api: api.schedules())
        )

    async def schedule(self, name: str) -> ScheduleView:
        """Return one schedule. Raises NotFoundError."""
        return await self._shared(
            ("schedule", name), lambda: self._of_temporal(lambda api: api.schedule(name))
        )

    async def services(self) -> tuple[ServiceView, ...]:
        """Return the services by name, with their replicas."""
        return await self._shared(("services",), self._reading.services)

    async def service(self, name: str) -> ServiceView:
        """Return one service. Raises NotFoundError."""
        return await self._shared(("service", name), lambda: self._reading.service(name))

    async def slots(self) -> tuple[ReplicaView, ...]:
        """Return the engines of all services."""
        return await self._shared(("slots",), self._reading.slots)

    async def evict(self, job_id: str) -> EvictedReplica:
        """Have one engine stop, and return it. Raises NotFoundError, RefusedError for one that
        stops already, UnavailableError where nothing connects to Temporal, which tells its
        service."""
        api = await self._of_temporal(_connected)
        return await api.evict(job_id)  # not cut short: it is stored before its service is told

    async def models(self) -> tuple[ModelView, ...]:
        """Return the models that may be served, by name."""
        return await self._shared(("models",), self._reading.models)

    async def model(self, name: str) -> ModelView:
        """Return one model. Raises NotFoundError."""
        return await self._shared(("model", name), lambda: self._reading.model(name))

    async def runtimes(self) -> tuple[RuntimeView, ...]:
        """Return the programs that serve models."""
        return await self._shared(("runtimes",), self._reading.runtimes)

    async def runtime(self, name: str) -> RuntimeView:
        """Return one runtime. Raises NotFoundError."""
        return await self._shared(("runtime", name), lambda: self._reading.runtime(name))

    async def report(self, ref: str) -> JobReport:
        """Return one job in full; what Temporal does not say in time is left out, and said.

        Raises NotFoundError.
        """
        return await self._shared(("report", ref), lambda: self._report(ref))

    async def explain(self, ref: str) -> Explanation:
        """Say why a job is where it is. Raises NotFoundError."""
        return await self._shared(("explain", ref), lambda: self._reading.explain(ref))

    async def elements(
        self, ref: str, states: frozenset[ElementState], limit: int
    ) -> tuple[ElementView, ...]:
        """Return elements of an array by index, in any state where none is named. Raises
        NotFoundError."""
        return await self._shared(
            ("elements", ref, states, limit),
            lambda: self._reading.elements(ref, states=states, limit=limit),
        )

    async def array_cost(self, ref: str) -> JobCost:
        """Return what an array has cost so far. Raises NotFoundError."""
        return await self._shared(("array-cost", ref), lambda: self._reading.array_cost(ref))

    async def checkpoints(self, ref: str) -> StoredCheckpoints:
        """Return what the checkpoint store has of a job, newest first. Raises NotFoundError."""
        return await self._stored.get(ref, lambda: self._reading.checkpoints(ref))

    def workflow_url(self, job_id: str) -> str | None:
        """Return where the Temporal Web UI shows a job; None where nobody has said where it is."""
        try:
            return job_url(self._settings, job_id)
        except LongshoreError:
            return None

    async def close(self) -> None:
        await self._reading.close()
        if self._longshore is not None:
            await self._longshore.close()

    async def _report(self, ref: str) -> JobReport:
        known = await self._reading.report(ref)
        try:
            async with asyncio.timeout(PATIENCE):
                return await (await self._temporal()).with_live(known)
        except TimeoutError:
            return known.without_live(
                f"its workflow did not answer within {PATIENCE:g} seconds: Temporal is away, or "
                "no control worker answers (`longshore doctor` says which)"
            )
        except UnavailableError as error:
            return known.without_live(str(error))

    async def _answering(self) -> Client | None:
        """Return Temporal where it is connected, or can be at once."""
        try:
            async with asyncio.timeout(PATIENCE):
                return (await self._temporal()).temporal
        except (TimeoutError, LongshoreError):
            return None

    async def _of_temporal(self, ask: Callable[[Longshore], Awaitable[T]]) -> T:
        """Return what only Temporal knows. Raises UnavailableError where it does not answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await ask(await self._temporal())
        except TimeoutError:
            raise UnavailableError(
                f"Temporal did not answer within {PATIENCE:g} seconds"
            ) from None

    async def _temporal(self) -> Longshore:
        if self._longshore is None:
            self._longshore = await self._connected.get(
                "temporal", lambda: Longshore.connect(self._settings)
            )
        return self._longshore

    async def _shared(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        return cast(T, await self._answers.get(key, read))


async def _connected(api: Longshore) -> Longshore:
    return api
