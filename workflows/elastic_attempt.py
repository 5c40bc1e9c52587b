"""An attempt of a job that changes its size in place: ranks leave or join, and the rest goes on.

To shrink is: a save, the word to those that stay, the stop of those that leave, the end of their
leases. To grow is: a save, leases for those that join, the word to the others, the start of the
new ones. What does not work before anybody was told leaves a job that was to grow as it is;
whatever else does not ends in the change that always works: the job is stopped and starts again.
Who stops the job meanwhile stops it as at any other time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ActivityError

from longshore.models.base import as_reason
from longshore.models.bounds import json_bytes
from longshore.models.job import JobSpec
from longshore.models.messages import NodeLost
from longshore.models.placement import Placement, Rank
from longshore.models.resize import (
    JoinReply,
    JoinRequest,
    LeaveRequest,
    RoomRequest,
    SizeNotice,
    nobody_waits,
)
from longshore.models.retry import FailureClass
from longshore.models.text import count
from longshore.scheduling.ranks import COUNTS_SAVES, named, staying
from longshore.workflows import elastic_steps, steps
from longshore.workflows.attempt import (
    MOST_AT_ONCE,
    MOST_IN_ALL,
    Attempt,
    has_failed,
    words_of,
)

_BESIDE = 1000
"""Bytes of an activity beside its input."""
_OF_THE_NODE = (FailureClass.NODE, FailureClass.NETWORK)


@dataclass(frozen=True)
class Change:
    """What is asked of an attempt: to go on with fewer GPUs, or with more."""

    gpus: int
    """At most so many; where it grows, just so many."""
    reason: str
    for_job: str | None = None
    """The job that gets the GPUs, if that was the reason."""
    desired: int | None = None
    """The size that its user has asked for, if they have: then it does not get fewer either."""
    grows_from: int | None = None
    """Where it grows, the size that it had when that was decided."""


class ElasticAttempt(Attempt):
    """The processes of one placement, of which some may leave. `run` it once."""

    def __init__(
        self,
        placement: Placement,
        spec: JobSpec,
        stop_reason: Callable[[], str | None],
        loss_of: Callable[[Placement], NodeLost | None],
        gpus_before: int | None,
        changed: Callable[[Sequence[Placement], str], None],
        restart: Callable[[Change, str], None],
        kept: Callable[[str], None],
        joining: Callable[[Change, int], JoinRequest],
        desired: Callable[[], int],
    ) -> None:
        """`changed` hears on which nodes it goes on, and why; `restart` is to have the whole job
        stopped and started again for a change that cannot be in place, and hears why not; `kept`
        hears why it keeps its size; `joining` says what is asked for ranks from a number on;
        `desired` says which size it is to have by now."""
        super().__init__(placement, spec, stop_reason, loss_of, gpus_before)
        assert spec.malleable is not None
        self._placement = placement
        self._known = {rank.rank: rank for rank in placement.ranks}
        self._sizes = spec.malleable
        self._changed = changed
        self._restart = restart
        self._kept = kept
        self._joining = joining
        self._desired = desired
        self._asked: list[Change] = []
        self._leaving: set[int] = set()
        self._early: Change | None = None
        """A growth that was told before this attempt had gone on without a lost rank."""
        self._counts_saves = False

    def ask(self, change: Change) -> None:
        """Have the size changed, after what was asked before."""
        if change.desired is not None and self._early and workflow.patched("forgets-early-growth"):
            self._early = None  # it was planned for another desired size
        self._asked.append(change)

    async def _go_on(self) -> None:
        while True:
            await workflow.wait_condition(
                lambda: self._is_over() or bool(self._asked or self._gone())
            )
            if self._is_over():
                return
            if gone := self._gone():
                await self._go_on_without(gone)
                continue
            change = self._asked.pop(0)
            if change.grows_from is None:
                await self._shrink(change)
            else:
                await self._grow(change)

    async def _shrink(self, change: Change) -> None:
        """Give up the highest ranks, so that at most so many GPUs are left."""
        has = self._gpus_of(self._live)
        before = sum(has.values())
        stay = staying(has, self._sizes, change.gpus)
        if before <= change.gpus or self._is_outdated(change):
            return None
        if not stay or (change.desired is not None and self._total(stay) != change.gpus):
            return self._restart(change, "whole ranks do not add up to that")
        leave = tuple(rank for rank in has if rank not in stay)
        if change.for_job is not None:
            room = RoomRequest(
                key=self._placement.key, pool=self._spec.pool, leaving=leave,
                for_job=change.for_job,
            )  # fmt: skip
            why_not = await self._unless_over(elastic_steps.room_in_place(room))
            nobody = why_not == nobody_waits(change.for_job)
            if nobody and workflow.patched("keeps-for-nobody"):
                return None
            if why_not:
                return self._restart(change, f"{change.for_job} would not start: {why_not}")
        failed = await self._unless_over(self._save())
        if failed:
            return self._restart(change, failed)
        if self._is_over() or self._gone():
            # What was asked for counts on ranks that are not there any more: look again.
            self._asked.insert(0, change)
            return None
        if self._is_outdated(change):
            return None
        after = count(self._total(stay), "GPU")
        said = f"{change.reason}; in place: {named(leave)}, {after} go on with no stop"
        await self._leave(stay, said, change)
        return None

    async def _grow(self, change: Change) -> None:
        """Have further ranks, so that there are so many GPUs."""
        before = self._total(self._live)
        if change.grows_from is not None and before > change.grows_from:
            # It counts without a rank that is lost, and of which this attempt hears in a moment.
            if workflow.patched("grows-after-loss"):
                self._early = change
            return None
        if before != change.grows_from or self._is_outdated(change):
            return None
        failed = await self._unless_over(self._save())
        if failed and change.desired is not None:
            return self._restart(change, failed)
        if failed:
            return self._kept(as_reason(f"{change.reason}; not grown: {failed}"))
        if self._is_over() or self._gone() or self._is_outdated(change):
            return None  # a job with fewer GPUs than it is to have is looked at again
        if self._counts_saves and workflow.patched("joins-by-steps"):
            if change.desired is not None:
                return self._restart(change, COUNTS_SAVES)
            return self._kept(as_reason(f"{change.reason}; not grown: {COUNTS_SAVES}"))
        reply = await self._until_over(elastic_steps.join(self._joining(change, len(self._ranks))))
        if reply is None:
            return None  # its leases, if it has got any, end with the others
        if not reply.ranks:
            return self._kept(as_reason(f"{change.reason}; not grown: {reply.reason}"))
        await self._join(reply.ranks, before, change)
        return None

    async def _join(self, ranks: Sequence[Rank], before: int, change: Change) -> None:
        """Tell the others of ranks that have their GPUs by now, and start their processes."""
        self._known |= {rank.rank: rank for rank in ranks}
        first = len(self._ranks)
        joined = [rank for rank in ranks if rank.rank >= first]
        there = (*(self._known[rank] for rank in self._live), *joined)
        placement = self._placement.model_copy(update={"ranks": there})
        self._ranks += [each for each in placement.by_rank if each.rank >= first]
        after = self._total(self._live) + sum(len(rank.gpu_indices) for rank in joined)
        reason = as_reason(
            f"{change.reason}; in place: {named([r.rank for r in joined], 'join')}, "
            f"{count(after, 'GPU')} go on with no stop"
        )
        failed = await self._unless_over(self._tell(self._live, before, reason, there))
        if not failed and not self._is_over():
            failed = await self._start_ranks(self._ranks[first:], before)
        if failed:
            self._restart(change, failed)
        if self._is_over():  # what has not begun does not begin; its leases end with the others
            del self._ranks[len(self._processes) :]
            return
        self._changed([self._ranks[rank] for rank in self._live], reason)
        return

    def _is_outdated(self, change: Change) -> bool:
        """Return whether its user has asked for another size since: what they got to hear of this
        one counts no more."""
        return change.desired is not None and change.desired != self._desired()

    async def _go_on_without(self, gone: dict[int, str]) -> None:
        """Go on without ranks whose nodes are lost, and without as many others as it takes."""
        left = [rank for rank in self._live if rank not in gone]
        stay = staying(self._gpus_of(left), self._sizes)
        first = next(iter(gone.values()))
        after = count(self._total(stay), "GPU")
        said = f"{first}; in place: {after} go on with no stop"
        await self._leave(stay, said, Change(self._total(stay), first))

    async def _leave(self, stay: tuple[int, ...], reason: str, change: Change) -> None:
        """Tell those that stay, stop the others, and end their leases."""
        reason = as_reason(reason)
        before = sum(self._gpus_of(self._live).values())
        self._leaving = set(self._live) - set(stay)
        there = tuple(self._known[rank] for rank in stay)
        failed = await self._unless_over(self._tell(stay, before, reason, there))
        if failed:
            self._restart(change, failed)
        if not self._why_stop():
            await self._stop_leaving(change.reason)
        if self._why_stop():
            self._leaving = set()  # all of it ends together
            return
        leaving = tuple(sorted(self._leaving))
        await elastic_steps.leave(
            LeaveRequest(
                key=self._placement.key, pool=self._spec.pool, ranks=leaving, message=reason
            )
        )
        self._left |= self._leaving
        self._leaving = set()
        for rank in leaving:
            if not self._processes[rank].done():  # its node is lost
                await steps.give_up(self._processes[rank])
        self._changed([self._ranks[rank] for rank in stay], reason)
        if self._early is not None:
            self._asked.insert(0, self._early)
            self._early = None

    async def _save(self) -> str:
        """Have the job save; return why it did not."""
        contract = self._spec.checkpoint
        # Where every node stores its own part, all have to; else rank 0 sees to it.
        stores = contract is not None and contract.store
        ranks = self._live if stores else [0]
        saves = [
            asyncio.ensure_future(elastic_steps.save(self._ranks[rank], self._spec))
            for rank in ranks
        ]
        if failed := await _first_failure(saves, "it did not save"):
            return failed
        if not all(save.result().is_known for save in saves):
            return "what a node answered of its save cannot be read"
        # Of such saves those belong together that have the same number, which a rank that joins
        # does not have.
        self._counts_saves = stores and any(save.result().step is None for save in saves)
        if not stores and workflow.patched("records-own-saves"):
            await elastic_steps.record_save(self._ranks[0], saves[0].result())
        return ""

    async def _tell(
        self, stay: Sequence[int], before: int, reason: str, there: tuple[Rank, ...]
    ) -> str:
        """Tell the ranks that stay who will be there; return why one could not be told."""
        said = SizeNotice(
            key=self._placement.key, gpus_before=before, reason=reason, ranks=there,
            gpus=sum(len(rank.gpu_indices) for rank in there),
        )  # fmt: skip
        each = json_bytes(said) + _BESIDE
        if each * len(stay) > MOST_IN_ALL:
            return f"{len(stay)} ranks are too many to be told"
        at_once = max(MOST_AT_ONCE // each, 1)
        for first in range(0, len(stay), at_once):
            some = stay[first : first + at_once]
            tells = [elastic_steps.tell_size(self._ranks[rank], said) for rank in some]
            if failed := await _first_failure(tells, "a rank could not be told"):
                return failed
        return ""

    async def _stop_leaving(self, reason: str) -> None:
        """Stop the processes of the ranks that leave, until they have ended or are lost, or the
        whole job is to stop."""
        stops = {
            rank: asyncio.create_task(steps.stop_process(self._ranks[rank], self._spec, reason))
            for rank in sorted(self._leaving)
            if self._runs(rank)
        }
        await workflow.wait_condition(
            lambda: (
                self._why_stop() is not None
                or all(
                    (self._processes[rank].done() and stop.done()) or self._lost(rank)
                    for rank, stop in stops.items()
                )
            )
        )
        for stop in stops.values():
            await steps.give_up(stop)

    async def _unless_over(self, step: Awaitable[str]) -> str:
        """Return what a step says; nothing where the attempt is over, or loses a rank, before it
        has ended."""
        task = asyncio.ensure_future(step)
        await workflow.wait_condition(lambda: task.done() or self._is_over() or bool(self._gone()))
        if task.done():
            return task.result()
        await steps.give_up(task)
        return ""

    async def _until_over(self, step: Awaitable[JoinReply]) -> JoinReply | None:
        """Return what a step says that must not be lost while the attempt goes on; None where that
        is over before it has ended."""
        task = asyncio.ensure_future(step)
        await workflow.wait_condition(lambda: task.done() or self._is_over())
        if task.done():
            return task.result()
        await steps.give_up(task)
        return None

    def _is_over(self) -> bool:
        return self._none_runs() or self._why_stop() is not None

    def _why_stop(self) -> str | None:
        reason = self._stop_reason()
        if reason is not None:
            return reason
        gone = self._gone()
        for rank in self._live:
            failed = rank not in gone and rank not in self._leaving
            if failed and has_failed(self._processes[rank]):
                return f"rank {rank} on {self._ranks[rank].node_id} has failed"
        left = [rank for rank in self._live if rank not in gone and rank not in self._leaving]
        if gone and not staying(self._gpus_of(left), self._sizes):
            return next(iter(gone.values()))
        return None

    def _gone(self) -> dict[int, str]:
        """Return the ranks that stay, and of which nothing runs any more for a reason of their
        node, with that in words."""
        return {
            rank: why
            for rank in self._live
            if rank not in self._leaving and (why := self._why_gone(rank))
        }

    def _why_gone(self, rank: int) -> str:
        here, process = self._ranks[rank], self._processes[rank]
        if loss := self._loss_of(here):
            return words_of(loss)
        if not process.done() or process.cancelled():
            return ""
        if process.exception() is not None:
            return f"node {here.node_id} refused rank {rank}"
        report = process.result()
        is_new = here.joined and report.started_at is None
        if report.failure in _OF_THE_NODE or (is_new and report.failure is FailureClass.START):
            return f"rank {rank} on {here.node_id}: {report.message}"
        return ""

    def _gpus_of(self, ranks: Iterable[int]) -> dict[int, int]:
        return {rank: len(self._ranks[rank].gpu_indices) for rank in ranks}

    def _total(self, ranks: Iterable[int]) -> int:
        return sum(self._gpus_of(ranks).values())


async def _first_failure(activities: Iterable[Awaitable[object]], what: str) -> str:
    """Wait for all of them; return what failed, empty where nothing did."""
    ended = await asyncio.gather(*activities, return_exceptions=True)
    for each in ended:
        if isinstance(each, ActivityError):
            return f"{what}: {each.cause or each}"
        if isinstance(each, BaseException):
            raise each
    return ""
