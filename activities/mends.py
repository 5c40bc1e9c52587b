"""What mends a disagreement that `reconcile` has found.

Each mend looks again at the workflow, then changes rows only where they still are as they were
found.
"""

from collections.abc import Sequence

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from longshore.activities.buying.bills import book_bill
from longshore.activities.buying.purchase_rows import lock_purchase
from longshore.activities.buying.stored_documents import stored_request
from longshore.activities.dag_ends import mark_end, of_dag_at_retry, tell_end
from longshore.activities.dag_rows import let_others_pass, lock_dag, starting
from longshore.activities.database import Database
from longshore.activities.deadlines import note_end
from longshore.activities.job_end_rows import end_attempt, record_end
from longshore.activities.metrics import JOB_ENDS, SILENT, Metrics
from longshore.activities.mutexes import free_mutexes, wake_next
from longshore.activities.observation import describe
from longshore.activities.placements import load_as
from longshore.activities.pokes import (
    array_at_retry,
    mark_array_poked,
    mark_poked_if_useful,
    service_at_retry,
)
from longshore.activities.queue_rows import lock_job
from longshore.activities.registry import RegistryActivities
from longshore.activities.rpc_errors import is_unknown
from longshore.activities.signals import Signals
from longshore.models.base import StartInput
from longshore.models.block import BLOCK_WORKFLOW, BlockInput, block_workflow_id
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    LeaseEnd,
    NodeEpoch,
    NodeLost,
    job_workflow_id,
    node_workflow_id,
)
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.placement import Placement, PlacementKey
from longshore.models.purchase import PURCHASE_WORKFLOW, purchase_workflow_id
from longshore.models.reconcile import (
    CancelJob,
    EndAttempt,
    EndJob,
    LoseNode,
    Mend,
    Stop,
    TellLost,
    TellPlaced,
)
from longshore.models.reconcile_seen import WorkflowState

_LEASE_ENDS = {
    JobState.SUCCEEDED: LeaseEnd.FINISHED,
    JobState.CANCELLED: LeaseEnd.CANCELLED,
    JobState.FAILED: LeaseEnd.FAILED,
}


