"""Which slots are loaded and which leave: worked cases."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.models.serving import EngineStage
from longshore.models.topology import LinkClass, NodeTopology
from longshore.scheduling.serving.slot_plan import plan_slots
from longshore.scheduling.serving.slots import (
    GPUOf,
    LayerSplit,
    MemoryOn,
    ModelSlot,
    ServingState,
    SlotAction,
    SlotDecision,
    SlotPlan,
    SlotReservation,
)
from tests.support.slots import (
    NOW,
    POLICY,
    SECOND,
    gpus,
    key,
    model,
    slot,
    state,
    waits,
)

A0, A1 = GPUOf("a", 0), GPUOf("a", 1)


def planned(of: ServingState, policy=POLICY) -> SlotPlan:
    return plan_slots(of, policy, NOW)


def only(plan: SlotPlan) -> SlotDecision:
    (decision,) = plan.decisions
    return decision


def leaving(plan: SlotPlan) -> list[str]:
    return [victim.slot for victim in plan.victims]


def test_a_small_model_goes_onto_one_gpu():
    plan = planned(state(gpus(), [model("m", 15_000)], [waits("m")]))
    assert plan.loads[0].memory == (MemoryOn(A0, 15_000),)
    assert only(plan).action is SlotAction.LOAD
    assert only(plan).reason == (
        "on a GPU 0 with memory that is free; the load of 1m costs $0.03; 1 request cost $0.03 "
        "meanwhile"
    )


def test_a_model_larger_than_a_gpu_is_cut_between_two():
    plan = planned(state(gpus(), [model("m", 140_000, (70_000, 70_000))], [waits("m")]))
    assert plan.loads[0].memory == (MemoryOn(A0, 70_000), MemoryOn(A1, 70_000))


def test_two_models_go_onto_a_gpu_each():
    plan = planned(
        state(gpus(), [model("m", 45_000), model("n", 45_000)], [waits("m"), waits("n")])
    )
    assert [load.memory[0].gpu for load in plan.loads] == [A0, A1]


def test_one_engine_loads_on_a_gpu_at_a_time():
    """Both would fit: the second waits until the first is ready, which costs less than nothing."""
    plan = planned(
        state(gpus(1), [model("m", 10_000), model("n", 10_000)], [waits("m"), waits("n")])
    )
    assert len(plan.loads) == 1
    second = plan.decisions[1]
    assert second.action is SlotAction.WAIT
    assert second.again_at == NOW + 60 * SECOND
    assert second.reason.startswith("cheapest is to wait for a GPU 0 after the load there, $0.03")


def test_nobody_waits_for_memory_that_is_given_away():
    models = [model("m", 50_000), model("n", 50_000)]
    plan = planned(state(gpus(1), models, [waits("m"), waits("n")]))
    assert plan.decisions[1].reason.startswith("it needs 50,000 MB on a GPU that loads nothing")


THIRD = [model("m", 45_000), model("n", 45_000), model("third", 45_000)]


def two_of_45(**n: Any) -> list[ModelSlot]:
    return [slot("s1", "m", ("a", 0, 45_000)), slot("s2", "n", ("a", 1, 45_000), **n)]


def test_a_third_waits_where_none_is_stale():
    plan = planned(state(gpus(), THIRD, [waits("third")], two_of_45()))
    assert (plan.loads, plan.victims) == ((), ())
    assert only(plan).action is SlotAction.WAIT
    assert "45,000 MB on a GPU that loads nothing; 35,000 MB are free at most" in only(plan).reason
    assert only(plan).again_at == NOW + 240 * SECOND  # its turn: four load times


def test_a_third_takes_the_place_of_a_stale_one():
    plan = planned(state(gpus(), THIRD, [waits("third")], two_of_45(idle=10)))
    assert leaving(plan) == ["s2"]
    assert not plan.victims[0].drained
    assert plan.reservations == (
        SlotReservation(key("third"), 5, (MemoryOn(A1, 45_000),), ("s2",)),
    )
    assert only(plan).action is SlotAction.YIELD


def test_requests_that_a_victim_has_to_answer_first_are_a_price_too():
    """Its reload is cheaper by half than that of the idle one: $0.0006 to $0.0011."""
    models = [model("m", 45_000, use=1), model("n", 45_000, use=2), model("third", 45_000)]
    asks = waits("third", seconds=300)
    plan = planned(state(gpus(), models, [asks], two_of_45(idle=60)))
    assert leaving(plan) == ["s2"]
    (other,) = only(plan).rejected
    assert [each.slot for each in other.victims] == ["s1"]
    assert other.reason.endswith("after their last requests, $0.0028 for 5s of waiting")


def test_a_slot_is_not_stale_a_second_before():
    plan = planned(state(gpus(), THIRD, [waits("third")], two_of_45(idle=9)))
    assert plan.victims == ()
    assert plan.again_at == NOW + 1 * SECOND


def test_the_incident_of_128_gib_on_80():
    """Of 74.49, 14.685 and 39 GiB only the first fits onto 80, in thousandths of a GiB."""
    sizes = {"a1": 74.49, "b1": 14.685, "c1": 39.0}
    models = [model(name, round(1000 * gib)) for name, gib in sizes.items()]
    plan = planned(
        state(gpus(1), models, [waits("b1"), waits("c1")], [slot("s", "a1", ("a", 0, 74_490))])
    )
    assert plan.loads == ()
    assert [each.action for each in plan.decisions] == [SlotAction.WAIT] * 2


def test_a_slot_of_the_same_key_is_reused_even_if_stale():
    """H10: its requests go there, and it does not leave for them."""
    models = [model("m", 45_000, concurrency=2)]
    plan = planned(
        state(gpus(1), models, [waits("m", 2)], [slot("s", "m", ("a", 0, 45_000), idle=900)])
    )
    assert only(plan).serve == (("s", 2),)
    assert (plan.loads, plan.victims) == ((), ())


def test_another_adapter_is_another_key():
    with_lora = replace(model("m", 45_000), key=key("m", "support"))
    waiting = replace(waits("m"), key=key("m", "support"))
    plan = planned(
        state(
            gpus(1),
            [model("m", 45_000), with_lora],
            [waiting],
            [slot("s", "m", ("a", 0, 45_000), idle=20)],
        )
    )
    assert leaving(plan) == ["s"]


def test_a_model_without_parallelism_larger_than_a_gpu_is_never_split():
    plan = planned(state(gpus(), [model("m", 90_000)], [waits("m")]))
    assert only(plan).action is SlotAction.NEVER
    assert only(plan).reason == (
        "it needs 90,000 MB on each of 1 GPU, and the largest GPU has 80,000 MB"
    )


def test_a_model_nobody_knows_is_said_to_be_so():
    assert only(planned(state(gpus(), [], [waits("m")]))).reason == "there is no model m"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pinned": True, "idle": 600}, "pinned"),
        ({"state": EngineStage.LOADING, "priority": 0}, "loads"),
        ({"priority": 6}, "in use, of a higher class"),
        ({"priority": 5}, "in use, of its class"),
    ],
)
def test_who_keeps_its_memory(fields: dict[str, Any], why: str):
    models = [model("m", 60_000), model("n", 60_000)]
    plan = planned(
        state(gpus(1), models, [waits("n")], [slot("s", "m", ("a", 0, 60_000), **fields)])
    )
    assert plan.victims == (), why


def test_a_lower_class_in_use_is_drained():
    models = [model("m", 60_000), model("n", 60_000)]
    plan = planned(
        state(gpus(1), models, [waits("n", priority=6)], [slot("s", "m", ("a", 0, 60_000))])
    )
    assert [(v.slot, v.drained, v.turn) for v in plan.victims] == [("s", True, False)]


def test_after_its_longest_wait_its_own_class_is_drained():
    models = [model("m", 60_000, load=12), model("n", 60_000, load=12)]
    before = state(gpus(1), models, [waits("n", seconds=59)], [slot("s", "m", ("a", 0, 60_000))])
    assert planned(before).victims == ()
    assert planned(before).again_at == NOW + 1 * SECOND
    plan = planned(replace(before, waiting=(waits("n", seconds=60),)))
    assert [(v.slot, v.drained, v.turn) for v in plan.victims] == [("s", True, True)]
    assert only(plan).reason.endswith("it has waited for its turn")


def test_a_pinned_or_higher_slot_stays_however_long_it_waits():
    models = [model("m", 60_000), model("n", 60_000)]
    for fields in ({"pinned": True}, {"priority": 6}):
        held = slot("s", "m", ("a", 0, 60_000), **fields)
        assert planned(state(gpus(1), models, [waits("n", seconds=9000)], [held])).victims == ()


def test_a_load_that_is_late_is_taken_to_last_as_long_again():
    """To wait for it cost nothing, however late it was."""
    loads = slot("s", "n", ("a", 0, 10_000), state=EngineStage.LOADING, since=NOW - 100 * SECOND)
    on = [model("m", 10_000), replace(model("n", 10_000), load_time=60 * SECOND)]
    waiting = only(planned(state(gpus(1), on, [waits("m")], [loads])))
    assert waiting.action is SlotAction.WAIT
    assert waiting.chosen
    assert waiting.chosen.free_at == NOW + 40 * SECOND
    assert waiting.chosen.waiting > 0


def test_the_cheapest_by_load_time_and_use_leaves():
    """$0.033 a reload x 30 requests an hour, over a minute; the other half the load, twice the
    use and a little more."""
    models = [
        model("n", 60_000),
        model("rare", 40_000, load=60, use=30),
        model("quick", 40_000, load=30, use=62),
    ]
    slots = [
        slot("s1", "quick", ("a", 0, 40_000), idle=600),
        slot("s2", "rare", ("a", 1, 40_000), idle=60),
    ]
    plan = planned(state(gpus(), models, [waits("n")], slots))
    assert leaving(plan) == ["s2"]
    (other,) = only(plan).rejected
    chosen = only(plan).chosen
    assert chosen is not None
    assert (chosen.price, other.price) == (16_666, 17_223)
    assert other.victims[0].slot == "s1"


def test_the_cheapest_is_found_behind_many_with_a_slot_that_does_not_suffice():
    """On each of forty GPUs a slot costs next to nothing, and frees too little without a dear one;
    on the last a single slot costs something between."""
    models = [
        model("n", 60_000),
        model("little", 10_000, use=0.01),
        model("dear", 60_000, use=10),
        model("between", 70_000, use=1),
    ]
    slots = [
        slot(f"{name}{index}", name, ("a", index, mb), idle=60)
        for index in range(40)
        for name, mb in (("little", 10_000), ("dear", 60_000))
    ]
    slots.append(slot("only", "between", ("a", 40, 70_000), idle=60))
    plan = planned(state(gpus(41), models, [waits("n")], slots))
    assert leaving(plan) == ["only"]


def test_a_decision_names_a_way_once():
    """Where all GPUs of a node have room, these and those with room are the same."""
    models = [model("n", (30_000, 30_000))]
    fleet = [gpu for node in "abcde" for gpu in gpus(2, node)]
    chosen = only(planned(state(fleet, models, [waits("n")])))
    assert chosen.chosen
    named = [each.memory[0].gpu.node for each in (chosen.chosen, *chosen.rejected)]
    assert named == ["a", "b", "c", "d"]


def test_who_proves_unnecessary_stays():
    """The two cheapest alone do not suffice; with the third the first is needed no more."""
    models = [
        model("n", 70_000),
        model("x", 10_000, use=0.1),
        model("y", 30_000, use=0.2),
        model("z", 40_000, use=0.3),
    ]
    slots = [
        slot("s1", "x", ("a", 0, 10_000), idle=60),
        slot("s2", "y", ("a", 0, 30_000), idle=60),
        slot("s3", "z", ("a", 0, 40_000), idle=60),
    ]
    plan = planned(state(gpus(1), models, [waits("n")], slots))
    assert sorted(leaving(plan)) == ["s2", "s3"]


def test_victims_are_on_the_chosen_gpus_alone_and_count_by_their_share_there():
    """A slot over two GPUs frees half of its memory on each. GPU 2 has a stale one as well."""
    models = [
        model("n", 140_000, (70_000, 70_000)),
        model("m", (60_000, 60_000)),
        model("o", 30_000),
    ]
    slots = [
        slot("wide", "m", ("a", 0, 60_000), ("a", 1, 60_000), idle=60),
        slot("other", "o", ("a", 2, 30_000), idle=60, pinned=True),
    ]
    plan = planned(state(gpus(3), models, [waits("n")], slots))
    assert leaving(plan) == ["wide"]
    assert {gpu.gpu_index for gpu, _ in plan.reservations[0].memory} == {0, 1}


def test_it_waits_where_the_slots_that_would_leave_are_worth_more():
    """Ten requests a second over a load, against one that waits."""
    models = [model("n", 60_000), model("busy", 60_000, use=600)]
    slots = [slot("s", "busy", ("a", 0, 60_000), idle=11)]
    plan = planned(state(gpus(1), models, [waits("n")], slots))
    assert plan.victims == ()
    assert only(plan).reason.startswith(
        "the way costs $0.33, more than the $0.03 that 1 request cost meanwhile"
    )
    many = planned(state(gpus(1), models, [waits("n", 20)], slots))
    assert leaving(many) == ["s"]


def test_who_has_waited_is_worth_more():
    """Twice as much after a load time, which then pays for the two requests of the other."""
    models = [model("n", 60_000), model("busy", 60_000, use=119)]
    slots = [slot("s", "busy", ("a", 0, 60_000), idle=120)]
    for waited, left in ((30, []), (60, ["s"])):
        waiting = waits("n", seconds=waited)
        assert leaving(planned(state(gpus(1), models, [waiting], slots))) == left


def test_no_slot_on_a_node_that_ends_before_its_load_has_paid():
    ends = state(gpus(1, ends=NOW + 119 * SECOND), [model("m", 10_000)], [waits("m")])
    assert planned(ends).loads == ()
    assert only(planned(ends)).reason == "no node lasts for a load of 1m and as long again"
    lasts = replace(ends, gpus=tuple(gpus(1, ends=NOW + 120 * SECOND)))
    assert len(planned(lasts).loads) == 1


def test_the_best_links_are_taken():
    near, far = LinkClass.NVLINK, LinkClass.PCIE4
    links = ((None, far, far), (far, None, near), (far, near, None))
    topologies = {"a": NodeTopology(gpus=(0, 1, 2), links=links)}
    asked = state(gpus(3), [model("m", (60_000, 60_000))], [waits("m")], topologies=topologies)
    assert [gpu.gpu_index for gpu, _ in planned(asked).loads[0].memory] == [1, 2]
    assert "linked by nvlink (450 GB/s)" in only(planned(asked)).reason


def test_layers_are_spread_as_there_is_room():
    split = LayerSplit(layers=30, mb=3_000, fixed=1_000)
    held = [gpus(2)[0], replace(gpus(2)[1], held=40_000)]
    asked = state(held, [model("m", 92_000, split=split)], [waits("m")])
    memory = planned(asked).loads[0].memory
    assert [mb for _, mb in memory] == [61_000, 31_000]


def test_what_is_promised_is_loaded_once_the_others_have_left():
    reservation = SlotReservation(key("n"), 5, (MemoryOn(A0, 60_000),), ("s",))
    models = [model("m", 60_000), model("n", 60_000)]
    going = slot("s", "m", ("a", 0, 60_000), state=EngineStage.DRAINING)
    still = planned(state(gpus(1), models, [waits("n")], [going], reservations=(reservation,)))
    assert (still.loads, still.reservations) == ((), (reservation,))
    assert only(still).action is SlotAction.SERVE
    gone = planned(state(gpus(1), models, [waits("n")], reservations=(reservation,)))
    assert gone.loads[0].memory == reservation.memory
    assert gone.reservations == ()
    assert planned(state(gpus(1), models, reservations=(reservation,))).reservations == ()


def test_requests_beyond_the_places_get_slots_where_that_is_cheaper():
    """H11: ten requests, two at a time: five slots where each takes long, one where not."""
    fleet = gpus(8)
    for seconds, slots in ((600, 5), (1, 1)):
        served = model("m", 60_000, concurrency=2, request_time=seconds * SECOND)
        made = state(fleet, [served], [waits("m", 10)])
        for number in range(8):
            plan = planned(made)
            new = [
                slot(f"s{number}", "m", *((g.node, g.gpu_index, mb) for g, mb in load.memory),
                     state=EngineStage.LOADING, since=NOW, active=0)
                for load in plan.loads
            ]  # fmt: skip
            made = replace(made, slots=made.slots + tuple(new))
            if not new:
                break
        assert len(made.slots) == slots


def test_prewarmed_slots_fill_free_memory_fewest_copies_first_and_evict_nothing():
    models = [model("m", 50_000, prewarm=2), model("n", 50_000, prewarm=2, use=1)]
    plan = planned(state(gpus(3), models, slots=[slot("s", "n", ("a", 0, 50_000), idle=99)]))
    assert [(load.key.model, load.prewarmed) for load in plan.loads] == [("m", True), ("n", True)]
    assert plan.victims == ()


def test_a_prewarmed_slot_is_stale_from_birth():
    models = [model("m", 60_000), model("n", 60_000, prewarm=1)]
    warm = slot("s", "n", ("a", 0, 60_000), idle=0, prewarmed=True, priority=9)
    assert leaving(planned(state(gpus(1), models, [waits("m", priority=0)], [warm]))) == ["s"]


def test_a_higher_class_comes_first_then_who_is_overdue_then_requests_by_how_long_they_wait():
    names = ("few", "many", "old", "overdue", "high")
    models = [model(name, 60_000, load=15) for name in names]
    waiting = [
        waits("few"), waits("many", 9), waits("old", seconds=90), waits("overdue", seconds=360),
        waits("high", priority=6),
    ]  # fmt: skip
    plan = planned(state(gpus(4), models, waiting))
    assert [each.key.model for each in plan.decisions] == ["high", "overdue", "many", "old", "few"]


def test_memory_of_jobs_is_not_to_be_had():
    assert planned(state(gpus(1, held=80_000), [model("m", 8_000)], [waits("m")])).loads == ()
