"""Who would pay for the jobs of a queue, each at its turn."""

from collections import deque
from collections.abc import Iterable, Sequence

from longshore.models.funding import FundingCode
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.funding.cover import (
    Cover,
    Recall,
    lost_to_losers,
    settle,
    surplus,
)
from longshore.scheduling.funding.facts import Use
from longshore.scheduling.funding.holding import Attempt
from longshore.scheduling.funding.quotas import QuotaTurns
from longshore.scheduling.funding.room import Key, Room

MOST_TRIES = 4
"""How often a job of a queue is covered anew whose room somebody nearer has taken. Wholes that
take from each other may have no order that all of them are content with."""


def fund(room: Room, queue: Sequence[Use], quotas: QuotaTurns | None = None) -> dict[str, Cover]:
    """Return who would pay for each job of a queue, by job; of those that `quotas` admit at their
    turns, where there are any.

    Each takes its room at its turn, whether it then is placed or not. Where one takes back what
    a relative before it in the queue would have had, that one is covered anew at once. What is
    recalled of a job that runs is given up only for the job that it is recalled for: if more is
    given up than that one uses, nobody else is told of it.
    """
    with paused():
        return _funded(room, queue, quotas)


def _funded(room: Room, queue: Sequence[Use], quotas: QuotaTurns | None) -> dict[str, Cover]:
    covers: dict[str, Cover] = {}
    turns: _Turns | None = None
    for use in queue:
        if quotas is not None and not quotas.admits(use.job_id):
            continue
        found = covers[use.job_id] = settle(room, use)
        if found.recalls:
            if turns is None:
                turns = _Turns(room, queue, covers)
            turns.sort_out(use)
        if quotas is not None:
            for job_id in turns.changed if turns and found.recalls else (use.job_id,):
                quotas.note(job_id, starts=covers[job_id].funded)
    if turns is not None and turns.freed:
        _ask_again(room, queue, covers, turns, quotas)
    return covers


def _ask_again(
    room: Room,
    queue: Sequence[Use],
    covers: dict[str, Cover],
    turns: "_Turns",
    quotas: QuotaTurns | None,
) -> None:
    """Ask those again whom nobody would have paid for, where one before them has lost all of its
    room since: the first in the queue comes first. No job gains more often than `MOST_TRIES`.
    Those too whom a quota has refused, where one before them has given it back."""
    gained: dict[str, int] = {}
    for _ in range(MOST_TRIES):
        refused: set[object] = set()
        again = False
        for use in queue:
            job_id = use.job_id
            first = job_id not in covers
            if first and (quotas is None or not quotas.gave_back):
                continue
            if not first and (covers[job_id].funded or turns.gave_up(use)):
                continue
            kind = use.tenant, use.shares, use.terms, use.preemptible, use.kinds, use.gpus_on
            if kind in refused and not first:
                continue
            if quotas is not None and not quotas.still_admits(job_id):
                continue
            found = settle(room, use) if gained.get(job_id, 0) < MOST_TRIES else None
            if found is None or not found.funded:
                refused.add(kind)
                if found is not None:
                    covers.setdefault(job_id, found)
                continue
            covers[job_id], again = found, True
            gained[job_id] = gained.get(job_id, 0) + 1
            changed = {job_id}
            if found.recalls:
                turns.sort_out(use)
                changed = turns.changed
            if quotas is not None:
                for each in changed:
                    quotas.note(each, starts=covers[each].funded)
        if not again:
            return