class Mends:
    """Mends, on database and Temporal."""

    def __init__(
        self,
        database: Database,
        temporal: Client,
        signals: Signals,
        registry: RegistryActivities,
        metrics: Metrics = SILENT,
    ) -> None:
        self._database = database
        self._temporal = temporal
        self._signals = signals
        self._registry = registry
        self._metrics = metrics

    async def mend(self, mend: Mend, stop: Stop | None) -> str:
        """Mend, and return why it was not done; empty where it was."""
        if mend.end_job:
            return await self._end_job(mend.end_job, stop)
        if mend.end_attempt:
            return await self._end_attempt(mend.end_attempt)
        if mend.cancel_job:
            return await self._cancel_job(mend.cancel_job)
        if mend.tell_placed:
            return await self._tell_placed(mend.tell_placed)
        if mend.tell_lost:
            return await self._tell_lost(mend.tell_lost)
        if mend.lose_node:
            return await self._lose_node(mend.lose_node)
        if mend.book_bill:
            return await book_bill(self._database, mend.book_bill.key, mend.book_bill.micro)
        if mend.follow_block:
            return await self._follow_block(mend.follow_block.block_id)
        if mend.settle_purchase:
            return await self._settle_purchase(mend.settle_purchase.purchase_id)
        if mend.give_up_mutexes:
            return await self._give_up_mutexes(mend.give_up_mutexes.dag_id)
        if mend.follow_service:
            await self._signals.begin_service(mend.follow_service.name)
            return ""
        assert mend.poke_pool is not None
        await self._signals.poke_pool(mend.poke_pool.pool)
        return ""

    async def _end_job(self, end: EndJob, stop: Stop | None) -> str:
        job_id = end.result.job_id
        if await self._runs(job_workflow_id(job_id)):
            return "its workflow runs again"
        key = PlacementKey(job_id=job_id, attempt=end.attempt)
        async with self._database.transaction() as connection:
            await lock_job(connection, job_id)
            # Waits for a cycle that is placing it, and keeps later ones from doing so.
            await connection.execute(
                text("SELECT FROM queue WHERE job_id = :id FOR UPDATE"), {"id": job_id}
            )
            placed_on = await runs_on(connection, job_id)
            if placed_on and (stop is None or placed_on[0]["attempt"] != end.attempt):
                return "it was placed meanwhile"
            reason = _LEASE_ENDS[end.result.state].value
            pool = await end_attempt(connection, key, reason, end.result.message)
            ended = await record_end(connection, end.result)
            poke = pool and await mark_poked_if_useful(connection, pool)
            job = ended.of_dag if ended else await of_dag_at_retry(connection, job_id)
            array_id = ended.array_id if ended else await array_at_retry(connection, job_id)
            if array_id:
                await mark_array_poked(connection, array_id)
            service = ended.service if ended else await service_at_retry(connection, job_id)
            first = job is not None and await mark_end(connection, job_id, job)
        if ended:
            failure = end.result.failure.value if end.result.failure else "none"
            self._metrics.add(
                JOB_ENDS, pool=ended.pool, state=end.result.state.value, failure=failure
            )
            note_end(self._metrics, ended.pool, job_id, ended.late)
        if pool and poke:
            await self._signals.poke_pool(pool)
        if job is not None:
            await tell_end(self._database, self._signals, job, first=first)
        if array_id:
            await self._signals.poke_array(array_id)
        if service is not None:
            await self._signals.poke_service(service)
        return ""

    async def _end_attempt(self, end: EndAttempt) -> str:
        key = PlacementKey(job_id=end.job_id, attempt=end.attempt)
        async with self._database.transaction() as connection:
            await lock_job(connection, end.job_id)
            pool = await end_attempt(connection, key, end.reason.value, end.message)
            poke = pool and await mark_poked_if_useful(connection, pool)
        if pool and poke:
            await self._signals.poke_pool(pool)
        return ""

    async def _cancel_job(self, cancel: CancelJob) -> str:
        handle = self._temporal.get_workflow_handle(job_workflow_id(cancel.job_id))
        try:
            await handle.cancel(reason=cancel.reason)
        except RPCError as error:
            if not is_unknown(error):
                raise
            return "its workflow has ended meanwhile"
        return ""

    async def _tell_placed(self, tell: TellPlaced) -> str:
        placement = await self._placement(tell.job_id, tell.attempt, live=True)
        if placement is None:
            return "the placement has ended meanwhile"
        gone = await self._signals.tell_jobs("placed", [(tell.job_id, placement)])
        return gone.get(tell.job_id, "")

    async def _tell_lost(self, tell: TellLost) -> str:
        placement = await self._placement(tell.job_id, tell.attempt, live=False)
        if placement is None:
            return "the placement is gone"
        (first, *others) = await self._lost_nodes(placement)
        lost = NodeLost(
            node_id=first.node_id, epoch=first.epoch, reason="told again", also=tuple(others)
        )
        # A job that never heard of the placement hears of both, and goes on to its next attempt.
        await self._signals.tell_jobs("node_lost", [(tell.job_id, lost)])
        gone = await self._signals.tell_jobs("placed", [(tell.job_id, placement)])
        return gone.get(tell.job_id, "")

    async def _lose_node(self, lose: LoseNode) -> str:
        if await self._runs(node_workflow_id(lose.node_id)):
            return "its workflow runs again"
        await self._registry.end_node(
            NodeEnd(
                node_id=lose.node_id, epoch=lose.epoch, state=NodeState.LOST, reason=lose.reason
            )
        )
        return ""

    async def _follow_block(self, block_id: str) -> str:
        async with self._database.transaction() as connection:
            row = (await connection.execute(text(_BLOCK), {"id": block_id})).mappings().one()
        if row["state"] == "ENDED":
            return "it has ended meanwhile"
        return await self._start(
            BLOCK_WORKFLOW,
            BlockInput(block_id=block_id, draining=row["state"] == "DRAINING"),
            id=block_workflow_id(block_id),
            summary=f"block {block_id} of pool {row['pool']}",
        )

    async def _settle_purchase(self, purchase_id: str) -> str:
        async with self._database.transaction() as connection:
            row = await lock_purchase(connection, purchase_id)
            options = await connection.scalar(text(_OPTIONS), {"id": purchase_id})
        if row is None or not row["buying"]:
            return "it has been settled meanwhile"
        request = stored_request(purchase_id, row["request"], options)
        if request is None:
            return "what is stored of it cannot be read: `longshore doctor` says why"
        return await self._start(
            PURCHASE_WORKFLOW,
            request.model_copy(update={"settles": True}),
            id=purchase_workflow_id(purchase_id),
            summary=f"purchase {purchase_id} of pool {request.pool}: settle",
        )

    async def _give_up_mutexes(self, dag_id: str) -> str:
        async with self._database.transaction() as connection:
            begun = await starting(connection, dag_id)
        flows = [await describe(self._temporal, job_workflow_id(id), ask=False) for _, id in begun]
        gone = [
            job
            for job, flow in zip(begun, flows, strict=True)
            if flow.state is WorkflowState.MISSING
        ]
        async with self._database.transaction() as connection:
            row = await lock_dag(connection, dag_id)
            if await self._runs(dag_workflow_id(dag_id)):
                return "its workflow runs again"
            names = await let_others_pass(connection, dag_id, [name for name, _ in gone])
            await free_mutexes(connection, [job_id for _, job_id in gone])
        await wake_next(self._database, self._signals, row["tenant"], names, again=True)
        return ""

    async def _start(self, workflow: str, given: StartInput, *, id: str, summary: str) -> str:
        """Start a workflow again; return why not where it runs."""
        try:
            await self._temporal.start_workflow(
                workflow, given, id=id, task_queue=CONTROL_TASK_QUEUE, static_summary=summary
            )
        except WorkflowAlreadyStartedError:
            return "its workflow runs again"
        return ""

    async def _runs(self, workflow_id: str) -> bool:
        return (await describe(self._temporal, workflow_id)).state is WorkflowState.RUNNING

    async def _placement(self, job_id: str, attempt: int, *, live: bool) -> Placement | None:
        async with self._database.transaction() as connection:
            key = PlacementKey(job_id=job_id, attempt=attempt)
            return await load_as(connection, key, live=live)

    async def _lost_nodes(self, placement: Placement) -> Sequence[NodeEpoch]:
        """Return the nodes of a placement that were lost, by rank; its first where none was."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(
                text(_LOST_NODES),
                {"id": placement.job_id, "attempt": placement.attempt,
                 "lost": LeaseEnd.NODE_LOST.value},
            )  # fmt: skip
            found = [NodeEpoch.model_validate(row) for row in rows.mappings()]
        return found or [NodeEpoch(node_id=placement.node_id, epoch=placement.epoch)]


async def runs_on(connection: AsyncConnection, job_id: str) -> Sequence[RowMapping]:
    """Return attempt, node and spec of a job that may have processes now, a row for each node."""
    rows = await connection.execute(text(_RUNS_ON), {"id": job_id})
    return rows.mappings().all()


def in_words(mend: Mend) -> str:
    """Return what a mend has done."""
    if mend.end_job:
        return f"recorded as {mend.end_job.result.state.value}, and what it held was given up"
    if mend.end_attempt:
        return f"attempt {mend.end_attempt.attempt} was ended"
    if mend.cancel_job:
        return "its cancellation was requested: it has its grace, and gives up what it holds"
    if mend.tell_placed:
        return "its workflow was told again"
    if mend.tell_lost:
        return "its workflow was told again that the node was lost"
    if mend.lose_node:
        return "declared LOST; its jobs go back to the queue"
    if mend.follow_block:
        return "its workflow was started again"
    if mend.settle_purchase:
        return "its workflow was started again: it orders nothing more"
    if mend.give_up_mutexes:
        return "others no longer wait for the mutexes of its jobs"
    if mend.book_bill:
        return "booked as the market billed it; what nobody used counts as idle"
    return "its workflow was woken, or started"


_BLOCK = "SELECT state, pool FROM blocks WHERE id = :id"

_OPTIONS = "SELECT max(option) FROM orders WHERE purchase_id = :id"

_RUNS_ON = """
    SELECT p.attempt, p.node_id, j.spec
      FROM placements p JOIN nodes n ON n.id = p.node_id AND n.epoch >= p.epoch
      JOIN jobs j ON j.id = p.job_id
     WHERE p.job_id = :id AND p.ended_at IS NULL AND NOT p.spare
       AND n.state IN ('READY', 'DRAINING')
     ORDER BY p.rank
"""

_LOST_NODES = """
    SELECT node_id, epoch FROM placements
     WHERE job_id = :id AND attempt = :attempt AND end_reason = :lost AND NOT spare
     ORDER BY rank
"""
