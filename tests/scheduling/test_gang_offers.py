"""What nodes offer a gang: those that are alike are asked once, and say what each says alone."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.preemption import RunningWork
from longshore.models.resources import HostAmounts
from longshore.models.topology import Gang
from longshore.scheduling.gangs import offers as gang_offers
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import (
    Answers,
    Offers,
    offers_from,
    offers_now,
    offers_when_empty,
)
from longshore.scheduling.gangs.plan import gang_of
from longshore.scheduling.gangs.start import first_gang_start
from longshore.scheduling.placement.given_back import GivenBack
from longshore.scheduling.placement.state import Hold, Need, NodeView, view_nodes
from longshore.scheduling.preemption.what_if import WhatIfCluster
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY
from tests.support.preemption import a_work, beneficiaries, busy_pools, nodes_with
from tests.support.searches import examples

Busy = tuple[list[Node], list[RunningWork]]
TIMES = [HOUR / 2, HOUR, 1.5 * HOUR, 2 * HOUR, 3 * HOUR]


ODDITIES: list[dict[str, Any]] = [
    {"cpus": 4.0},
    {"cpus_used": 998.0},
    {"gpu_power": 600},
    {"busy": [3]},
    {"expires_in": 2 * HOUR},
    {"gpu_type": "A100"},
    {"labels": {"cluster": ""}},
]


@st.composite
def like_nodes(draw: st.DrawFn) -> list[NodeView]:
    """Return nodes that are alike, but for what runs there, what is kept there, and something
    about some of them."""
    nodes: list[Node] = []
    works: list[RunningWork] = []
    oddity = draw(st.sampled_from(ODDITIES))
    for number in range(draw(st.integers(3, 6))):
        name = f"n{number}"
        fields = {"power": 1200, "gpu_power": 300, **(oddity if draw(st.booleans()) else {})}
        nodes.append(in_domain(draw(st.sampled_from("AB")), name, 4, **fields))
        for gpu in draw(st.sampled_from([(), (0,), (1,), (0, 1)])):
            left = draw(st.sampled_from([HOUR, 2 * HOUR]))
            works.append(a_work(f"on-{name}-{gpu}", {name: [gpu]}, left=left))
    shares = [share for work in works for share in work.shares]
    views = view_nodes(nodes_with(works, nodes), shares, NOW)
    for view in views[: draw(st.sampled_from([0, 0, 1]))]:
        view.reserved.append(Hold("first", 0b11, HostAmounts(3.0), NOW + HOUR, NOW + 2 * HOUR))
    return views


@st.composite
def gangs(draw: st.DrawFn) -> JobRequest:
    gpus = draw(st.sampled_from([4, 8]))
    return a_gang(
        gpus,
        cpus=draw(st.sampled_from([1.5 * gpus, 1.5 * gpus, 0])),
        gpu_type=draw(st.sampled_from([None, None, "A100"])),
        unlabelled_nodes=draw(st.booleans()),
        expected_duration=draw(st.sampled_from([HOUR / 4, 1.25 * HOUR])),
    )


@examples(100)
@given(like_nodes(), gangs(), st.permutations(TIMES))
def test_nodes_offer_together_what_each_offers_alone(
    views: list[NodeView], job: JobRequest, times: list[timedelta]
) -> None:
    gang = gang_of(job)
    answers = Answers()  # kept from one time to the next
    questions: list[Callable[[GangNodes], Offers]] = [
        lambda nodes: offers_now(job, gang, nodes, POLICY, NOW),
        lambda nodes: offers_when_empty(job, gang, nodes),
    ]
    for ask in questions:
        assert ask(GangNodes.of(views)) == _one_by_one(views, ask)
    for time in times:
        together = offers_from(job, gang, GangNodes.of(views), POLICY, NOW + time, answers)

        def alone(nodes: GangNodes, time: timedelta = time) -> Offers:
            return offers_from(job, gang, nodes, POLICY, NOW + time, Answers())

        assert together == _one_by_one(views, alone)


@examples(40)
@given(busy_pools(), beneficiaries(), st.lists(st.sets(st.integers(0, 7)), max_size=6))
def test_a_gang_fits_without_some_jobs_whatever_was_asked_before(
    pool: Busy, job: JobRequest, turns: list[set[int]]
) -> None:
    job = job.model_copy(update={"milli": 1000, "gang": job.gang or Gang()})
    nodes, works = pool
    shares = [share for work in works for share in work.shares]
    cluster = WhatIfCluster(nodes, shares, POLICY, NOW)
    names = cluster.nodes_for(job)
    asked = cluster.gang_on(names, job, gang_of(job))
    for turn in turns:
        out = frozenset(works[number].id for number in turn if number < len(works))
        assert asked(out) == cluster.fits(job, out)


def test_when_a_gang_can_start_is_asked_of_like_nodes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not of each node for each time that is looked at."""
    count = 32
    works = [
        a_work(f"on-{number}", {f"n{number:02}": range(8)}, left=HOUR * (1 + number))
        for number in range(count)
    ]
    empty = [in_domain(f"{number % 4}", f"n{number:02}") for number in range(count)]
    shares = [share for work in works for share in work.shares]
    views = view_nodes(nodes_with(works, empty), shares, NOW)
    asked: list[NodeView] = []
    ask = gang_offers.gpus_open_from

    def counted(view: NodeView, need: Need, start: datetime) -> int:
        asked.append(view)
        return ask(view, need, start)

    monkeypatch.setattr(gang_offers, "gpus_open_from", counted)
    given_back = GivenBack(views, NOW)
    found = first_gang_start(a_gang(64), GangNodes.of(views), POLICY, NOW, given_back)
    assert found is not None
    assert found[0] == NOW + 8 * HOUR
    assert len(asked) == 2  # of an empty node, for one of its GPUs and for all


def _one_by_one(views: list[NodeView], ask: Callable[[GangNodes], Offers]) -> Offers:
    offers = Offers([], [])
    for position, view in enumerate(views):
        alone = ask(GangNodes.of([view]))
        offers.made.extend(offer._replace(position=position) for offer in alone.made)
        offers.refused.extend((position, code) for _, code in alone.refused)
    return offers
