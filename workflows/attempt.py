"""One attempt of a job: its processes, one on each of its nodes, until none of them runs.

All or none: when one rank fails, is lost, or the job is to stop, the others are stopped, and the
attempt is over only when nothing of it runs on any node that is left.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from temporalio import workflow

from longshore.models.elements import Batch
from longshore.models.job import JobSpec
from longshore.models.messages import NodeLost
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import Placement
from longshore.models.retry import FailureClass
from longshore.models.text import count
from longshore.workflows import steps

Process = workflow.ActivityHandle[ProcessReport]

_MOST_OF_ONE = 2_000_000
"""Bytes to start one process: Temporal takes an input of 2 MiB. A task of a workflow that asks for
more fails again and again, and the job would hold its GPUs for ever."""
MOST_AT_ONCE = 3_000_000
"""Bytes to start several, or to stop them: Temporal takes a message of 4 MiB."""
MOST_IN_ALL = 20_000_000
"""Bytes to start all: Temporal ends a workflow whose history has more than 50 MB. Nodes that are
back after a cut are asked with as much again."""
_NEXT = timedelta(milliseconds=1)


class Attempt:
    """The processes of one placement. `run` it once."""

    def __init__(
        self,
        placement: Placement,
        spec: JobSpec,
        stop_reason: Callable[[], str | None],
        loss_of: Callable[[Placement], NodeLost | None],
        gpus_before: int | None = None,
        batch: Batch | None = None,
    ) -> None:
        """`stop_reason` says why the job is to stop, if so; `loss_of` how a node was lost;
        `gpus_before` the size of a malleable job in its attempt before. Of a slot of an array it
        runs a `batch` of elements in place of a process."""
        self._gpus_before = gpus_before
        self._ranks: list[Placement] = list(placement.by_rank)
        self._spec = spec
        self._stop_reason = stop_reason
        self._loss_of = loss_of
        self._batch = batch
        self._processes: list[Process] = []
        self._left: set[int] = set()
        """Ranks without which the attempt goes on: only where it can change its size in place."""

    async def run(self, stopping: Callable[[str], None]) -> ProcessReport:
        """Return how it ended; `stopping` hears why, where the processes have to be stopped."""
        too_large = await self._start()
        if too_large:
            return ProcessReport(failure=FailureClass.UNSATISFIABLE, message=too_large)
        await self._go_on()
        if any(map(self._runs, self._live)):
            reason = self._why_stop() or ""
            stopping(reason)
            await self._stop_all(reason)
        return self._summary({rank: await self._report(rank) for rank in self._live})

    async def _go_on(self) -> None:
        """Wait until nothing of it runs any more, or is to run."""
        await workflow.wait_condition(lambda: self._none_runs() or self._why_stop() is not None)

    @property
    def _live(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if rank not in self._left]

    async def _start(self) -> str:
        """Start the processes; return why none can be, where Temporal would take it never."""
        return await self._start_ranks(self._ranks, self._gpus_before)

    async def _start_ranks(self, wanted: Sequence[Placement], gpus_before: int | None) -> str:
        """Start the processes of these ranks, the next without one; return why none can be."""
        each, count = steps.bytes_of_process(wanted[0], self._spec), len(wanted)
        at_once = count
        large = each > _MOST_OF_ONE or each * count > MOST_AT_ONCE
        if large and workflow.patched("process-bounds"):
            if each > _MOST_OF_ONE or each * count > MOST_IN_ALL:
                return _too_large(each, count)
            at_once = MOST_AT_ONCE // each
        for first in range(0, count, at_once):
            if first:  # what is asked for after a timer goes in another message
                await workflow.sleep(_NEXT, summary="start the next ranks")
            ranks = wanted[first : first + at_once]
            self._processes += [
                steps.start_process(rank, self._spec, gpus_before, self._batch) for rank in ranks
            ]
        return ""

    async def _stop_all(self, reason: str) -> None:
        """Stop what runs, on every node at once, and wait until it has ended or is lost."""
        running = [rank for rank in self._live if self._runs(rank)]
        each, at_once = steps.bytes_of_stop(self._ranks[0], self._spec, reason), len(running)
        if each * at_once > MOST_AT_ONCE and workflow.patched("stop-bounds"):
            at_once = MOST_AT_ONCE // each
        stops: dict[int, asyncio.Task[None]] = {}
        for first in range(0, len(running), at_once):
            if first:
                await workflow.sleep(_NEXT, summary="stop the next ranks")
            for rank in filter(self._runs, running[first : first + at_once]):
                stop = steps.stop_process(self._ranks[rank], self._spec, reason, self._batch)
                stops[rank] = asyncio.create_task(stop)
        await workflow.wait_condition(
            lambda: all(
                (self._processes[rank].done() and stop.done()) or self._lost(rank)
                for rank, stop in stops.items()
            )
        )
        for stop in stops.values():
            await steps.give_up(stop)

    async def _report(self, rank: int) -> ProcessReport:
        process = self._processes[rank]
        if process.done():
            return await steps.report_of(process)
        known = None
        if self._batch is not None:  # while Temporal still has its last heartbeat
            known = await steps.known_of_batch(self._ranks[rank].key)
        await steps.give_up(process)
        loss = self._loss_of(self._ranks[rank])
        cut_off = loss is not None and loss.cut_off
        if cut_off and workflow.patched("ask-after-cut"):
            # It may have ended by itself while the server was away: then it need not run again.
            said = await steps.ask_how_it_ended(self._ranks[rank], self._spec, self._batch)
            if said is not None:
                return said
        if self._batch is not None and loss is not None and loss.anew:
            said = await steps.ask_how_it_ended(self._ranks[rank], self._spec, self._batch)
            if said is not None:
                return said
        elif loss is not None and loss.anew and self._others_succeeded(rank):
            said = await self._success_before_loss(rank)
            if said is not None:
                return said
        return ProcessReport(
            failure=FailureClass.NETWORK if cut_off else FailureClass.NODE,
            message=words_of(loss) if loss else "",
            batch=known,
        )

    async def _success_before_loss(self, rank: int) -> ProcessReport | None:
        """Return the report of a process that had succeeded when its agent died, unheard.

        Whatever else the agent that came after it knows may be of the death itself.
        """
        if not workflow.patched("ask-after-restart"):
            return None
        said = await steps.ask_how_it_ended(self._ranks[rank], self._spec, self._batch)
        succeeded = said is not None and said.failure is None and said.stopped_for is None
        return said if succeeded else None

    def _others_succeeded(self, rank: int) -> bool:
        """Return whether no other rank of a gang was stopped, lost, or has failed."""
        others = [self._processes[other] for other in self._live if other != rank]
        return all(process.done() and not has_failed(process) for process in others)

    def _summary(self, reports: Mapping[int, ProcessReport]) -> ProcessReport:
        """Return what is to be said of the whole: of a gang, what ended it first, and what is not
        stored of any rank's output."""
        if len(reports) == 1:
            return reports[0]
        first = self._ended_by(reports)
        said = {"log_error": self._not_stored(reports), "output": reports[0].output}
        return first.model_copy(update=said)

    def _ended_by(self, reports: Mapping[int, ProcessReport]) -> ProcessReport:
        for rank, report in reports.items():
            if report.failure is FailureClass.TIME_LIMIT:  # others failed for want of this one
                return self._of_rank(rank, report)
        failed = [rank for rank, report in reports.items() if report.failure is not None]
        by_itself = [rank for rank in failed if reports[rank].stopped_for is None]
        for rank in sorted(by_itself, key=lambda rank: _ended(reports[rank])):
            return self._of_rank(rank, reports[rank])
        stopped = [report for report in reports.values() if report.stopped_for is not None]
        return stopped[0] if stopped else reports[0]

    def _of_rank(self, rank: int, report: ProcessReport) -> ProcessReport:
        node_id, said = self._ranks[rank].node_id, report.message or "failed"
        return report.model_copy(
            update={"message": f"rank {rank} on {node_id}: {said}", "node_id": node_id}
        )

    def _not_stored(self, reports: Mapping[int, ProcessReport]) -> str:
        """Return which rank's output is not all stored, and why; empty where all of it is."""
        lacking = [rank for rank, report in reports.items() if report.log_error]
        if not lacking:
            return ""
        rank, others = lacking[0], len(lacking) - 1
        more = f" and {count(others, 'other rank')}" if others else ""
        return f"rank {rank} on {self._ranks[rank].node_id}{more}: {reports[rank].log_error}"

    def _none_runs(self) -> bool:
        return all(self._processes[rank].done() for rank in self._live)

    def _runs(self, rank: int) -> bool:
        return not self._processes[rank].done() and not self._lost(rank)

    def _lost(self, rank: int) -> bool:
        return self._loss_of(self._ranks[rank]) is not None

    def _why_stop(self) -> str | None:
        """Why no rank should go on, or None to let them."""
        reason = self._stop_reason()
        if reason is not None:
            return reason
        for rank in self._live:
            placement = self._ranks[rank]
            if loss := self._loss_of(placement):
                return words_of(loss)
            if has_failed(self._processes[rank]):
                return f"rank {rank} on {placement.node_id} has failed"
        return None


def _too_large(each: int, nodes: int) -> str:
    on = "its node" if nodes == 1 else f"its {nodes} nodes"
    return (
        f"it cannot be started on {on}: what goes to each has {each:,} bytes as JSON, and "
        f"{_MOST_OF_ONE:,} is the most for one, {MOST_IN_ALL:,} for all. Put what is long into a "
        "file, or let it have more GPUs on each node"
    )


def words_of(loss: NodeLost) -> str:
    return f"node {loss.node_id} was lost: {loss.reason}"


def has_failed(process: Process) -> bool:
    if not process.done():
        return False
    if process.cancelled() or process.exception() is not None:
        return True
    report = process.result()
    return report.failure is not None or report.stopped_for is not None


def _ended(report: ProcessReport) -> float:
    """When it ended; a lost node's process, of which nobody knows, last."""
    return report.ended_at.timestamp() if report.ended_at else float("inf")
