"""Which slots leave for another or for a job, and what that costs.

price = GPU-seconds of the reload x price of a GPU x requests expected meanwhile

A stale slot yields to anybody, one in use to a strictly higher class, and to its own class where
that has waited for too long; what loads or is pinned yields to nobody.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.serving import EngineStage
from longshore.models.text import amount, span
from longshore.scheduling.serving.slots import ModelSlot, ServedModel, SlotKey, SlotPolicy, Victim

_HOUR = timedelta(hours=1)


class Asker(NamedTuple):
    """Who asks for memory."""

    priority: int
    key: SlotKey | None = None
    """None for a job."""
    due: bool = False
    """It has waited for so long that its own class yields, too."""


class Candidate(NamedTuple):
    """A slot that may leave, for the choice between several."""

    price: int
    slot: str
    frees: Mapping[int, int]
    """MB by the row of a GPU."""


def is_stale(slot: ModelSlot, policy: SlotPolicy, now: datetime) -> bool:
    """Return whether a slot yields to anybody who asks for another key."""
    if slot.state is not EngineStage.READY or slot.pinned or slot.active or slot.queued:
        return False
    if slot.prewarmed:
        return True
    return slot.idle_since is not None and now - slot.idle_since >= policy.stale_after


def yields(slot: ModelSlot, asker: Asker, policy: SlotPolicy, now: datetime) -> bool:
    """Return whether a slot leaves for who asks."""
    if slot.state is not EngineStage.READY or slot.pinned or asker.key == slot.key:
        return False
    if slot.priority < asker.priority or (asker.due and slot.priority == asker.priority):
        return True
    return is_stale(slot, policy, now)


def why_not(slot: ModelSlot, asker: Asker, policy: SlotPolicy, now: datetime) -> str | None:
    """Return why a slot keeps its memory; None where it yields."""
    if slot.state is EngineStage.LOADING:
        return "it loads, and yields to nobody until it is ready"
    if slot.state is EngineStage.DRAINING:
        return "it drains already"
    if slot.pinned:
        return "it is pinned"
    if asker.key == slot.key:
        return "it serves the same key"
    if yields(slot, asker, policy, now):
        return None
    said = f"it is in use, of class {slot.priority}"
    if not slot.active and not slot.queued:
        left = policy.stale_after - (now - (slot.idle_since or now))
        said += f", and idle in {span(left)}"
    return said


def reload_price(
    slot: ModelSlot, model: ServedModel, prices: Sequence[int], policy: SlotPolicy
) -> int:
    """Return what a load of a slot costs in micro-dollars: it keeps each of its GPUs from loading
    another for so long. `prices` are those of its GPUs for an hour."""
    seconds = model.load_time.total_seconds()
    return round(sum(price or policy.gpu_price for price in prices) * seconds / 3600)


def victim_of(
    slot: ModelSlot,
    model: ServedModel | None,
    reload: int,
    meanwhile: timedelta,
    asker: Asker,
    policy: SlotPolicy,
    now: datetime,
    counted: str = "requests",
) -> Victim:
    """Return a slot as it leaves; `meanwhile` is for how long its requests are counted, or what
    the use of its model is `counted` in."""
    use = model.use if model else 0.0
    price = price_of(reload, use, meanwhile)
    stale = is_stale(slot, policy, now)
    turn = not stale and slot.priority >= asker.priority
    if stale:
        idle = now - (slot.idle_since or slot.since)
        state = "prewarmed and unused" if slot.prewarmed else f"idle for {span(idle)}"
    elif turn:
        state = f"of class {slot.priority} too, its turn to be drained"
    else:
        state = f"in use, of class {slot.priority}, drained"
    expected = use * (meanwhile / _HOUR)
    reason = (
        f"{slot.key} ({slot.id}), {state}: {amount(price)}, a reload of {amount(reload)} x "
        f"{expected:,.2f} {counted}"
    )
    return Victim(slot.id, not stale, turn, price, reason)


def price_of(reload: int, use: float, meanwhile: timedelta) -> int:
    """Return micro-dollars: the reload, for each request that is expected meanwhile."""
    return round(reload * use * (meanwhile / _HOUR))


def choose_victims(
    short: Mapping[int, int], candidates: Sequence[Candidate]
) -> tuple[Candidate, ...] | None:
    """Return who leaves so that each GPU has the MB that it is short of; None where all together
    do not suffice.

    The cheapest first, of those that free what is needed. Then those stay that prove unnecessary,
    the dearest first; and one slot alone goes in place of several, where it costs less.
    """
    left = {row: mb for row, mb in short.items() if mb > 0}
    chosen: list[Candidate] = []
    for candidate in sorted(candidates):
        if not left:
            break
        if not any(row in left for row in candidate.frees):
            continue
        chosen.append(candidate)
        for row, mb in candidate.frees.items():
            if row in left and left[row] <= mb:
                del left[row]
            elif row in left:
                left[row] -= mb
    if left:
        return None
    freed = {row: sum(each.frees.get(row, 0) for each in chosen) for row in short}
    for candidate in sorted(chosen, reverse=True):
        frees = candidate.frees
        if all(freed[row] - frees.get(row, 0) >= mb for row, mb in short.items()):
            chosen = [each for each in chosen if each is not candidate]
            freed = {row: mb - frees.get(row, 0) for row, mb in freed.items()}
    price = sum(each.price for each in chosen)
    alone = min((each for each in candidates if each.price < price and _alone(short, each)),
                default=None)  # fmt: skip
    return tuple(chosen) if alone is None else (alone,)


def _alone(short: Mapping[int, int], leaving: Candidate) -> bool:
    """Return whether each GPU has the MB that it is short of, once this one has left."""
    return all(leaving.frees.get(row, 0) >= mb for row, mb in short.items())
