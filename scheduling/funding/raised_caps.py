"""Caps that would have to be higher so that somebody pays for a job."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from longshore.scheduling.funding.cover import cover, start
from longshore.scheduling.funding.facts import Facts
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.tried import Turn, held_now

_MOST_CAPS = 16
"""Of more that are raised together it is not tried which could be left out."""


def raised_caps(turn: Turn, missing: int) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield each cap by how much it has to be higher, or several together, as thousandths.
    `missing` is for how much nobody pays."""
    room, use, *_ = turn
    taking = start(room, use, ignore_caps=True)
    taking.walk(use)
    over = [(cap, -left) for cap, left in enumerate(room.cap_free) if left < 0]
    taking.undo()
    each = min(share.milli for share in use.shares)
    helped = False
    for cap, by in over:
        if not _covered_above(turn, [(cap, by)]):
            continue
        # What comes after it on the ladder, and is under no cap, may pay for a part.
        tries = range(missing, by, each)
        least = bisect_left(tries, True, key=lambda more, cap=cap: (
            _covered_above(turn, [(cap, more)])))  # fmt: skip
        raised = _enough(turn, [(cap, tries[least] if least < len(tries) else by)])
        if raised:
            helped = True
            yield raised
    if helped or not over:
        return
    needed = _needed(turn, over)
    raised = _enough(turn, needed)
    if raised is None and needed != over:
        # Of those that it needs by itself others may take all first.
        raised = _enough(turn, over)
    if raised:
        yield raised


def _needed(turn: Turn, over: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return those of these caps that have to be higher, and each by no more than it has to be, if
    nobody else takes it."""
    found = list(over)
    if len(found) > _MOST_CAPS or not _covered_above(turn, found):
        return found
    for one in reversed(over):
        rest = [each for each in found if each != one]
        if _covered_above(turn, rest):
            found = rest
    step = min(share.milli for share in turn.use.shares)
    for place, (cap, by) in enumerate(found):

        def with_less(more: int, place: int = place, cap: int = cap) -> bool:
            return _covered_above(turn, [*found[:place], (cap, more), *found[place + 1 :]])

        tries = range(step, by, step)
        least = bisect_left(tries, True, key=with_less)
        found[place] = cap, tries[least] if least < len(tries) else by
    return found


def _covered_above(turn: Turn, raised: Iterable[tuple[int, int]]) -> bool:
    """Return whether somebody would pay if caps were so much higher, and nobody else took it."""
    turn.go_on()
    room, use, *_ = turn
    then = Room(held_now(room, use), room.now)
    for cap, by in raised:
        then.cap_free[cap] += by
    return cover(then, use).funded


def _enough(turn: Turn, raised: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]] | None:
    """Return by how much these caps have to be higher, so that there is enough for those too that
    come first and have no payer; None where that is no help."""
    facts = turn.facts()

    def higher(more: int) -> Facts:
        caps = list(facts.caps)
        for cap, by in raised:
            gpus = caps[cap].spec.gpus + (by + more) / 1000
            caps[cap] = caps[cap]._replace(spec=caps[cap].spec.model_copy(update={"gpus": gpus}))
        return facts._replace(caps=caps)

    more = turn.least(higher)
    return None if more is None else [(cap, by + more) for cap, by in raised]
