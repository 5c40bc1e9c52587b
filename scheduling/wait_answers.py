"""Answers to waiting jobs: equal requests to the same nodes get the same answer.

A plan takes, and gives nothing back but where jobs change their places. So where one job found
neither room nor a start that is kept for it, one behind it that asks for as much finds none
either, whatever the words are by then.
"""

from collections.abc import Hashable
from operator import attrgetter
from typing import NamedTuple

from longshore.models.job_request import JobRequest
from longshore.models.placement import Decision, PackingPolicy, RejectionCode
from longshore.models.topology import Gang
from longshore.scheduling.gangs.offers import gives_now, offers_by_time
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.reservations import NoStart
from longshore.scheduling.placement.state import Need, NodeView

_NOT_ASKED = {"id", "submitted_at", "waits_since", "attempt", "priority", "path_behind", "data",
              "attained", "can_stop", "duration_known", "learnt", "tenant"}  # fmt: skip
"""What no answer of a plan depends on, but for `data`: what counts of that is in the need."""
_asked = attrgetter(*(name for name in JobRequest.model_fields if name not in _NOT_ASKED))


class _Told(NamedTuple):
    version: int
    """Of the columns that the job saw."""
    need: Need
    whatever_long: bool
    decision: Decision

    def is_for(self, need: Need) -> bool:
        """Return whether a job is told this that differs in nothing but its time."""
        return self.whatever_long or need.is_as_long_as(self.need)


class WaitAnswers:
    """What jobs of a plan were told that wait and keep no start."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._one: dict[tuple[Need, int], _Told] = {}
        self._gangs: dict[Hashable, tuple[int, Decision]] = {}
        self._by_time: dict[Need, tuple[int, list[NodeView]]] = {}
        """Nodes of which the duration of a gang decides what they give it."""
        self._malleable: dict[Hashable, tuple[int, Decision]] = {}
        self._in_vain = NoStart()
        """What asked for room and for a start, and found neither."""
        self._whatever_long: dict[Need, int] = {}
        """Where the duration did not decide that, but for nodes that end: how many ended too early
        for one of them, at least."""

    def has_no_room(self, need: Need) -> bool:
        """Return whether a job without a gang finds neither room nor a start, since one like it
        found none."""
        ended = self._whatever_long.get(need.but_for_time())
        if ended is not None and self._columns.trait_sets.ended_before(need.must_last) >= ended:
            return True
        return need in self._in_vain

    def jobs_moved(self) -> None:
        """Forget who found no room: jobs that changed their places may have made some."""
        self._in_vain.clear()
        self._whatever_long.clear()

    def of_one(self, need: Need) -> Decision | None:
        """Return what a job without a gang is told, where that is known.

        Its duration decides on how many nodes it has too little time, and whether it meets what is
        kept for others. So it is told what one was that is no longer, where as many nodes end too
        early for both; and what a longer one was, where neither what is kept nor a start decided.
        """
        told = self._one.get(self._key(need))
        if told is None or told.version != self._columns.version or not told.is_for(need):
            return None
        return told.decision

    def note_one(self, need: Need, decision: Decision, *, may_start: bool) -> None:
        """Take in what a job was told; `may_start` says that a start was looked for."""
        whatever_long = not may_start and RejectionCode.RESERVED not in decision.rejected
        told = _Told(self._columns.version, need, whatever_long, decision)
        key = alike, ended = self._key(need)
        self._one[key] = told
        if need not in self._in_vain:
            self._in_vain.add(need)
        if whatever_long:
            self._whatever_long[alike] = min(ended, self._whatever_long.get(alike, ended))

    def of_gang(self, need: Need, gang: Gang, *, may_start: bool) -> Decision | None:
        """Return what a gang is told, where one was that asks for the same: also for another time
        where that decides nothing. `may_start` says that a start would be looked for: its duration
        decides on that where a node ends, or something is kept there."""
        columns = self._columns
        by_time = may_start and (columns.reserved or columns.trait_sets.some_end)
        told = self._gangs.get((need, gang) if by_time else self._but_for_time(need, gang))
        return told[1] if told and told[0] == self._columns.version else None

    def note_gang(self, need: Need, gang: Gang, decision: Decision) -> None:
        """Take in what a gang was told for which no start is known: whether one was looked for
        changes no word of that."""
        told = self._columns.version, decision
        self._gangs[need, gang] = self._gangs[self._but_for_time(need, gang)] = told

    def _but_for_time(self, need: Need, gang: Gang) -> Hashable:
        """Return what a gang asks for, and all that its duration decides: which nodes end too
        early for it, and what those give it that are kept for others later."""
        alike, ended = self._key(need)
        at, nodes = self._by_time.get(alike, (-1, []))
        if at != self._columns.version:
            kept = sorted(set(self._columns.reserved.values()))
            nodes = offers_by_time(alike, (self._columns.views[position] for position in kept))
            self._by_time[alike] = self._columns.version, nodes
        return alike, gang, ended, *(gives_now(view, need, self._columns.now) for view in nodes)

    def of_malleable(self, job: JobRequest, policy: PackingPolicy) -> Decision | None:
        """Return what a malleable job is told, where one was that asks for the same sizes."""
        told = self._malleable.get(_asked_in_sizes(job, policy))
        return told[1] if told and told[0] == self._columns.version else None

    def note_malleable(self, job: JobRequest, policy: PackingPolicy, decision: Decision) -> None:
        """Take in what a malleable job was told."""
        self._malleable[_asked_in_sizes(job, policy)] = self._columns.version, decision

    def _key(self, need: Need) -> tuple[Need, int]:
        return need.but_for_time(), self._columns.trait_sets.ended_before(need.must_last)


def _asked_in_sizes(job: JobRequest, policy: PackingPolicy) -> Hashable:
    """Return all that decides on which sizes of a malleable job there is room for."""
    paid_on = policy.funding.only_on.get(job.id) if policy.funding else None
    return _asked(job), Need.of(job, policy), policy.most_paid_for(job.id), paid_on
