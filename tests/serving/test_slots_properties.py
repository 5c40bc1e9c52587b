"""What must hold of plans of slots on every fleet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slot_board import Board
from longshore.scheduling.serving.slot_plan import due_at, plan_slots
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    ServingGPU,
    ServingState,
    SlotAction,
    SlotPlan,
)
from longshore.scheduling.serving.victims import Asker, Candidate, choose_victims, is_stale
from tests.support.slots import HOUR, NOW, POLICY, SECOND, model, slot, state, waits

SIZES = ((8_000,), (16_000,), (30_000,), (64_000,), (40_000, 40_000), (70_000, 70_000))


@st.composite
def scenes(draw: st.DrawFn, *, most_waiting: int = 6) -> ServingState:
    """Return a fleet on which slots have memory, and models that wait."""
    chance = Random(draw(st.integers(0, 10_000)))
    fleet = [
        ServingGPU(node, index, 80_000, chance.choice([0, 0, 10_000, 80_000]),
                   price=chance.choice([0, 1_500_000, 2_500_000]),
                   ends=NOW + chance.choice([40, 500]) * SECOND if chance.random() < 0.2 else None)
        for node in ("a", "b", "c")[: chance.randint(1, 3)]
        for index in range(chance.randint(1, 4))
    ]  # fmt: skip
    models = [
        model(f"m{number}", chance.choice(SIZES), load=chance.choice([15, 60]),
              use=chance.choice([0, 2, 60, 900]), concurrency=chance.choice([1, 4]),
              prewarm=chance.choice([0, 0, 1]))
        for number in range(10)
    ]  # fmt: skip
    rooms = {(gpu.node, gpu.index): gpu.memory - gpu.held for gpu in fleet}
    slots: list[ModelSlot] = []
    for number in range(chance.randint(0, 14)):
        of = chance.choice(models)
        mbs = of.sizes[0]
        node = chance.choice(fleet).node
        fit = [place for place in rooms if place[0] == node and rooms[place] >= mbs[0]]
        if len(fit) < len(mbs):
            continue
        places = [(*place, mb) for place, mb in zip(fit, mbs, strict=False)]
        for on, index, mb in places:
            rooms[on, index] -= mb
        kind = chance.choice(["idle", "idle", "used", "used", "loading", "draining", "pinned"])
        slots.append(
            slot(f"s{number}", of.key.model, *places,
                 idle=chance.choice([0, 9, 10, 500]) if kind in {"idle", "pinned"} else None,
                 pinned=kind == "pinned", priority=chance.choice([4, 5, 6]),
                 state={"loading": EngineStage.LOADING, "draining": EngineStage.DRAINING}.get(
                     kind, EngineStage.READY))
        )  # fmt: skip
    waiting = [
        waits(each.key.model, chance.randint(1, 9), chance.choice([0, 30, 70, 300]),
              priority=chance.choice([4, 5, 6]))
        for each in chance.sample(models, chance.randint(0, most_waiting))
    ]  # fmt: skip
    return state(fleet, models, waiting, slots)


def planned(scene: ServingState) -> SlotPlan:
    return plan_slots(scene, POLICY, NOW)


def taken(scene: ServingState, plan: SlotPlan) -> Counter[GPUOf]:
    """Return the MB of each GPU once all that leaves has left, and all is loaded."""
    leaving = {each.slot for each in plan.victims}
    memory = Counter[GPUOf]()
    for each in scene.slots:
        if each.id not in leaving:
            add(memory, each.memory)
    for each in (*plan.loads, *plan.reservations):
        add(memory, each.memory)
    return memory


def add(memory: Counter[GPUOf], more: tuple[MemoryOn, ...]) -> None:
    for gpu, mb in more:
        memory[gpu] += mb


def rooms(scene: ServingState) -> dict[GPUOf, int]:
    return {GPUOf(gpu.node, gpu.index): gpu.memory - gpu.held for gpu in scene.gpus}


@given(scenes())
def test_no_gpu_gets_more_than_it_has(scene: ServingState) -> None:
    plan = planned(scene)
    room = rooms(scene)
    assert all(mb <= room[gpu] for gpu, mb in taken(scene, plan).items())
    now = Counter[GPUOf]()
    for each in (*scene.slots, *plan.loads):
        add(now, each.memory)
    assert all(mb <= room[gpu] for gpu, mb in now.items())


@given(scenes())
def test_one_engine_loads_on_a_gpu_at_a_time(scene: ServingState) -> None:
    plan = planned(scene)
    loading = [each.memory for each in scene.slots if each.state is EngineStage.LOADING]
    begun = Counter(gpu for each in (*plan.loads, *plan.reservations) for gpu, _ in each.memory)
    assert all(number == 1 for number in begun.values())
    assert not set(begun) & {gpu for memory in loading for gpu, _ in memory}


@given(scenes())
def test_who_leaves_may(scene: ServingState) -> None:
    """Stale, of a lower class, or of the same where that has waited for its turn."""
    plan = planned(scene)
    slots = {each.id: each for each in scene.slots}
    waiting = {each.key: each for each in scene.waiting}
    assert len({each.slot for each in plan.victims}) == len(plan.victims)
    for reservation in plan.reservations:
        asks = waiting[reservation.key]
        due = due_at(asks, scene.models[reservation.key], POLICY) <= NOW
        for name in reservation.waits_for:
            leaves = slots[name]
            assert leaves.state is EngineStage.READY
            assert not leaves.pinned
            assert leaves.key != reservation.key
            assert {gpu for gpu, _ in leaves.memory} & {gpu for gpu, _ in reservation.memory}
            if not is_stale(leaves, POLICY, NOW):
                assert leaves.priority < asks.priority or (
                    due and leaves.priority == asks.priority
                )
    for victim in plan.victims:
        assert victim.drained is not is_stale(slots[victim.slot], POLICY, NOW)


@given(scenes())
def test_no_victim_could_stay(scene: ServingState) -> None:
    plan = planned(scene)
    slots = {each.id: each for each in scene.slots}
    full, room = taken(scene, plan), rooms(scene)
    for reservation in plan.reservations:
        assert reservation.waits_for
        for name in reservation.waits_for:
            more = Counter(full)
            add(more, slots[name].memory)
            assert any(more[gpu] > room[gpu] for gpu, _ in reservation.memory)


@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(scene: ServingState, chance: Random) -> None:
    def shuffled(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(chance.sample(values, len(values)))

    other = replace(
        scene, gpus=shuffled(scene.gpus), slots=shuffled(scene.slots),
        waiting=shuffled(scene.waiting), models=dict(shuffled(list(scene.models.items()))),
    )  # fmt: skip
    assert planned(other) == planned(scene)


@given(scenes(), st.integers(1, 9), st.booleans(), st.randoms(use_true_random=False))
def test_nobody_leaves_for_less_than_is_reckoned_at_least(
    scene: ServingState, priority: int, due: bool, chance: Random
) -> None:
    """For a GPU alone, and for each of two together; also once room has changed since."""
    board = Board(scene, POLICY, NOW)
    rows = range(len(board.gpus))
    sets = [*combinations(rows, 1), *combinations(rows, 2)]
    for _ in range(3):
        for of in scene.models.values():
            asker, mb = Asker(priority, of.key, due), of.sizes[0][0]
            least = board.least_prices(np.array(rows), mb, asker, of.load_time).tolist()
            for on in sets:
                leaving = board.leaving_on(on, [mb] * len(on), asker, of.load_time)
                if leaving is not None:
                    # Each price is rounded, and so is that of the reload before.
                    off = len(leaving) * (0.5 + 0.5 * 900 * (of.load_time / HOUR))
                    price = sum(each.price for each in leaving)
                    assert price >= max(least[row] for row in on) - off
        row = chance.choice(rows)
        gone = [each.id for each in scene.slots if chance.random() < 0.3]
        board.take(board.memory_of([row], [chance.choice([1_000, 20_000])]), gone, SECOND)


@given(scenes(most_waiting=1))
def test_one_that_waits_is_loaded_where_a_plain_search_finds_room(scene: ServingState) -> None:
    """With no slot of its own and its turn come, it gets one where any set of slots that may
    leave makes room on GPUs that load nothing and last."""
    for asks in scene.waiting:
        of = scene.models[asks.key]
        if any(each.key == asks.key for each in scene.slots):
            continue
        overdue = replace(asks, since=NOW - 900 * SECOND)
        scene = replace(scene, waiting=(overdue,))
        found = plain_search(scene, overdue.priority, of.sizes[0], of.load_time / SECOND)
        (decision, *_) = planned(scene).decisions
        assert (decision.action in {SlotAction.LOAD, SlotAction.YIELD}) is found
        if not found:
            assert decision.action in {SlotAction.WAIT, SlotAction.NEVER}
        assert decision.reason


def plain_search(scene: ServingState, priority: int, mbs: tuple[int, ...], load: float) -> bool:
    stays = [
        each for each in scene.slots
        if each.state is not EngineStage.READY or each.pinned
        or not (is_stale(each, POLICY, NOW) or each.priority <= priority)
    ]  # fmt: skip
    memory = Counter[GPUOf]()
    for each in stays:
        add(memory, each.memory)
    loading = {g for s in stays if s.state is EngineStage.LOADING for g, _ in s.memory}
    room = rooms(scene)
    fit = [
        GPUOf(gpu.node, gpu.index) for gpu in scene.gpus
        if gpu.ends is None or gpu.ends >= NOW + 2 * load * SECOND
    ]  # fmt: skip
    fit = [gpu for gpu in fit if gpu not in loading and room[gpu] - memory[gpu] >= mbs[0]]
    return any(len({gpu.node for gpu in chosen}) == 1 for chosen in combinations(fit, len(mbs)))


@given(
    st.dictionaries(st.integers(0, 2), st.integers(1, 20), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.dictionaries(st.integers(0, 2), st.integers(1, 12), min_size=1, max_size=3),
        ),
        max_size=7,
    ),
)
def test_the_choice_of_victims_beside_all_choices(
    short: dict[int, int], prices: list[tuple[int, dict[int, int]]]
) -> None:
    """Some are found where any suffice; none of them could stay; never dearer than one alone."""
    candidates = [Candidate(price, f"s{n}", frees) for n, (price, frees) in enumerate(prices)]
    chosen = choose_victims(short, candidates)
    assert (chosen is not None) is suffices(short, candidates)
    if chosen is None:
        return
    assert suffices(short, chosen)
    for each in chosen:
        assert not suffices(short, [other for other in chosen if other is not each])
    alone = [each.price for each in candidates if suffices(short, [each])]
    assert sum(each.price for each in chosen) <= min(alone, default=10**9)


def suffices(short: dict[int, int], leaving: list[Candidate] | tuple[Candidate, ...]) -> bool:
    """Return whether each GPU has what it is short of, once these have left."""
    return all(sum(each.frees.get(row, 0) for each in leaving) >= mb for row, mb in short.items())
