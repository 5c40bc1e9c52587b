"""Jobs that differ in their duration alone are told the same, where it decides nothing."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import (
    CyclePlan,
    Decision,
    PackingPolicy,
    PackingRule,
    RejectionCode,
    RunningJob,
)
from longshore.scheduling import planner
from longshore.scheduling.cycle import plan
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.placement.scan import Scan, Scanner
from longshore.scheduling.placement.state import Need
from longshore.scheduling.planner import Planner
from longshore.scheduling.wait_answers import WaitAnswers
from tests.scheduling.test_long_queue import long_scene, short_behind_long
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, a_job, a_node, running
from tests.support.packing_scenes import Scene
from tests.support.searches import seeds

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


def planned(scene: Scene, policy: PackingPolicy, *, compiled: bool) -> CyclePlan:
    return plan(scene.queue, scene.nodes, scene.running, policy, NOW, compiled=compiled)


def planned_each_alone(scene: Scene, policy: PackingPolicy) -> CyclePlan:
    """Return the plan in which every job is put to the nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WaitAnswers, "of_one", lambda told, need: None)
        return planned(scene, policy, compiled=False)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", [PackingRule.KEEP_ROOM, PackingRule.SEED_SCORE])
def test_each_is_told_what_it_would_be_alone(rule: PackingRule) -> None:
    codes: Counter[RejectionCode] = Counter()
    outlooks: Counter[str] = Counter()
    for seed in seeds(8):
        chance = random.Random(seed)
        scene = short_behind_long(chance) if seed % 3 else long_scene(chance)
        if seed % 2:  # nobody knows when what runs there ends
            scene.running.clear()
        policy = PackingPolicy(rule=rule, max_reservations=chance.choice([0, 3, 8]))
        alone = planned_each_alone(scene, policy)
        assert planned(scene, policy, compiled=False) == alone
        assert planned(scene, policy, compiled=True) == alone
        for decision in alone.decisions:
            codes.update(decision.rejected.keys())
            outlooks[decision.reason.rpartition("; ")[2][:10]] += decision.node_id is None
    # The comparison means something only where all of these happen.
    assert codes[RejectionCode.RESERVED] > 20
    assert codes[RejectionCode.EXPIRY] > 50
    assert outlooks["its start "] > 50, "is not known while others before it have reservations"
    assert outlooks["what runs "] > 20, "there is not known to end in time for it"


def gangs_of_any_length(chance: random.Random) -> Scene:
    """Return 6 nodes of two domains, most of them busy, some of which end, and a queue of gangs
    that ask in a few ways, each for a time of its own, with single jobs between them."""
    nodes: list[Node] = []
    at_work: list[RunningJob] = []
    for number in range(6):
        name, busy = f"n{number}", range(chance.choice([0, 2, 4, 4, 4]))
        ends = chance.choice([None, None, chance.randrange(30, 600) * MINUTE])
        domain = f"d{number % 2}"
        nodes.append(in_domain(domain, name, gpus=4, busy=busy, expires_in=ends, cpus=64))
        if busy and chance.random() < 0.9:
            at_work.append(running(f"on-{name}", name, busy, chance.randrange(5, 300) * MINUTE))
    queue = [
        _of_any_length(chance, number).model_copy(
            update={
                "id": f"q{number:03}",
                "submitted_at": NOW - (200 - number) * SECOND,
                "expected_duration": chance.randrange(60, 36_000) * SECOND,
            }
        )
        for number in range(60)
    ]  # fmt: skip
    return Scene(nodes, at_work, queue)


def _of_any_length(chance: random.Random, number: int) -> JobRequest:
    if number % 5 == 0:
        return a_job("one", gpus=chance.choice([1, 2, 4]), cpus=4, ram=0)
    gpus = chance.choice([6, 8, 12])
    return a_gang(gpus, chance.choice([None, 2, 6]), cpus=chance.choice([4, 60]), ram=0)


