"""Packing policies: they take what is there, decide the same twice, and as their references."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.packing.batch import place_batch
from scheduling.packing.fleet import WHOLE, Choice, Fleet, NodeSize, Request, Stay
from scheduling.packing.outlook import OutlookKeeper
from scheduling.packing.policies import POLICIES, FragmentationDescent, KeepRoom, Rule
from scheduling.packing.shapes import Mix, typical
from tests.support.reference_packing import (
    reference_fgd,
    reference_keep_room,
    reference_rule,
)

pytestmark = pytest.mark.timeout(300)
"""The first run compiles."""

sizes = st.builds(
    NodeSize,
    cpu=st.sampled_from((16_000, 64_000, 96_000)),
    ram=st.sampled_from((61_440, 393_216)),
    gpus=st.sampled_from((1, 2, 4, 8)),
    vram=st.sampled_from((16_000, 80_000)),
    model=st.integers(0, 2),
)
fleets = st.lists(sizes, min_size=1, max_size=7)
parts = st.builds(
    Request,
    cpu=st.sampled_from((1_000, 3_152, 8_000)),
    ram=st.sampled_from((5_600, 30_517)),
    gpus=st.just(1),
    milli=st.sampled_from((110, 320, 470, 810)),
    vram=st.sampled_from((0, 4_000)),
    models=st.sampled_from((0, 0, 1, 6)),
)
wholes = st.builds(
    Request,
    cpu=st.sampled_from((4_000, 11_300, 40_000)),
    ram=st.sampled_from((8_000, 47_104)),
    gpus=st.sampled_from((1, 1, 2, 4, 8)),
    milli=st.just(WHOLE),
    vram=st.sampled_from((0, 20_000)),
    models=st.sampled_from((0, 0, 0, 5)),
)
cores = st.sampled_from((Request(2_000, 16_000), Request(30_000, 16_000)))
streams = st.lists(st.one_of(parts, wholes, cores), min_size=1, max_size=40)
endings = st.lists(st.booleans(), min_size=40, max_size=40)
"""After each request: whether the job that has run longest ends."""
estimates = st.lists(
    st.one_of(st.none(), st.sampled_from((30.0, 600.0, 7_200.0))), min_size=40, max_size=40
)
"""Of each request: for how many seconds it says that it stays."""


@pytest.mark.parametrize("name", list(POLICIES))
@given(nodes=fleets, stream=streams, ends=endings)
def test_no_limit_is_passed_and_all_comes_back(
    name: str, nodes: list[NodeSize], stream: list[Request], ends: list[bool]
):
    fleet = Fleet.of(nodes)
    held = play(fleet, name, stream, ends)
    c = fleet.columns
    for n, size in enumerate(nodes):
        mine = [(request, choice) for request, choice in held if choice.node == n]
        assert c.cpu[n] == size.cpu - sum(r.cpu for r, _ in mine) >= 0
        assert c.ram[n] == size.ram - sum(r.ram for r, _ in mine) >= 0
        for gpu in range(size.gpus):
            here = [r for r, choice in mine if gpu in choice.gpus]
            assert c.milli[n, gpu] == WHOLE - sum(r.milli for r in here) >= 0
            assert c.vram[n, gpu] == size.vram - sum(r.vram for r in here) >= 0
            assert all(not r.models or r.models >> size.model & 1 for r in here)
    for request, choice in held:
        fleet.give_back(request, choice)
    assert (fleet.free_milli(), fleet.columns.jobs.sum()) == (fleet.total_milli, 0)


@pytest.mark.parametrize("name", list(POLICIES))
@given(nodes=fleets, stream=streams, ends=endings)
def test_what_is_refused_fits_nowhere(
    name: str, nodes: list[NodeSize], stream: list[Request], ends: list[bool]
):
    fleet = Fleet.of(nodes)
    policy = POLICIES[name](stream)
    for request in stream:
        choice = policy.choose(fleet, request)
        if choice is None:
            assert not any(_possible(fleet, n, request) for n in range(len(nodes)))
        else:
            fleet.take(request, choice)


@pytest.mark.parametrize("name", list(POLICIES))
@given(nodes=fleets, stream=streams, ends=endings)
def test_the_same_stream_gets_the_same_places(
    name: str, nodes: list[NodeSize], stream: list[Request], ends: list[bool]
):
    assert play(Fleet.of(nodes), name, stream, ends) == play(Fleet.of(nodes), name, stream, ends)


@pytest.mark.parametrize("name", Rule.NAMES)
@given(nodes=fleets, stream=streams)
def test_a_rule_decides_as_its_reference(name: str, nodes: list[NodeSize], stream: list[Request]):
    fleet = Fleet.of(nodes)
    policy = Rule(name)
    for request in stream:
        choice = policy.choose(fleet, request)
        assert choice == reference_rule(name, fleet, request)
        if choice is not None:
            fleet.take(request, choice)


@given(nodes=fleets, stream=streams)
def test_fgd_decides_as_its_reference(nodes: list[NodeSize], stream: list[Request]):
    fleet = Fleet.of(nodes)
    policy, shapes = FragmentationDescent(stream), typical(stream)
    for request in stream:
        choice = policy.choose(fleet, request)
        assert choice == reference_fgd(shapes, fleet, request)
        if choice is not None:
            fleet.take(request, choice)


@given(nodes=fleets, stream=streams, ends=endings)
def test_keep_room_decides_as_its_reference(
    nodes: list[NodeSize], stream: list[Request], ends: list[bool]
):
    fleet = Fleet.of(nodes)
    policy = KeepRoom()
    running: list[tuple[Request, Choice]] = []
    for request, end in zip(stream, ends, strict=False):
        choice = policy.choose(fleet, request)
        assert choice == reference_keep_room(policy.keeper.outlook, fleet, request)
        if choice is not None:
            fleet.take(request, choice)
            running.append((request, choice))
        if end and running:
            fleet.give_back(*running.pop(0))


@given(nodes=fleets, stream=streams, ends=endings, seconds=estimates)
def test_keep_room_decides_as_its_reference_where_jobs_say_how_long_they_stay(
    nodes: list[NodeSize], stream: list[Request], ends: list[bool], seconds: list[float | None]
):
    """Some say nothing; a job comes each minute, so that many are overdue."""
    fleet = Fleet.of(nodes)
    policy = KeepRoom()
    running: list[tuple[Request, Choice, Stay | None]] = []
    for i, request in enumerate(stream):
        known = seconds[i]
        stay = None if known is None else Stay(60.0 * i, 60.0 * i + known)
        choice = policy.choose(fleet, request, stay)
        assert choice == reference_keep_room(policy.keeper.outlook, fleet, request, stay)
        if choice is not None:
            fleet.take(request, choice, stay)
            running.append((request, choice, stay))
        if ends[i] and running:
            fleet.give_back(*running.pop(0))
    while running:
        fleet.give_back(*running.pop())
    assert fleet.columns.known.sum() == 0


@pytest.mark.parametrize(("long", "short"), [(0, 1), (1, 0)])
def test_keep_room_puts_together_what_ends_together(long: int, short: int):
    """Two nodes are in half use: one for ten more hours, one for ten more minutes."""
    half, hours, minutes = Request(0, 0, 4, WHOLE), Stay(0, 36_000), Stay(0, 600)
    fleet = Fleet.of([NodeSize(0, 0, 8, 0)] * 2)
    policy = KeepRoom()
    for _ in range(4):  # what has ended says that nodes come free again
        fleet.take(half, Choice(0, (0, 1, 2, 3)))
        fleet.give_back(half, Choice(0, (0, 1, 2, 3)))
    fleet.take(half, Choice(long, (0, 1, 2, 3)), hours)
    fleet.take(half, Choice(short, (0, 1, 2, 3)), minutes)
    policy.choose(fleet, Request(0, 0, 8, WHOLE), hours)  # whole nodes are asked for
    assert policy.choose(fleet, half, hours) == Choice(long, (4, 5, 6, 7))
    assert policy.choose(fleet, half, minutes) == Choice(short, (4, 5, 6, 7))


@given(nodes=fleets, stream=streams, shuffle=st.randoms(use_true_random=False))
def test_keep_room_does_not_look_at_the_order_of_nodes(
    nodes: list[NodeSize], stream: list[Request], shuffle: Random
):
    """Nodes that differ in CPU and GPUs are never equal: each size is left with the same rests."""
    nodes = [size._replace(ram=393_216, vram=80_000, model=0) for size in nodes]
    one, other = Fleet.of(nodes), Fleet.of(shuffle.sample(nodes, len(nodes)))
    play(one, "keep-room", stream, [])
    play(other, "keep-room", stream, [])
    assert _rests(one) == _rests(other)


@given(nodes=fleets, stream=streams, before=streams)
def test_a_batch_fits_together_and_moves_nothing(
    nodes: list[NodeSize], stream: list[Request], before: list[Request]
):
    fleet = Fleet.of(nodes)
    play(fleet, "keep-room", before, [])
    untouched = _rests(fleet)
    choices = place_batch(fleet, stream, OutlookKeeper(), tries=5)
    assert _rests(fleet) == untouched
    assert choices == place_batch(fleet, stream, OutlookKeeper(), tries=5)
    for request, choice in zip(stream, choices, strict=True):
        if choice is not None:
            fleet.take(request, choice)  # raises when it does not fit
    left_over = [r for r, choice in zip(stream, choices, strict=True) if choice is None]
    assert not any(_possible(fleet, n, r) for r in left_over for n in range(len(nodes)))


def test_a_batch_serves_first_what_uses_the_node_best():
    """Three single GPUs come first; the eight that come last use the node better."""
    node = NodeSize(64_000, 64_000, 8, 0)
    queue = [Request(1_000, 1_000, 1, WHOLE)] * 3 + [Request(1_000, 1_000, 8, WHOLE)]
    fleet = Fleet.of([node])
    choices = place_batch(fleet, queue, OutlookKeeper())
    assert [choice is not None for choice in choices] == [False, False, False, True]


def test_a_fleet_refuses_what_is_not_there():
    fleet = Fleet.of([NodeSize(8_000, 8_000, 2, 16_000)])
    half = Request(1_000, 1_000, 1, 600)
    fleet.take(half, Choice(0, (0,)))
    with pytest.raises(ValueError, match="does not fit"):
        fleet.take(half, Choice(0, (0,)))
    with pytest.raises(ValueError, match="was not taken"):
        fleet.give_back(Request(1_000, 1_000, 1, 900), Choice(0, (0,)))
    fleet.give_back(half, Choice(0, (0,)))
    with pytest.raises(ValueError, match="was not taken"):
        fleet.give_back(half, Choice(0, (0,)))


@given(stream=streams, shuffle=st.randoms(use_true_random=False))
def test_a_mix_does_not_depend_on_the_order_of_requests(stream: list[Request], shuffle: Random):
    other = list(stream)
    shuffle.shuffle(other)
    one, two = Mix(), Mix()
    for request in stream:
        one.observe(request)
    for request in other:
        two.observe(request)
    assert (one.kinds().need == two.kinds().need).all()
    assert (one.kinds().weight == two.kinds().weight).all()


def play(
    fleet: Fleet, name: str, stream: Sequence[Request], ends: Sequence[bool]
) -> list[tuple[Request, Choice]]:
    """Place a stream; return the jobs that still run."""
    policy = POLICIES[name](stream)
    running: list[tuple[Request, Choice]] = []
    for i, request in enumerate(stream):
        choice = policy.choose(fleet, request)
        if choice is not None:
            fleet.take(request, choice)
            running.append((request, choice))
        if running and i < len(ends) and ends[i]:
            fleet.give_back(*running.pop(0))
    return running


def _possible(fleet: Fleet, n: int, request: Request) -> bool:
    c = fleet.columns
    gpus = [
        gpu
        for gpu in range(int(c.gpus[n]))
        if c.milli[n, gpu] >= request.milli and c.vram[n, gpu] >= request.vram
    ]
    return fleet.fits(request, Choice(n, tuple(gpus[: request.gpus])))


def _rests(fleet: Fleet) -> list[tuple[object, ...]]:
    c = fleet.columns
    return sorted(
        (
            int(c.gpus[n]), int(c.model[n]), int(c.cpu_total[n]), int(c.ram_total[n]),
            int(c.vram_total[n]), int(c.cpu[n]), int(c.ram[n]), tuple(sorted(c.milli[n].tolist())),
        )
        for n in range(len(fleet))
    )  # fmt: skip
