"""Which slots would leave GPUs for a job, and at which price: for the cycle that places jobs."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.models.errors import NotFoundError
from longshore.models.serving import EngineStage
from longshore.models.text import amount, count, format_places
from longshore.scheduling.serving.slots import (
    GPUOf,
    ModelSlot,
    ServingGPU,
    ServingState,
    SlotPolicy,
    Victim,
)
from longshore.scheduling.serving.victims import (
    Asker,
    Candidate,
    choose_victims,
    price_of,
    reload_price,
    victim_of,
    why_not,
)

_MEANWHILE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KeptSlot:
    """A slot that is in the way of a job, and stays."""

    slot: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobRoom:
    """What a job may have of GPUs once slots have left them."""

    gpus: tuple[GPUOf, ...]
    suffices: bool
    """Whether the job then has what it wants on each of them."""
    victims: tuple[Victim, ...]
    """None where it does not suffice."""
    price: int
    """Micro-dollars of the victims."""
    kept: tuple[KeptSlot, ...]
    reason: str


def room_for_job(
    state: ServingState,
    gpus: Collection[GPUOf],
    memory: int | None,
    priority: int,
    policy: SlotPolicy,
    now: datetime,
    meanwhile: timedelta = _MEANWHILE,
) -> JobRoom:
    """Return which slots leave these GPUs for a job of a class.

    It wants so many MB of each, or with None each whole: then no slot may stay there. A stale slot
    yields to any job, one in use to a strictly higher class. `meanwhile` is for how long the
    requests of those that leave are counted. Raises NotFoundError for a GPU that there is not.
    """
    wanted = sorted(set(gpus))
    fleet = {GPUOf(gpu.node, gpu.index): gpu for gpu in state.gpus}
    for at in wanted:
        if at not in fleet:
            raise NotFoundError(f"there is no GPU {at.gpu_index} on node {at.node}")
    rows = {at: row for row, at in enumerate(wanted)}
    asker = Asker(priority)
    here = sorted(
        (each for each in state.slots if any(gpu in rows for gpu, _ in each.memory)),
        key=lambda each: each.id,
    )
    short = _short(state, [fleet[at] for at in wanted], rows, here, memory)
    candidates: list[Candidate] = []
    kept: list[KeptSlot] = []
    for slot in here:
        if slot.state is EngineStage.DRAINING:
            continue  # it leaves already
        if why := why_not(slot, asker, policy, now):
            kept.append(KeptSlot(slot.id, why))
            continue
        model = state.models.get(slot.key)
        price = price_of(_reload(state, fleet, slot, policy), model.use if model else 0, meanwhile)
        frees = {rows[gpu]: mb for gpu, mb in slot.memory if gpu in rows}
        candidates.append(Candidate(price, slot.id, frees))
    by_id = {slot.id: slot for slot in here}
    chosen = None if memory is None and kept else choose_victims(short, candidates)
    where = format_places([(at.node, [at.gpu_index]) for at in wanted])
    if chosen is None:
        stay = "; ".join(f"{each.slot}: {each.reason}" for each in kept) or "others hold memory"
        return JobRoom(tuple(wanted), False, (), 0, tuple(kept), f"no room on {where}: {stay}")
    if memory is None:
        chosen = tuple(sorted(candidates))
    victims = tuple(
        victim_of(
            slot, state.models.get(slot.key), _reload(state, fleet, slot, policy), meanwhile,
            asker, policy, now,
        )
        for slot in (by_id[each.slot] for each in chosen)
    )  # fmt: skip
    price = sum(each.price for each in victims)
    said = "; ".join(each.reason for each in victims) or "nobody has to leave"
    reason = f"room on {where} for {amount(price)}, {count(len(victims), 'slot')} leave: {said}"
    if not victims:
        reason = f"room on {where}: {said}"
    return JobRoom(tuple(wanted), True, victims, price, tuple(kept), reason)


def _short(
    state: ServingState,
    gpus: list[ServingGPU],
    rows: dict[GPUOf, int],
    here: list[ModelSlot],
    memory: int | None,
) -> dict[int, int]:
    """Return the MB that each GPU lacks for the job; what drains counts as gone."""
    short: dict[int, int] = {}
    for gpu in gpus:
        row = rows[GPUOf(gpu.node, gpu.index)]
        short[row] = (gpu.memory if memory is None else memory) - (gpu.memory - gpu.held)
    stays = [slot.memory for slot in here if slot.state is not EngineStage.DRAINING]
    for each in (*stays, *(reservation.memory for reservation in state.reservations)):
        for at, mb in each:
            if at in rows:
                short[rows[at]] += mb
    return {row: mb for row, mb in short.items() if mb > 0}


def _reload(
    state: ServingState, fleet: dict[GPUOf, ServingGPU], slot: ModelSlot, policy: SlotPolicy
) -> int:
    model = state.models.get(slot.key)
    prices = [fleet[gpu].price for gpu, _ in slot.memory if gpu in fleet]
    return reload_price(slot, model, prices, policy) if model else 0
