"""The pages of jobs as HTML: the list, and one job with its attempts and each node's answer."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from longshore.activities.checkpoints.rows import StoredCheckpoints
from longshore.console import job_placement as placement
from longshore.console import job_view as view
from longshore.console.attempts_view import attempts_html
from longshore.console.jobs_view import (
    STATES,
    gpus_text,
    list_html,
    sums_html,
    waited,
    why,
)
from longshore.console.parts import pages_html
from longshore.models.array_view import ArrayView
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.code import Code
from longshore.models.deadline import DeadlineCost, DeadlineJudgment, DeadlineOutlook
from longshore.models.elements import ElementState
from longshore.models.explanation import Explanation
from longshore.models.gang import DomainRoom, GangPlan, NodeShare, PlannedGroup
from longshore.models.growth import GrowthDecision
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.node_messages import Progress
from longshore.models.placement import (
    Candidate,
    Decision,
    PackingRule,
    PlacementKind,
    Rejection,
    RejectionCode,
    ScoreTerm,
    ScoreTerms,
)
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan, Way, WayKind
from longshore.models.retry import FailureClass
from longshore.models.spending import BuyingRecord, OptionRecord
from longshore.models.views import AttemptShare, AttemptView, JobView, PoolView

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_job(state: JobState = JobState.QUEUED, **fields: Any) -> JobView:
    basics = {
        "id": "train-abcdefghij", "name": "train", "tenant": "lab", "pool": "default",
        "tier": "FLEX", "priority": 7, "gpus": 4, "gpu_type": "H100", "state": state,
        "submitted_at": NOW - 10 * MINUTE,
    }  # fmt: skip
    return JobView.model_validate({**basics, **fields})


def a_running_job(**fields: Any) -> JobView:
    started = NOW - 3 * MINUTE
    placed = {
        "attempt": 1, "node_id": "node-a", "nodes": ("node-a",), "gpu_indices": (0, 1, 2, 3),
        "started_at": started, "first_started_at": started, "reason": "the best of 2",
    }  # fmt: skip
    return a_job(JobState.RUNNING, **{**placed, **fields})


def a_spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "train", "gpus": 4, "command": ["python", "train.py"], **fields}
    )


def an_attempt(number: int = 1, **fields: Any) -> AttemptView:
    share = AttemptShare(node_id="node-a", gpu_indices=(0, 1), simulated=True)
    basics = {"attempt": number, "placed_at": NOW - 9 * MINUTE, "shares": (share,)}
    return AttemptView.model_validate({**basics, **fields})


def terms(total: float, **fields: Any) -> ScoreTerms:
    named = {"utilization": 0.5, "fragmentation": -0.1, "expiry": 0.0, "provider": 0.2}
    return ScoreTerms.model_validate({**named, "total": total, **fields})


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def test_a_job_that_waits_says_how_long_and_why():
    job = a_job(
        reason="3 nodes are <busy>", estimated_start=NOW + 20 * MINUTE, queued_at=NOW - MINUTE
    )
    html = list_html([job], NOW)
    said = text_of(html)
    for part in (
        "train-abcdefghij queued", "default lab, FLEX, class 7", "4 × H100", "10m so far",
        "3 nodes are <busy> may start in 20m",
    ):  # fmt: skip
        assert part in said, part
    assert "<busy>" not in html
    late = job.model_copy(update={"estimated_start": NOW - 3 * MINUTE})
    assert "3 nodes are <busy> was due to start 3m ago" in text_of(list_html([late], NOW))
    assert 'href="/jobs/train-abcdefghij"' in html
    assert html.count('scope="col"') == 7
    assert '<th scope="row">' in html
    heads = re.findall(r'data-head="([^"]+)"', html)  # above each cell on a phone
    assert heads == ["For", "GPUs", "Where", "Waited", "Why"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (a_job(), 10 * MINUTE),
        (a_running_job(), 7 * MINUTE),
        (a_job(first_started_at=NOW - 8 * MINUTE, queued_at=NOW - MINUTE), MINUTE),
        (a_job(JobState.CANCELLED, ended_at=NOW - 4 * MINUTE), 6 * MINUTE),
        (a_job(JobState.HELD, queued_at=NOW - MINUTE, waited=3 * MINUTE), 3 * MINUTE),
    ],
)
def test_how_long_a_job_waits_or_waited(job: JobView, expected: timedelta):
    assert waited(job, NOW) == expected
    so_far = "so far" in text_of(list_html([job], NOW))
    assert so_far == (job.state is JobState.QUEUED)
    head = text_of(view.head_html(JobReport(job=job, spec=a_spec()), NOW, None))
    assert ("Waits for" in head) == so_far


def test_the_list_says_of_a_held_job_as_the_command_does_why_it_waits():
    assert "until it is released" in text_of(list_html([a_job(JobState.HELD)], NOW))
    assert "too dear" in text_of(list_html([a_job(JobState.HELD, reason="too dear")], NOW))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"gpu_type": None, "gpus": 1}, "1 GPU"),
        ({"gpus": 8}, "8 × H100"),
        ({"gpus": 1, "milli": 250}, "250/1000 of H100"),
        ({"gpus": 2, "milli": 150, "vram_per_gpu": 12, "runs_engine": True}, "2 × 12GB of H100"),
        ({"gpus": 1, "mig": "1g.10gb"}, "1g.10gb of H100"),
    ],
)
def test_what_a_job_wants_in_few_words(fields: dict[str, Any], expected: str):
    assert gpus_text(a_job(**fields)) == expected


def test_where_a_gang_is_with_what_stands_by():
    job = a_running_job(
        nodes=("node-a", "node-b", "node-c"), node_gpus=((0, 1, 2, 3), (0, 1), (7,)),
        spares=("node-d",), simulated=True,
    )  # fmt: skip
    said = text_of(list_html([job], NOW))
    where = "GPUs 0-3, node-b GPUs 0-1, node-c GPU 7"
    assert f"node-a simulated {where}, node-d stands by" in said
    assert f"node-a {where} simulated" in text_of(
        view.head_html(JobReport(job=job, spec=a_spec()), NOW, None)
    )


def test_an_engine_has_memory():
    job = a_running_job(gpus=2, gpu_indices=(2, 3), milli=156, vram_per_gpu=12.5, runs_engine=True)
    assert "12.5GB of each of GPUs 2-3" in text_of(list_html([job], NOW))


def test_a_failure_says_its_class_and_code():
    job = a_job(
        JobState.FAILED, failure=FailureClass.OUT_OF_MEMORY, exit_code=137, reason="killed"
    )
    assert why(job) == "out of memory, exit code 137: killed"


def test_every_state_but_all_can_be_chosen():
    chosen = STATES["waiting"] | STATES["held"] | STATES["running"] | STATES["ended"]
    assert chosen == frozenset(JobState)
    assert STATES["failed"] < STATES["ended"]


def test_older_jobs_and_the_newest_again():
    assert pages_html("jobs", "/jobs", {"pool": "a"}, "") == ""
    html = pages_html("jobs", "/jobs", {"pool": "a", "after": "x"}, "train-abcdefghij")
    assert 'href="/jobs?pool=a"' in html
    assert 'href="/jobs?pool=a&amp;after=train-abcdefghij"' in html


def test_the_sums_are_of_the_pool_that_was_chosen():
    pools = [
        PoolView(spec=PoolSpec(name=name), nodes=1, gpus=8, gpus_used=used, queued=2, held=1,
                 running=3, last_cycle_at=NOW)
        for name, used in (("a", 4), ("b", 8))
    ]  # fmt: skip
    assert "Running 6 Waiting 4 Held 2 GPUs used 12 of 16" in text_of(sums_html(pools, None))
    assert "GPUs used 4 of 8 Last cycle 12:00:00 UTC" in text_of(sums_html(pools, "a"))


def test_the_head_of_a_job():
    spec = a_spec(
        gpus=16, env={"TOKEN": "secret-value"}, gang={"group_gpus": 16, "spares_per_group": 8},
        checkpoint={"folder": "ckpt"}, preemptible=False,
    )  # fmt: skip
    status = JobStatus(
        job_id="train-abcdefghij", name="train", tenant="lab", pool="default",
        state=JobState.RUNNING, submitted_at=NOW, since=NOW,
    )  # fmt: skip
    report = JobReport(
        job=a_running_job(nodes=("node-a", "node-b"), simulated=True), spec=spec, status=status,
        progress=Progress(fraction=0.25, message="epoch 3 <of 12>"), attempts=(an_attempt(),),
    )  # fmt: skip
    html = view.head_html(report, NOW, "http://ui/workflows/job-x")
    said = text_of(html)
    for part in (
        "Tenant lab", "Tier FLEX class 7", "Waited 7m", "node-a GPUs 0-3, node-b simulated",
        "Attempts 1", "25 % epoch 3 <of 12>", "as a gang with 8 spare GPUs",
        "with the variables TOKEN", "saves and goes on, is never preempted", "python train.py",
        "longshore logs train-abcdefghij",
    ):  # fmt: skip
        assert part in said, part
    assert "secret-value" not in html
    assert 'href="http://ui/workflows/job-x"' in html
    assert "set LONGSHORE_TEMPORAL_UI" in view.head_html(report, NOW, None)


def test_the_head_says_labels_and_until_when_a_job_may_run():
    spec = a_spec(labels={"sweep": 7, "x.io/stage": ""}, max_duration="2h")
    job = a_running_job(labels=spec.labels, ends_by=NOW + 117 * MINUTE)
    html = view.head_html(JobReport(job=job, spec=spec), NOW, None)
    said = text_of(html)
    assert "Time limit 2h ends at the latest about 20 Nov 13:57:00" in said
    assert "Labels sweep=7 , x.io/stage" in said
    assert 'href="/jobs?state=all&amp;label=sweep%3D7"' in html
    began = Progress(started_at=NOW)
    later = JobReport(job=job, spec=spec, progress=began)
    assert "about 20 Nov 14:00:00" in text_of(view.head_html(later, NOW, None))
    waits = JobReport(job=a_job(), spec=spec)
    assert "Time limit 2h Labels" not in text_of(view.head_html(waits, NOW, None))
    assert "Time limit 2h" in text_of(view.head_html(waits, NOW, None))


def test_the_head_says_when_a_job_begins_that_is_not_to_start_before():
    begins = {"begins_at": NOW + 90 * MINUTE, "queued_at": NOW - 10 * MINUTE}
    job = a_job(JobState.HELD, begin_only=True, **begins)
    said = text_of(view.head_html(JobReport(job=job, spec=a_spec()), NOW, None))
    assert "Begins 20 Nov 13:30:00 in 1h" in said
    assert "Waits for 0s" in said
    later = text_of(view.head_html(JobReport(job=job, spec=a_spec()), NOW + 100 * MINUTE, None))
    assert "Begins" not in later
    assert "Waits for 10m" in later


def test_the_head_says_how_a_job_stands_to_its_deadline():
    late = DeadlineJudgment(
        at=NOW + 90 * MINUTE, outlook=DeadlineOutlook.LATE, late_by=12 * MINUTE,
        says="late by 12m: it may start at <13:42>",
    )  # fmt: skip
    report = JobReport(job=a_job(deadline=late), spec=a_spec())
    said = text_of(view.head_html(report, NOW, None))
    assert "Deadline 20 Nov 13:30:00 late by 12m: it may start at <13:42>" in said
    assert "Deadline" not in text_of(
        view.head_html(JobReport(job=a_job(), spec=a_spec()), NOW, None)
    )
    meeting = DeadlineCost(says="buy <one> meets it, for $16.00")
    told = Explanation(job=report.job, headline="waits", position=1, meeting=meeting)
    assert "About its deadline: buy <one> meets it, for $16.00." in text_of(
        view.why_html(told, NOW)
    )


def test_the_head_says_what_comes_along_and_what_is_stored():
    code = Code(snapshot="0" * 64, files=41, bytes=1_200_000, commit="0123456789abcdef",
                git="https://git/<x>", ref="v1", changed=False)  # fmt: skip
    spec = a_spec(code=code, environment=["numpy", "torch"], outputs=["results", "*.pt"])
    job = a_job(state=JobState.FAILED, ended_at=NOW)
    said = text_of(view.head_html(JobReport(job=job, spec=spec), NOW, None))
    assert "Code: 41 files, 1.2MB, of commit 0123456789ab (v1) of https://git/<x>" in said
    assert "Environment: numpy, torch · Outputs: results, *.pt" in said
    assert f"longshore pull {job.id} brings its outputs." in said
    plain = text_of(view.head_html(JobReport(job=job, spec=a_spec()), NOW, None))
    assert "Code:" not in plain
    assert "pull" not in plain


def test_an_array_says_in_the_list_how_far_it_is():
    job = a_job(
        state=JobState.RUNNING, elements={ElementState.RUNNING: 8, ElementState.WAITING: 12},
        claimed=2, slots_aside=1,
    )  # fmt: skip
    said = text_of(list_html([job], NOW))
    assert "of 20 elements 6 running, 2 claimed" in said
    assert "12 waiting" in said
    begins = job.model_copy(update={"state": JobState.QUEUED, "begin_only": True})
    assert "of 20 elements" not in text_of(list_html([begins], NOW))


def test_the_head_of_an_array():
    array = ArrayView(
        elements=12, first=0, last=11, attempts=4, limit=4, slots=4, placed=3,
        counts={ElementState.RUNNING: 3, ElementState.WAITING: 8, ElementState.SKIPPED: 1},
    )  # fmt: skip
    job = a_job(submitted_at=NOW - timedelta(minutes=7))
    said = text_of(view.head_html(JobReport(job=job, spec=a_spec(), array=array), NOW, None))
    for part in ("Takes so far 7m", "Elements 12", "Slots with GPUs 3 at most 4"):
        assert part in said, part
    assert "Waited" not in said


def test_what_could_not_be_asked_is_said():
    report = JobReport(job=a_job(), spec=a_spec()).without_live("Temporal does not answer")
    assert text_of(view.notes_html(report)) == (
        "The last stored state, as the workflow cannot be asked: Temporal does not answer."
    )
    assert view.notes_html(JobReport(job=a_job(), spec=a_spec())) == ""


def test_why_a_job_waits_node_by_node():
    rejections = tuple(
        Rejection(node_id=f"node-{n}", code=RejectionCode.GPUS_BUSY, permanent=False,
                  reason=f"has {n} of 8 GPUs free")
        for n in range(100)
    )  # fmt: skip
    gone = Rejection(
        node_id="small", code=RejectionCode.VRAM, permanent=True, reason="has <40GB> each"
    )
    alone = Decision(
        job_id="x", kind=PlacementKind.QUEUE_FOR_FLEX, rejections=(gone, *rejections),
        candidates=(Candidate(node_id="fits", gpu_indices=(2, 3), terms=terms(0.6)),),
    )  # fmt: skip
    explanation = Explanation(
        job=a_job(), headline="waits: it was not its turn", position=3, ahead=2, decision=alone,
        last_decision=alone.model_copy(update={"reason": "2 others are first"}),
        decided_at=NOW - MINUTE, hints=("look at `longshore jobs`",),
    )  # fmt: skip
    said = text_of(view.why_html(explanation, NOW))
    assert said == (
        "It waits: it was not its turn. It has place 3 in the queue of pool default, 2 jobs ahead."
        " The reason is of 1m ago: 2 others are first."
    )
    html, title = placement.nodes_html(explanation)
    said = text_of(html)
    assert title == "Nodes of pool default now"
    assert "1 node would do, not-enough-vram: 1 node, gpus-busy: 100 nodes" in said
    assert "fits fits GPUs 2-3, score 0.600" in said
    assert "small not-enough-vram has <40GB> each" in said
    assert "and 42 more nodes" in said
    assert html.count("<tr") == placement.MOST_NODES + 2
    assert "<code>longshore jobs</code>" in view.hints_html(explanation)


def test_who_gives_way_is_said_once():
    plan = PreemptionPlan(job_id="x", at=NOW, reason="stop low: it loses $0.10")
    headline = f"waits until others have given way: {plan.reason}"
    shown = Explanation(job=a_job(), headline=headline, position=1, making_room=plan)
    assert text_of(view.why_html(shown, NOW)).count(plan.reason) == 1
    held = shown.model_copy(update={"headline": "is held"})
    assert text_of(view.why_html(held, NOW)).endswith(
        f"Others are preempted for it: {plan.reason}."
    )


def test_the_ways_that_were_weighed_stand_with_their_prices():
    stop = Way(kind=WayKind.PREEMPT, title="stop low", start=NOW, cost=100_000, chosen=True)
    wait = Way(
        kind=WayKind.WAIT, title="wait <an hour>", start=None, delay=2_000_000,
        lost="it costs $1.90 more",
    )  # fmt: skip
    plan = PreemptionPlan(job_id="x", at=NOW, reason="stop low", ways=(stop, wait))
    for shown in (
        Explanation(job=a_job(), headline="waits", position=1, making_room=plan),
        Explanation(job=a_job(), headline="waits", position=1, weighed=plan),
        Explanation(job=a_running_job(), headline="runs", made_room=plan),
    ):
        html = placement.ways_html(shown)
        said = text_of(html)
        assert "stop low 20 Nov 12:00:00 $0.10 $0.00 $0.10 chosen" in said
        assert "wait <an hour> not known $0.00 $2.00 $2.00 it costs $1.90 more" in said
        assert html.count('aria-current="true"') == 1
    assert placement.ways_html(Explanation(job=a_job(), headline="waits")) == ""


def test_why_a_job_has_no_more_gpus_is_said():
    growth = GrowthDecision(
        job_id="x", attempt=1, at=NOW, gpus=4, desired=8, reason="4 of 8 desired GPUs: a < b"
    )
    shown = Explanation(job=a_running_job(), headline="runs", growth=growth)
    assert text_of(view.why_html(shown, NOW)).endswith(
        "About more GPUs: 4 of 8 desired GPUs: a < b."
    )


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("buy it for $5.00; with delay $6.12 in all, against $9.00 for waiting", ""),
        ("buy it for $5.00", " ($6.12 in all)"),
    ],
)
def test_what_it_costs_to_buy_is_said_once(reason: str, said: str):
    chosen = OptionRecord(title="it", total=6_120_000, chosen=True)
    bought = BuyingRecord(at=NOW - MINUTE, reason=reason, options=(chosen,))
    shown = Explanation(job=a_job(), headline="waits", position=1, buying=bought)
    said = f"About buying its pool decided 1m ago: {reason}{said}."
    assert text_of(view.why_html(shown, NOW)).endswith(said)
    without = bought.model_copy(update={"options": ()})
    shown = shown.model_copy(update={"buying": without})
    assert text_of(view.why_html(shown, NOW)).endswith(f"1m ago: {reason}.")
    beside = without.model_copy(update={"left_out": ("2 offers are left out: x",)})
    shown = shown.model_copy(update={"buying": beside})
    assert text_of(view.why_html(shown, NOW)).endswith(f"{reason}; 2 offers are left out: x.")


def test_a_class_that_has_risen_is_said():
    job = a_job(priority=4, counted_as=5, queued_at=NOW - timedelta(days=31))
    explanation = Explanation(job=job, headline="waits", position=1)
    risen = "class 4, counted as 5 after 31d in the queue"
    assert f"It is of {risen}." in text_of(view.why_html(explanation, NOW))
    assert risen in text_of(view.head_html(JobReport(job=job, spec=a_spec()), NOW, None))
    assert "FLEX, class 4 as 5" in text_of(list_html([job], NOW))


def test_why_a_job_is_where_it_is_with_the_next_best():
    parts = (ScoreTerm(name="room for 8 GPUs", value=-0.25),)
    best = Candidate(
        node_id="node-a", gpu_indices=(0, 1),
        terms=terms(-0.25, rule=PackingRule.KEEP_ROOM, parts=parts),
    )  # fmt: skip
    other = Candidate(node_id="node-b", gpu_indices=(4,), terms=terms(0.6))
    placed = Decision(
        job_id="x", kind=PlacementKind.EXISTING_NODE, node_id="node-a", candidates=(best, other)
    )
    explanation = Explanation(job=a_running_job(), headline="runs: the best of 2", placed=placed)
    html, title = placement.nodes_html(explanation)
    assert title == "Nodes that could take it when it was placed, best first"
    assert "node-a GPUs 0-1 -0.250 room for 8 GPUs -0.250" in text_of(html)
    assert "utilization 0.500, fragmentation -0.100, expiry 0.000, provider 0.200" in text_of(html)
    assert html.count('aria-current="true"') == 1
    assert placement.gang_html(explanation) == ""


def test_a_gang_says_its_groups_and_what_the_domains_have():
    share = NodeShare(node_id="node-a", gpu_indices=(0, 1, 2, 3))
    room = DomainRoom(domain="eu/c1/a", nodes=2, gpus=16, free=12, usable=8, residual=4)
    plan = GangPlan(
        gpus=4, domains=(room,), refusal="4 <GPUs> are missing",
        groups=(PlannedGroup(number=0, domain="eu/c1/a", gpus=4, nodes=(share,)),),
    )  # fmt: skip
    placed = Decision(job_id="x", kind=PlacementKind.EXISTING_NODE, gang=plan)
    html = placement.gang_html(Explanation(job=a_running_job(), headline="runs", placed=placed))
    said = text_of(html)
    assert "4 <GPUs> are missing" in said
    assert "0 eu/c1/a 4 node-a GPUs 0-3 –" in said
    assert "eu/c1/a 2 16 12 8 4" in said


def test_a_gang_shows_what_stands_by_for_it_now():
    stays, gone = (
        NodeShare(node_id=name, gpu_indices=tuple(range(4))) for name in ("node-b", "node-c")
    )
    runs = NodeShare(node_id="node-a", gpu_indices=(0, 1, 2, 3))
    group = PlannedGroup(number=0, domain="eu", gpus=4, nodes=(runs,), spares=(stays, gone))
    plan = GangPlan(gpus=4, groups=(group,))
    placed = Decision(job_id="x", kind=PlacementKind.EXISTING_NODE, gang=plan)
    shares = (
        AttemptShare(node_id="node-b", gpu_indices=(0, 1, 2, 3), spare=True),
        AttemptShare(
            node_id="node-c", gpu_indices=(0, 1, 2, 3), spare=True, left_at=NOW - MINUTE,
            end_reason="preempted", end_message="given up for <owner>, whose start was due",
        ),
    )  # fmt: skip
    attempt = an_attempt(1, shares=shares)
    explanation = Explanation(
        job=a_running_job(), headline="runs", placed=placed, spares_gone=attempt.spares_gone
    )
    groups = text_of(placement.gang_html(explanation, [attempt]))
    assert "0 eu 4 node-a GPUs 0-3 node-b GPUs 0-3" in groups
    assert "node-c" not in groups
    said = f"{NOW - MINUTE:%d %b %H:%M:%S}: given up for <owner>, whose start was due"
    report = JobReport(job=a_running_job(), spec=a_spec(), attempts=(attempt,))
    row = text_of(attempts_html(report, NOW)).replace(" :", ":")
    assert "node-b GPUs 0-3, stands by node-c" in row
    assert f"node-c GPUs 0-3, stood by until {said}" in row
    why = text_of(view.why_html(explanation, NOW)).replace(" :", ":")
    assert f"GPUs 0-3 of node-c stood by for it until {said}." in why


def test_attempts_say_how_each_ended_by_workflow_or_database():
    ended = NOW - 5 * MINUTE
    lost = an_attempt(1, ended_at=ended, end_reason="node-lost", end_message="silent for 12 s")
    failed = an_attempt(2, ended_at=ended, end_reason="failed", end_message="exit code 3")
    spare = AttemptShare(node_id="node-b", gpu_indices=(0,), spare=True)
    running = an_attempt(3, shares=(AttemptShare(node_id="node-a", gpu_indices=(0,)), spare))
    record = AttemptRecord(
        attempt=2, node_id="node-a", gpu_indices=(0,), placed_at=NOW, ended_at=ended,
        failure=FailureClass.USER, exit_code=3, message="exited with code 3",
    )  # fmt: skip
    status = JobStatus(
        job_id="x", name="x", tenant="x", pool="x", state=JobState.RUNNING, submitted_at=NOW,
        since=NOW, attempts=(record,),
    )  # fmt: skip
    report = JobReport(
        job=a_running_job(), spec=a_spec(), status=status, attempts=(lost, failed, running)
    )
    rows = [text_of(row) for row in attempts_html(report, NOW).split("<tr>")[2:]]
    assert rows[0].startswith("3 node-a GPU 0 node-b GPU 0, stands by")
    assert "runs" in rows[0]
    assert "user, exit code 3: exited with code 3" in rows[1]
    assert "node-lost: silent for 12 s" in rows[2]
    assert "node-a GPUs 0-1 simulated" in rows[2]
    assert attempts_html(JobReport(job=a_job(), spec=a_spec()), NOW) == ""
    ended = a_job(JobState.FAILED, attempt=3, ended_at=running.placed_at + 3 * MINUTE)
    report = report.model_copy(update={"job": ended, "status": None})
    (row,) = [text_of(row) for row in attempts_html(report, NOW).split("<tr>")[2:3]]
    assert " 3m ended with its workflow; the next reconcile frees its GPUs" in row


def test_checkpoints_and_what_is_damaged():
    info = CheckpointInfo(
        job_id="x", attempt=2, number=3, step=1200, bytes=2_000_000, saved_at=NOW - MINUTE,
        published=True, whole=True, write_seconds=1.5,
    )  # fmt: skip
    stored = StoredCheckpoints(job_id="x", checkpoints=(info,), damaged=("<one> cannot be read",))
    said = text_of(view.checkpoints_html(stored, NOW))
    assert "2 3 1,200" in said
    assert "1m ago 1.5s yes" in said
    assert "<one> cannot be read" in said
    empty = StoredCheckpoints(job_id="x", checkpoints=())
    assert "Nothing is stored yet." in text_of(view.checkpoints_html(empty, NOW))


def test_what_hides_or_turns_text_around_is_written_out() -> None:
    job = a_job(gpu_type="X\u202eY", reason="a\x1b[2Jb")
    for html in (
        list_html([job], NOW),
        view.why_html(Explanation(job=job, headline="a\u2066b"), NOW),
    ):
        assert not {"\u202e", "\x1b", "\u2066"} & set(html)
    assert "X\\u202eY" in list_html([job], NOW)