class _Turns:
    """What jobs of a queue have taken back from each other and from others."""

    def __init__(self, room: Room, queue: Sequence[Use], covers: dict[str, Cover]) -> None:
        self._room = room
        self._waiting = {(use.job_id, use.attempt): use for use in queue}
        self._covers = covers
        self.changed: set[str] = set()
        """Whom the last job that came has concerned, and itself."""
        self.freed = False
        """Whether one of these has lost all of its room."""
        self._tries: dict[str, int] = {}
        self._kept_back: dict[Attempt, tuple[dict[int, int], dict[int, int]]] = {}
        """By whom something was recalled for: what nobody else is told of, by envelope and cap."""

    def sort_out(self, use: Use) -> None:
        """Cover those anew who have lost to a job; and those who lost to them."""
        self.changed = {use.job_id}
        todo = deque(self._losers(use))
        while todo:
            one = todo.popleft()
            self.changed.add(one.job_id)
            self._covers[one.job_id] = self._again(one)
            todo.extend(self._losers(one))
        self._leave_what_is_lost_again(use)
        self.freed = self.freed or any(not self._covers[each].funded for each in self.changed)

    def gave_up(self, use: Use) -> bool:
        """Return whether a job has lost its room so often that it is left without."""
        return self._tries.get(use.job_id, 0) >= MOST_TRIES

    def _leave_what_is_lost_again(self, use: Use) -> None:
        """Have nobody pay for a job for which others who run would not let that be."""
        attempt, found = (use.job_id, use.attempt), self._covers[use.job_id]
        recalls = [one for one in found.recalls if _attempt(one) not in self._waiting]
        settled = self._room.uses.get(attempt, use)
        if found.funded and (lacks := lost_to_losers(self._room, settled, recalls)):
            self._revoke(attempt, use)
            self._covers[use.job_id] = Cover(False, code=FundingCode.NO_ROOM, missing=lacks)

    def _again(self, use: Use) -> Cover:
        if self._tries[use.job_id] < MOST_TRIES:
            return settle(self._room, use)
        whole = sum(share.amount for share in use.shares)
        return Cover(False, code=FundingCode.NO_ROOM, missing=whole)

    def _losers(self, use: Use) -> list[Use]:
        found = self._covers[use.job_id]
        recalls: dict[Key, Recall] = {}
        losers: dict[Attempt, Use] = {}
        for recall in found.recalls:
            attempt = _attempt(recall)
            if attempt in self._waiting:
                losers[attempt] = self._waiting[attempt]
            else:
                _put(recalls, recall)
        self._keep_back(use, recalls.values(), found)
        for attempt, loser in losers.items():
            for recall in self._revoke(attempt, loser):
                _put(recalls, recall)
            self._tries[loser.job_id] = self._tries.get(loser.job_id, 0) + 1
        if found.recalls:
            self._covers[use.job_id] = found._replace(recalls=tuple(recalls.values()))
        return list(losers.values())

    def _keep_back(self, use: Use, recalls: Iterable[Recall], found: Cover) -> None:
        """Tell nobody else of what is given up for a job beyond what it uses."""
        kept_back = surplus(self._room, recalls, found.charges)
        self._change(kept_back, -1)
        self._kept_back[use.job_id, use.attempt] = kept_back

    def _change(self, amounts: tuple[dict[int, int], dict[int, int]], by: int) -> None:
        for place, amount in amounts[0].items():
            self._room.free[place] += by * amount
            self._room.given_back.append(place)
        for cap, amount in amounts[1].items():
            self._room.cap_free[cap] += by * amount

    def _revoke(self, attempt: Attempt, use: Use) -> list[Recall]:
        """Take a job's cover away; return what cannot be given back of what was recalled for it,
        since the room is now another's."""
        room = self._room
        for paid in list(room.held.get(attempt, {}).values()):
            room.remove(paid.charge)
        self._change(self._kept_back.pop(attempt, ({}, {})), 1)
        recalls = self._covers[use.job_id].recalls
        left = [self._give_back(recall) for recall in recalls]
        return [recall for recall in left if recall.lost]

    def _give_back(self, recall: Recall) -> Recall:
        """Have a charge of a job that runs go on, as far as there is room; return the rest."""
        room, charge = self._room, recall.charge
        place = room.place[charge.envelope]
        left = min([room.free[place], *(room.cap_free[cap] for cap in room.caps[place])])
        count = min(max(left, 0) // charge.milli, len(recall.lost))
        if count:
            gpus = set(recall.lost[:count])
            for paid in list(room.held.get((charge.job_id, charge.attempt), {}).values()):
                one = paid.charge
                if (one.rank, one.envelope) == (charge.rank, charge.envelope):
                    gpus.update(one.gpus)
                    room.remove(one)
            room.add(charge._replace(gpus=tuple(sorted(gpus))))
        return Recall(charge, recall.lost[count:])


def _attempt(recall: Recall) -> Attempt:
    return recall.charge.job_id, recall.charge.attempt


def _put(recalls: dict[Key, Recall], recall: Recall) -> None:
    charge = recall.charge
    key = charge.job_id, charge.attempt, charge.rank, charge.envelope
    before = recalls.get(key)
    if before is not None:
        whole = max(charge, before.charge, key=lambda one: len(one.gpus))
        recall = Recall(whole, tuple(sorted({*before.lost, *recall.lost})))
    recalls[key] = recall
