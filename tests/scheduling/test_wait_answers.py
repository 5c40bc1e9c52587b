"""Jobs that differ in their duration alone are told the same, where it decides nothing."""

import random
from collections import Counter
from datetime import timedelta

import pytest

from longshore.models.job_request import JobRequest
from longshore.models.placement import CyclePlan, PackingPolicy, PackingRule, RejectionCode
from longshore.scheduling.cycle import plan
from longshore.scheduling.placement.scan import Scan, Scanner
from longshore.scheduling.placement.state import Need
from longshore.scheduling.planner import Planner
from longshore.scheduling.wait_answers import WaitAnswers
from tests.scheduling.test_long_queue import long_scene, short_behind_long
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
