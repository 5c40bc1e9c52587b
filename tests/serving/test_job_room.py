"""Which slots leave GPUs for a job, and at which price."""

from typing import Any

import pytest

from longshore.models.errors import NotFoundError
from longshore.models.serving import EngineStage
from longshore.scheduling.serving.job_room import JobRoom, room_for_job
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    ServingState,
    SlotReservation,
)
from tests.support.slots import NOW, POLICY, gpus, key, model, slot, state

A0, A1 = GPUOf("a", 0), GPUOf("a", 1)
MODELS = [
    model("m", 30_000, use=60),
    model("n", 40_000, use=6),
    model("wide", (20_000, 20_000), use=1),
]


def fleet(*slots: ModelSlot, **fields: Any) -> ServingState:
    return state(gpus(2), MODELS, slots=slots, **fields)


def room(
    of: ServingState, memory: int | None = None, priority: int = 5, at: GPUOf = A0
) -> JobRoom:
    return room_for_job(of, [at], memory, priority, POLICY, NOW)


STALE = slot("s1", "m", ("a", 0, 30_000), idle=60)
STALE_TOO = slot("s2", "n", ("a", 0, 40_000), idle=60)


def test_a_whole_gpu_is_had_where_all_of_its_slots_leave():
    """$0.033 a reload: 60 requests an hour for the one, 6 for the other."""
    made = room(fleet(STALE, STALE_TOO), priority=0)
    assert [each.slot for each in made.victims] == ["s2", "s1"]
    assert made.price == 2_199_978
    assert made.reason.startswith("room on a GPU 0 for $2.20, 2 slots leave: n (s2), idle for 1m")


def test_for_a_part_the_cheapest_leaves_that_suffices():
    assert [each.slot for each in room(fleet(STALE, STALE_TOO), 40_000).victims] == ["s2"]
    free = room(fleet(STALE, STALE_TOO), 10_000)
    assert (free.suffices, free.victims, free.price) == (True, (), 0)


def test_one_in_use_yields_to_a_higher_class_alone():
    used = slot("s", "m", ("a", 0, 30_000))
    same = room(fleet(used))
    assert not same.suffices
    assert same.victims == ()
    assert same.kept[0].reason == "it is in use, of class 5"
    assert same.reason == "no room on a GPU 0: s: it is in use, of class 5"
    higher = room(fleet(used), priority=6)
    assert higher.suffices
    assert higher.victims[0].drained


@pytest.mark.parametrize(
    "fields", [{"pinned": True, "idle": 600}, {"state": EngineStage.LOADING, "priority": 0}]
)
def test_what_is_pinned_or_loads_stays(fields: dict[str, Any]):
    assert not room(fleet(slot("s", "m", ("a", 0, 30_000), **fields)), priority=10).suffices


def test_a_slot_over_two_gpus_leaves_once_and_costs_a_reload_of_both():
    wide = slot("w", "wide", ("a", 0, 20_000), ("a", 1, 20_000), idle=60)
    made = room_for_job(fleet(wide), [A0, A1], None, 5, POLICY, NOW)
    assert [each.slot for each in made.victims] == ["w"]
    assert made.price == 66_667


def test_what_drains_is_gone_and_what_is_promised_is_not_free():
    going = slot("s", "m", ("a", 0, 80_000), state=EngineStage.DRAINING)
    assert room(fleet(going)).suffices
    reservation = SlotReservation(key("n"), 5, (MemoryOn(A0, 40_000),), ("s",))
    assert not room(fleet(going, reservations=(reservation,))).suffices


def test_memory_of_other_jobs_stays():
    held = state(gpus(1, held=10_000), MODELS, slots=[STALE])
    assert not room(held).suffices
    assert room(held, 70_000).suffices


def test_a_gpu_that_there_is_not():
    with pytest.raises(NotFoundError, match="no GPU 7 on node a"):
        room(fleet(), at=GPUOf("a", 7))