@pytest.mark.exhaustive
def test_each_gang_is_told_what_it_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its duration decides nothing the nodes are not asked for it, and where it does they
    are: as what is kept for others on nodes that have GPUs free."""
    asked: list[str] = []

    def noting(job: JobRequest, *args: Any, **more: Any) -> Decision:
        asked.append(job.id)
        return place_gang(job, *args, **more)

    monkeypatch.setattr(planner, "place_gang", noting)
    codes: Counter[RejectionCode] = Counter()
    gangs = told = 0
    for seed in seeds(40):
        scene = gangs_of_any_length(random.Random(seed))
        policy = PackingPolicy(max_reservations=seed % 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WaitAnswers, "of_gang", lambda *_, may_start: None)
            alone = planned(scene, policy, compiled=False)
        asked.clear()
        assert planned(scene, policy, compiled=False) == alone
        gangs += sum(job.gang is not None for job in scene.queue)
        told += len(asked)
        assert planned(scene, policy, compiled=True) == alone
        for decision in alone.decisions:
            if decision.gang:
                codes.update(decision.rejected.keys())
    # The comparison means something only where all of these happen.
    assert codes[RejectionCode.RESERVED] > 50
    assert codes[RejectionCode.EXPIRY] > 50

    assert told < 0.8 * gangs


@pytest.mark.parametrize("ends_are_known", [True, False])
def test_gangs_that_wait_on_a_full_pool_ask_the_nodes_once(
    monkeypatch: pytest.MonkeyPatch, ends_are_known: bool
) -> None:
    asked: list[str] = []

    def noting(job: JobRequest, *args: Any, **more: Any) -> Decision:
        asked.append(job.id)
        return place_gang(job, *args, **more)

    monkeypatch.setattr(planner, "place_gang", noting)
    nodes = [in_domain("d", name, gpus=4, busy=range(4)) for name in "abcd"]
    known = [running(f"on-{node.id}", node.id, range(4), HOUR) for node in nodes]
    jobs = [
        a_gang(8, expected_duration=(n + 1) * MINUTE).model_copy(update={"id": f"g{n:03}"})
        for n in range(200)
    ]
    scene = Scene(nodes, known if ends_are_known else [], jobs)
    made = planned(scene, PackingPolicy(max_reservations=2), compiled=False)
    assert len(made.decisions) == 200
    assert len(made.reservations) == 4 * ends_are_known
    assert len(asked) == 1 + len(made.reservations) // 2, "who has a start kept, and another"


def test_nodes_are_asked_as_often_as_the_durations_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Need] = []
    scan = Scanner.scan

    def noting(scanner: Scanner, need: Need, *, reweigh: bool = True) -> Scan:
        asked.append(need)
        return scan(scanner, need, reweigh=reweigh)

    monkeypatch.setattr(Scanner, "scan", noting)
    nodes = [a_node("full", gpus=4, busy=range(4)), a_node("ends", gpus=4, expires_in=HOUR)]
    known = [running("on-full", "full", range(4), HOUR)]
    chance = random.Random(3)
    jobs = [
        a_job(f"j{n:03}", gpus=4 if n % 2 else 8, expected_duration=chance.randrange(90) * MINUTE)
        for n in range(300)
    ]  # fmt: skip
    scene = Scene(nodes, known, jobs)
    for compiled in (False, True):
        asked.clear()
        plan_made = planned(scene, PackingPolicy(max_reservations=2), compiled=compiled)
        assert len(plan_made.decisions) == 300
        assert 0 < len(asked) < 40


def test_the_compiled_pass_asks_for_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question costs what a job costs without it."""
    decided: list[str] = []
    decide = Planner.decide

    def noting(one: Planner, job: JobRequest, *, explain: bool = False):
        decided.append(job.id)
        return decide(one, job, explain=explain)

    monkeypatch.setattr(Planner, "decide", noting)
    chance = random.Random(3)
    jobs = [
        a_job(f"j{n:03}", gpus=8, expected_duration=chance.randrange(9_000) * SECOND)
        for n in range(300)
    ]
    nodes = [a_node("full", busy=range(8))]
    for known in ([], [running("on-full", "full", range(8), HOUR)]):
        decided.clear()
        planned(Scene(nodes, known, jobs), PackingPolicy(max_reservations=2), compiled=True)
        assert 0 < len(decided) < 20


@pytest.mark.parametrize("compiled", [False, True])
def test_a_short_job_has_a_start_where_a_longer_one_has_none(compiled: bool) -> None:
    nodes = [a_node("ends", busy=range(8), expires_in=2 * HOUR)]
    known = [running("on-ends", "ends", range(8), HOUR)]
    jobs = [
        a_job(f"j{n}", gpus=8, expected_duration=minutes * MINUTE)
        for n, minutes in enumerate([80, 90, 20, 70, 10])
    ]
    made = planned(Scene(nodes, known, jobs), PackingPolicy(), compiled=compiled)
    starts = [decision.estimated_start for decision in made.decisions]
    assert starts == [None, None, NOW + HOUR, None, NOW + HOUR + 20 * MINUTE]
