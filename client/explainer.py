"""What `why` and the report of a job say beside its row, as things are now: who reads it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import RowMapping, text

from longshore.activities.array_views import ArrayViews
from longshore.activities.buying.incoming_capacity import purchases_for, purchases_under_way
from longshore.activities.buying.reasons import BuyingReasons, read_standing
from longshore.activities.dag_views import DagViews
from longshore.activities.database import Database, clock
from longshore.activities.funding.fund import fund_view
from longshore.activities.funding.use import payers_of
from longshore.activities.growth import growth_of
from longshore.activities.preemption_inputs import read_inputs
from longshore.activities.prices.views import why_unpriced
from longshore.activities.queue_entries import QueueEntry, entry_of
from longshore.activities.queue_views import SIMULATED
from longshore.activities.serving.service_views import (
    last_failure,
    leaves_drained,
    runs_an_engine,
    waits_to_load,
)
from longshore.activities.snapshot import (
    is_longer,
    load_nodes,
    load_pool,
    load_recent,
    read_place,
)
from longshore.activities.staged_data import staged_data
from longshore.activities.usage import load_pool_to_plan
from longshore.activities.views import Views
from longshore.client.alone import Alone, Scene, read_scene
from longshore.client.backoff import with_backoff
from longshore.client.explain import explain
from longshore.client.holds import backoff_of, hold_of, told_of
from longshore.client.logs import stderr_tail
from longshore.client.preempt_plan import (
    Turn,
    asks_for_cost,
    cost_of_meeting,
    store_away,
    weighed,
)
from longshore.models.array_view import SlotsAside
from longshore.models.data import StagedData
from longshore.models.deadline import DeadlineCost
from longshore.models.errors import RefusedError, StoredError
from longshore.models.explanation import Explanation
from longshore.models.funding_use import Payers
from longshore.models.growth import GrowthDecision
from longshore.models.job_status import JobState, JobStatus
from longshore.models.node import NodeState
from longshore.models.placement import Decision, PlacementKind, RejectionCode
from longshore.models.pool import PoolSpec
from longshore.models.resize import SizeChange
from longshore.models.settings import Settings
from longshore.models.views import JobView
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.deadline import LikelyDuration
from longshore.scheduling.elastic import changes_of
from longshore.scheduling.fair_tree import part_of
from longshore.scheduling.order import seconds_ahead
from longshore.scheduling.placement.feasibility import why_not_ready
from longshore.scheduling.preemption.payers import says_who_would_pay
from longshore.scheduling.preemption.ways import as_told
from longshore.scheduling.unplannable_jobs import set_aside_unread

if TYPE_CHECKING:
    from temporalio.client import Client

_MOST_WEIGHED = 100
_MOST_PAIRS = 100_000
"""Jobs that wait, and those times nodes, beside which ways to start are weighed of one that is no
engine: all before it are with it, in a tenth of a second."""
_FOR_STATE = RejectionCode.STATE.value
"""In the reason of a job that waits, where nodes are not ready."""


def _to_come(start: datetime | None) -> datetime | None:
    return start if start and start > datetime.now(UTC) else None


def _planned(
    position: Callable[[], int | None], scene: Scene | None, last: Decision | None
) -> tuple[int | None, Alone]:
    with paused():
        return position(), Alone(last) if scene is None else scene.alone(last)


class Explainer:
    """Reads, and changes nothing. Every call may raise UnavailableError."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        temporal: "Callable[[], Awaitable[Client | None]]",
    ) -> None:
        """`temporal` is asked only where the database does not have it all."""
        self._database = database
        self._settings = settings
        self._temporal = temporal
        self._views = Views(database)
        self._reasons = BuyingReasons(database)

    async def explanation(self, job: JobView) -> Explanation:
        """Return why a job is where it is; of a queued one node by node."""
        last, row = await self._views.last_decision(job.id)
        if row is None or job.state.ended:
            return await self._of_one_that_was_placed(job)
        return await self._of_one_that_waits(job, last, row)

    async def _of_one_that_was_placed(self, job: JobView) -> Explanation:
        told = explain(
            job,
            placed=await self._views.placed_by(job.id),
            slots_aside=await self._slots_aside(job),
            blocks=await self._reasons.blocks_of_job(job.id),
            **await self._beside(job),
        )
        more = {"sizes": await self._sizes_of(job), "payers": await self.payers_of(job.id)}
        told = told.model_copy(update=more)
        if not job.state.ended:
            more = {
                "growth": await self._growth_of(job), "data": await self.staged(job),
                **await self._told(job),
                "made_room": await self._views.made_room(job.id, job.attempt),
                "took_spares": await self._views.took_spares(job.id, job.attempt),
            }  # fmt: skip
            if job.state is JobState.RUNNING and (had := await self._views.attempts(job.id)):
                more["spares_gone"] = had[-1].spares_gone
            async with self._database.transaction() as connection:
                notes = [
                    await waits_to_load(connection, job.id),
                    await leaves_drained(connection, job.id),
                ]
            more["headline"] = "; ".join([told.headline, *filter(None, notes)])
            return await self._with_backoff(told.model_copy(update=more))
        attempts = await self._views.attempts(job.id)
        cost = await self._reasons.cost_of_job(job.id)
        return Explanation.model_validate(
            {
                **told.__dict__, "attempts": attempts, "cost": cost,
                "stderr_tail": await self.stderr_tail(job),
            }
        )  # fmt: skip

    async def _of_one_that_waits(
        self, job: JobView, last: Decision | None, row: RowMapping
    ) -> Explanation:
        async with self._database.snapshot() as connection:
            pool = await load_pool_to_plan(connection, job.pool, self._settings.margins)
            position = await read_place(connection, job.pool, job.id, pool.packing)
            nodes = await load_nodes(connection, job.pool)
            recent = await load_recent(connection, job.pool) if pool.packing.rule.learns else ()
            purchases = await purchases_for(connection, pool, job.id)
            standing = await read_standing(connection, pool, job.submitted_at, job.tier, job.id)
            unpriced = await why_unpriced(connection, pool, job)
            simulated = bool(await connection.scalar(text(SIMULATED), {"pool": job.pool}))
            scene = None
            entry = entry_of(row)
            if not isinstance(entry, QueueEntry):  # as the next cycle that looks will have it
                last = set_aside_unread(job.id, entry)
            elif last is None or last.kind is not PlacementKind.SET_ASIDE:
                scene = await read_scene(connection, pool, entry.request, nodes, recent)
            if scene is None:
                coming = await purchases_under_way(connection, pool)
            else:
                coming = await purchases_under_way(connection, pool, scene.job, scene.nodes)
        place, alone = await asyncio.to_thread(_planned, position, scene, last)
        behind = scene.job.path_behind if scene else 0.0
        payers = await self.payers_of(job.id)
        if payers is not None:
            planned = job.state is not JobState.HELD  # else nobody was asked for it
            would = says_who_would_pay(job.id, pool.packing.funding) if planned else ""
            payers = payers.model_copy(update={"waiting": would})
        told = explain(
            job, alone=alone.decision, last=alone.last, decided_at=row["decided_at"],
            position=place or 1,
            path_behind=behind, head_start=timedelta(seconds=seconds_ahead(pool.packing) * behind),
            nodes=len(nodes), growth=pool.growth,
            making_room=await self._views.making_room(job.id),
            spared=await self._views.spared(job.id) if pool.preemption.enabled else (),
            buying=await self._reasons.of_pool(job.pool, job.id) if pool.buying.enabled else None,
            coming=coming, purchases=purchases, standing=standing, kind=alone.kind,
            agent=alone.agent, helps=alone.helps, hold=await self._hold_of(job),
            unpriced=unpriced, unpaid=await self._unpaid(job, pool), also=alone.also,
            **await self._beside(job),
        )  # fmt: skip
        turn = Turn()
        if scene and told.making_room is None and await self._weighs(job, scene, alone.may_stop):
            turn = await self._weighed(job)
        start = told.job.estimated_start
        if turn.says:
            # Its start as jobs end in time counts no turn: the later of two would mislead.
            shown = told.job.model_copy(update={"estimated_start": None, "start_range": None})
            headline = f"{told.headline}; {turn.says}"
            told = told.model_copy(update={"headline": headline, "job": shown})
        more = {
            "weighed": turn.plan and as_told(turn.plan, _to_come(start)),
            "sizes": await self._sizes_of(job), "data": await self.staged(job),
            "meeting": await self._meeting_of(job), "payers": payers,
            "share": part_of(pool.packing, job.tenant), "simulated": simulated,
        }  # fmt: skip
        return told.model_copy(update=more)

    async def _weighs(self, job: JobView, scene: Scene, may_stop: bool) -> bool:
        """Return whether the ways to start are weighed of a job that waits."""
        if job.elements is not None or not scene.pool.preemption.enabled:
            return False
        if scene.job.runs_engine:
            return True
        most = min(_MOST_WEIGHED, _MOST_PAIRS // max(len(scene.nodes), 1))
        async with self._database.transaction() as connection:
            if not (may_stop or await runs_an_engine(connection, job.pool)):
                return False
            return not await is_longer(connection, job.pool, most)

    async def _slots_aside(self, job: JobView) -> SlotsAside | None:
        is_open_array = job.elements is not None and not job.state.ended
        return await ArrayViews(self._database).slots_aside(job.id) if is_open_array else None

    async def _beside(self, job: JobView) -> dict[str, Any]:
        """Return what is told of a job in every state."""
        return {
            "gave_way": await self._views.gave_way(job.id),
            "saving": await self._views.saving(job.id),
            "mutexes": await DagViews(self._database).mutexes_of(job.id),
        }

    async def waiting_for(self, job: JobView) -> dict[str, Any]:
        """Return what is bought for a job that waits, why nothing is, and which nodes are not
        ready where some are: fields of its report."""
        if job.state is not JobState.QUEUED:
            return {}
        async with self._database.transaction() as connection:
            pool = await load_pool(connection, job.pool, self._settings.margins)
            nodes = await load_nodes(connection, job.pool) if _FOR_STATE in job.reason else ()
            purchases = await purchases_for(connection, pool, job.id)
            standing = await read_standing(connection, pool, job.submitted_at, job.tier, job.id)
        not_bought = "" if standing.buys or purchases else standing.says
        not_ready = tuple(
            f"{node.id} {why_not_ready(node)}"
            for node in nodes
            if node.state is not NodeState.READY
        )
        return {"purchases": purchases, "not_bought": not_bought, "not_ready": not_ready}

    async def payers_of(self, job_id: str) -> Payers | None:
        """Return who pays for a job and who has; None where no tenant has a budget."""
        async with self._database.snapshot() as connection:
            return await payers_of(connection, job_id)

    async def staged(self, job: JobView) -> tuple[StagedData, ...]:
        """Return how much of its data is where a job runs or is expected to start."""
        if job.state.ended:
            return ()
        async with self._database.transaction() as connection:
            return await staged_data(connection, job.id)

    async def _told(self, job: JobView) -> dict[str, str]:
        """Return what of its data the process of a job could not have, and what is wrong with its
        checkpoints, as it says itself."""
        if job.state is not JobState.RUNNING:
            return {}
        try:
            spec = await self._views.spec(job.id)
        except StoredError:  # that is told beside
            return {}
        fetches = any(data.source is not None for data in spec.data.values())
        temporal = await self._temporal() if fetches or spec.checkpoint else None
        said = await told_of(temporal, job.id) if temporal else None
        if said is None:
            return {}
        return {"data_missing": said.data_missing, "checkpoint_error": said.checkpoint_error}

    async def stderr_tail(self, job: JobView, node_id: str = "") -> tuple[str, ...]:
        """See `Reading.stderr_tail`."""
        if job.state is not JobState.FAILED or not job.attempt or job.elements is not None:
            return ()
        node_id = node_id or (job.nodes[0] if len(job.nodes) > 1 else "")
        return await stderr_tail(self._settings.resolve_log_store(), job.id, job.attempt, node_id)

    async def _sizes_of(self, job: JobView) -> tuple[SizeChange, ...]:
        """Return the changes of the size of a malleable job; none of another."""
        if job.malleable is None:
            return ()
        return changes_of(await self._views.attempts(job.id))

    async def _growth_of(self, job: JobView) -> GrowthDecision | None:
        """Return whether a running job would get more GPUs now, and why not."""
        sizes = job.malleable
        if sizes is None or job.state is not JobState.RUNNING or job.gpus >= sizes.target:
            return None
        return await growth_of(self._database, job.pool, job.id, self._settings.margins)

    async def _meeting_of(self, job: JobView) -> DeadlineCost | None:
        """Return what it costs that a job which waits meets its deadline, by the prices that were
        seen of late: no market is asked."""
        judgment = job.deadline
        if judgment is None or job.state is not JobState.QUEUED or not asks_for_cost(judgment):
            return None
        try:
            spec = await self._views.spec(job.id)
        except StoredError:  # that is told beside
            return None
        away, now = await store_away(self._settings, job.id), datetime.now(UTC)
        async with self._database.transaction() as connection:
            inputs = await read_inputs(connection, job.pool, away, margins=self._settings.margins)
            standing = await read_standing(
                connection, inputs.spec, job.submitted_at, job.tier, job.id
            )
        learnt = next((each.learnt for each in inputs.queue if each.id == job.id), None)
        duration = LikelyDuration.of(spec.expected_duration, spec.max_duration, learnt)
        buys = standing.buys or (standing.chosen and not standing.in_cooldown)
        return await asyncio.to_thread(
            cost_of_meeting, judgment, inputs, job.id, duration, None, now, buys=buys
        )

    async def _weighed(self, job: JobView) -> Turn:
        """Return what is weighed of a job that waits, of a replica also when it has its turn."""
        if job.state is not JobState.QUEUED:
            return Turn()
        async with self._database.snapshot() as connection:
            inputs = await read_inputs(connection, job.pool, margins=self._settings.margins)
            now = await clock(connection)
        return await asyncio.to_thread(weighed, inputs, job.id, now)

    async def _hold_of(self, job: JobView) -> JobStatus | None:
        temporal = await self._temporal() if job.state is JobState.HELD else None
        return await hold_of(temporal, job.id) if temporal else None

    async def _with_backoff(self, told: Explanation) -> Explanation:
        """Return what is told of a job, and of one between attempts when it is tried again."""
        if told.job.state is not JobState.RETRYING:
            return told
        temporal = await self._temporal()
        status = await backoff_of(temporal, told.job.id) if temporal else None
        async with self._database.transaction() as connection:
            service, wrote = await last_failure(connection, told.job.id)
        return with_backoff(told, status, datetime.now(UTC), service, wrote)

    async def _unpaid(self, job: JobView, pool: PoolSpec) -> tuple[str, ...] | None:
        """Return what would help a job that waits for a budget or a quota; None of any other."""
        funding = pool.packing.funding
        if funding is None or job.id not in funding.held:
            return None
        try:
            found = await fund_view(self._database, job.id, self._settings.margins)
        except RefusedError:  # it has started or ended meanwhile
            return None
        return tuple(remedy.says for remedy in found.remedies)
