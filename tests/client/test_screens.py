"""How jobs look, wide and narrow, for fixed views, and why they wait."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore.client.explain import explain
from longshore.client.job_view import job_screen, jobs_table
from longshore.client.live import Lines, exit_code_of, job_panel
from longshore.client.watch_command import Fleet, changes, fleet_screen
from longshore.client.why_view import explanation_screen
from longshore.client.words import styled
from longshore.console.parts import chip
from longshore.models.elements import ElementState
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import AttemptRecord, JobResult, JobState
from longshore.models.node_messages import Progress
from longshore.models.placement import (
    Candidate,
    Decision,
    PlacementKind,
    Rejection,
    RejectionCode,
    ScoreTerms,
)
from longshore.models.pool import Growth
from longshore.models.preemption import PreemptionPlan, Spared, TakenSpare, Way, WayKind
from longshore.models.retry import FailureClass
from longshore.models.spending import JobCost, PurchaseUnderWay
from longshore.models.views import AttemptShare, AttemptView
from longshore.scheduling.buying.buying_status import BuyingStatus
from tests.support.screens import MINUTE, NOW, a_job, a_running_job, a_status, drawn

GANG = {
    "nodes": ("node-a", "node-b"), "node_gpus": ((0, 1, 2, 3), (4, 5)), "simulated": False,
}  # fmt: skip


def test_each_node_of_a_gang_is_named_with_its_gpus() -> None:
    job = a_running_job(**GANG)
    where = "node-a GPUs 0-3, node-b GPUs 4-5"
    fleet = Fleet(at=NOW, nodes=(), jobs=(job,), ended=())
    assert changes(None, fleet) == [f"job {job.id} RUNNING on {where}"]
    spec = JobSpec.model_validate({"name": "train", "command": "true"})
    record = AttemptRecord(
        attempt=1, node_id="node-a", gpu_indices=(0, 1, 2, 3), other_nodes=("node-b",),
        other_gpus=((4, 5),), placed_at=NOW,
    )  # fmt: skip
    status = a_status(JobState.RUNNING, attempts=(record,))
    screen = drawn(job_screen(JobReport(job=job, status=status, spec=spec), NOW), 120)
    assert any(line.split() == ["runs", "on", *where.split()] for line in screen)
    rows = [line.split() for line in screen]
    assert any(row[:3] == ["1", "node-a", "0-3"] for row in rows)
    assert ["node-b", "4-5"] in rows
    assert f"on {where}" in "\n".join(drawn(job_panel(status, None, job)))
    assert where in "\n".join(drawn(jobs_table([job], NOW, 140), 140))
    written: list[str] = []
    Lines(written.append).placed(job)
    assert [line.split("  ", 1)[1] for line in written] == [f"on {where}"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState.SUCCEEDED, "node-a and 1 more node for"),
        (JobState.FAILED, "failed (node-a and 1 more node): out of memory"),
    ],
)
def test_the_row_of_a_gang_that_has_ended_says_that_it_had_other_nodes(
    state: JobState, said: str
) -> None:
    ended = {"state": state, "ended_at": NOW, "reason": "out of memory", "simulated": False}
    job = a_running_job(nodes=("node-a", "node-b"), node_gpus=((0,), (1,)))
    row = "\n".join(drawn(jobs_table([job.model_copy(update=ended)], NOW, 140), 140))
    assert said in row


def test_of_many_nodes_the_first_are_named_and_the_others_counted() -> None:
    nodes = tuple(f"node-{n}" for n in range(6))
    job = a_running_job(nodes=nodes, node_gpus=((0, 1),) * 6)
    named = ", ".join(f"{node} GPUs 0-1" for node in nodes[:4])
    fleet = Fleet(at=NOW, nodes=(), jobs=(job,), ended=())
    (line,) = changes(None, fleet)
    assert line.endswith(f" on {named} and 2 more nodes with 4 GPUs")


def test_a_class_that_has_risen_is_said_with_how_long_it_took() -> None:
    waits = a_job(
        priority=4, counted_as=5, waited=timedelta(days=30), queued_at=NOW - timedelta(days=1)
    )
    risen = "class 4, counted as 5 after 31d in the queue"
    explanation = Explanation(job=waits, headline="waits", position=2, ahead=1)
    text = "\n".join(drawn(explanation_screen(explanation, NOW), 140))
    assert f"place 2 in pool default, 1 job before it; {risen}" in text
    spec = JobSpec.model_validate({"name": "train", "command": "true"})
    runs = a_running_job(priority=4, counted_as=5, waited=timedelta(days=31, hours=2))
    text = "\n".join(drawn(job_screen(JobReport(job=runs, spec=spec), NOW), 140))
    assert "FAST, class 4, counted as 5 after 31d 2h in the queue" in text
    plain = "\n".join(drawn(job_screen(JobReport(job=a_job(), spec=spec), NOW), 140))
    assert "FAST, class 5\n" in plain
    heading, *lines = drawn(jobs_table((waits, runs, a_job()), NOW, 140), 140)
    at = slice(heading.index("tier") + 4, heading.index("class") + 5)
    assert [line[at].strip() for line in lines] == ["4 as 5", "4 as 5", "5"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(60, "may start in 1m"), (0, "is due to start now"), (-9, "was due to start 9s ago")],
)
def test_an_estimated_start_that_has_passed_is_told_so(seconds: int, said: str) -> None:
    job = a_job(estimated_start=NOW + timedelta(seconds=seconds), reason="all are in use")
    assert any(
        f"{said}: all are in use" in line for line in drawn(jobs_table((job,), NOW, 140), 140)
    )


def test_spares_that_were_taken_are_told_of_the_gang_and_of_who_got_them() -> None:
    gpus, at = (0, 1, 2, 3), NOW - 3 * MINUTE
    gone = AttemptShare(
        node_id="b", gpu_indices=gpus, spare=True, left_at=at,
        end_message="given up for owner, whose start was due",
    )  # fmt: skip
    spec = JobSpec.model_validate({"name": "train", "command": "true"})
    attempt = AttemptView(attempt=1, placed_at=NOW - 9 * MINUTE, shares=(gone,))
    told = "GPUs 0-3 of b stood by until 11:57:00 UTC, 3m ago: given up for owner, whose start"
    gang = a_running_job()
    for screen in (
        job_screen(JobReport(job=gang, spec=spec, attempts=(attempt,)), NOW),
        explanation_screen(Explanation(job=gang, headline="runs", spares_gone=(gone,)), NOW),
    ):
        assert told in " ".join("\n".join(drawn(screen, 140)).split())
    took = (TakenSpare(job_id="gang", node_id="b", gpu_indices=gpus, at=at),)
    screen = explanation_screen(Explanation(job=gang, headline="runs", took_spares=took), NOW)
    said = "3m ago: its start was due: gang gave up GPUs 0-3 of b, which stood by for it"
    assert said in " ".join("\n".join(drawn(screen, 140)).split())


def test_why_a_job_runs_says_the_ways_that_were_weighed_with_their_prices() -> None:
    stop = Way(kind=WayKind.PREEMPT, title="stop low", start=NOW, cost=100_000, chosen=True)
    wait = Way(
        kind=WayKind.WAIT, title="wait until 13:00", start=NOW + 60 * MINUTE, delay=2_000_000,
        lost="it costs $1.90 more",
    )  # fmt: skip
    plan = PreemptionPlan(job_id="x", at=NOW, reason="stop low", ways=(stop, wait))
    runs = a_job(JobState.RUNNING)
    for shown, when in (
        (Explanation(job=runs, headline="runs", made_room=plan), "were weighed"),
        (Explanation(job=a_job(), headline="waits", making_room=plan), "were weighed"),
        (Explanation(job=a_job(), headline="waits", weighed=plan), "are weighed now"),
    ):
        lines = [" ".join(line.split()) for line in drawn(explanation_screen(shown, NOW), 140)]
        at = lines.index(f"Ways to start, as they {when}")
        assert lines[at + 2 : at + 4] == [
            "→ stop low 12:00:00 $0.10 $0.00 $0.10",
            "wait until 13:00 13:00:00 $0.00 $2.00 $2.00 it costs $1.90 more",
        ]


@pytest.mark.parametrize(("ran", "since"), [(None, "10m"), (NOW - 8 * MINUTE, "1m")])
def test_a_job_that_has_run_waits_since_it_is_in_the_queue_again(
    ran: datetime | None, since: str
) -> None:
    waits = a_job(queued_at=NOW - MINUTE, first_started_at=ran)
    explanation = Explanation(job=waits, headline="waits", position=1)
    (line,) = (each for each in drawn(explanation_screen(explanation, NOW)) if "since" in each)
    assert line.split()[:4] == ["waits", "since", since, "ago"]


def test_a_job_that_waits_names_what_keeps_its_pool_from_buying() -> None:
    spec = JobSpec.model_validate({"name": "train", "command": "true"})
    report = JobReport(job=a_job(), spec=spec, not_bought="it buys nothing now: over a cap")
    rows = [line.split() for line in drawn(job_screen(report, NOW))]
    assert ["not", "bought", *report.not_bought.split()] in rows


def test_the_queue_is_watched_in_the_order_in_which_it_is_planned() -> None:
    risen = a_job(id="risen", priority=4, counted_as=5, submitted_at=NOW - 50 * MINUTE)
    jobs = (a_job(id="new"), a_job(id="low", priority=4), risen, a_running_job(id="runs"))
    screen = drawn(fleet_screen(Fleet(at=NOW, nodes=(), jobs=jobs, ended=()), 80, 40))
    listed = [line.split()[0] for line in screen if line and line.split()[0] in
              ("new", "low", "risen", "runs")]  # fmt: skip
    assert listed == ["runs", "risen", "new", "low"]


def test_why_names_who_is_left_alone_and_until_when() -> None:
    last = Decision(job_id="x", kind=PlacementKind.REQUEST_MORE_CAPACITY, reason="no room")
    spared = (
        Spared(job_id="sweep", until=NOW + 8 * MINUTE),
        Spared(job_id="train", until=NOW + 9 * MINUTE),
    )
    said = (
        "sweep was preempted lately and keeps its GPUs until 12:08:00 UTC, "
        "train until 12:09:00 UTC"
    )
    found = explain(a_job(), last=last, position=1, nodes=1, spared=spared)
    assert found.headline == f"waits: no room; no job is preempted for it yet: {said}"
    assert found.spared == spared
    held = explain(a_job(JobState.HELD), last=last, position=1, nodes=1, spared=spared)
    assert held.headline == "is held: `longshore release train-abcdefghij` lets it go on"


@pytest.mark.parametrize(
    ("reason", "said"), [("held", ""), ("make room", " (make room)"), ("", "")]
)
def test_a_held_job_says_since_when_and_why(reason: str, said: str) -> None:
    status = a_status(JobState.HELD, reason=reason, since=NOW)
    told = explain(a_job(JobState.HELD), position=1, nodes=1, hold=status)
    release = "`longshore release train-abcdefghij` lets it go on"
    assert told.headline == f"is held since {NOW:%Y-%m-%d %H:%M} UTC{said}: {release}"


def test_a_job_that_waits_for_its_begin_alone_is_told_of_no_release() -> None:
    said, later = "begins at 14:00 UTC", NOW + 120 * MINUTE
    job = a_job(JobState.HELD, begin_only=True, begins_at=later, reason=said)
    spec = JobSpec(name="train", command="true")
    told = explain(job, position=1, nodes=1, hold=a_status(JobState.HELD, since=NOW))
    assert told.headline.startswith("begins at 14:00 UTC: until then nobody is stopped for it")
    elements = job.model_copy(update={"elements": {ElementState.WAITING: 3}})
    assert explain(elements).headline == told.headline
    for screen in (
        explanation_screen(told, NOW), job_screen(JobReport(job=job, spec=spec), NOW),
        jobs_table([elements], NOW, 80),
    ):  # fmt: skip
        shown = " ".join(" ".join(drawn(screen)).split())
        assert said in shown
        assert "longshore release" not in shown
    both = job.model_copy(update={"begin_only": False, "reason": "held; begins at 14:00"})
    by_user = explain(both, position=1, nodes=1)
    assert by_user.headline.startswith("is held (held; begins at 14:00): `longshore release")


def test_each_job_is_one_line_that_fits() -> None:
    reason = "no node can take it now (12 nodes: 9 gpus-busy, 3 tier-mismatch); it waits for more"
    jobs = (a_job(reason=reason), a_running_job(simulated=True), a_job(JobState.HELD))
    for width in (80, 140):
        lines = drawn(jobs_table(jobs, NOW, width), width)
        assert len(lines) == 4
        assert max(map(len, lines)) <= width
        assert all("train-abcdefghij" in line for line in lines[1:])
        assert "simulated node-a GPUs 0-3" in lines[2]
    assert "no node can take it now" in drawn(jobs_table(jobs, NOW, 80))[1]
    assert "tenant" in drawn(jobs_table(jobs, NOW, 140), 140)[0]
    assert "tenant" not in drawn(jobs_table(jobs, NOW, 80), 80)[0]


def test_a_pipe_gets_the_whole_reason() -> None:
    reason = "x" * 300
    assert reason in drawn(jobs_table((a_job(reason=reason),), NOW, 4000), 4000)[1]


COMING = PurchaseUnderWay(
    id="p-1", instance_type="8xH100", provider="prime", nodes=2, committed_micro_usd=12_000_000,
    ready_at=NOW + MINUTE,
)  # fmt: skip


def waiting(**fields: Any) -> Explanation:
    job = a_job(estimated_start=fields.pop("estimated_start", None))
    return explain(job, decided_at=NOW, position=1, growth=Growth.OPEN, **fields)


def test_machines_on_their_way_are_told_and_nothing_else_is_advised() -> None:
    told = waiting(nodes=0, coming=(COMING,))
    assert told.headline.endswith("; 2 machines are on the way, the first about 12:01 UTC")
    assert told.hints == ()


def test_nodes_that_the_last_cycle_saw_and_that_have_gone_are_said_to_have() -> None:
    reason = "no node can take it now (1 node: 1 node-not-ready)"
    last = Decision(
        job_id="train", kind=PlacementKind.QUEUE_FOR_FLEX, reason=reason,
        rejected={RejectionCode.STATE: 1},
    )  # fmt: skip
    told = waiting(nodes=0, last=last)
    assert told.headline == "waits: pool default has no nodes"
    lines = [line.strip() for line in drawn(explanation_screen(told, NOW), 140)]
    assert any(line.endswith(f"{reason}; 1 node gone since") for line in lines)
    assert waiting(nodes=1, last=last).headline == f"waits: {reason}"


def test_the_purchase_for_a_job_is_named_with_when_it_is_there() -> None:
    told = waiting(nodes=0, coming=(COMING,), purchases=(COMING,), estimated_start=NOW + MINUTE)
    assert told.headline == (
        "waits: pool default has no nodes; purchase p-1 of 2 x 8xH100 at prime ($12.00 committed) "
        "is under way for it, ready about 12:01 UTC"
    )
    assert told.hints == ()
    lines = drawn(explanation_screen(told, NOW))
    assert any("may start" in line and "when what was bought is there" in line for line in lines)
    late = waiting(nodes=0, purchases=(COMING.model_copy(update={"late": True}),))
    assert late.headline.endswith("under way for it, late: it was to be ready about 12:01 UTC")


def test_a_pool_that_buys_wants_no_agent() -> None:
    told = waiting(nodes=0, standing=BuyingStatus("buys what is missing"))
    assert told.headline == "waits: pool default has no nodes; it buys what is missing"
    assert told.hints == ("see what it would buy now: `longshore buy --dry-run --pool default`",)
    held = BuyingStatus("it buys nothing now: over a cap", "raise the cap")
    none = waiting(nodes=0, standing=held)
    assert none.headline == "waits: pool default has no nodes; it buys nothing now: over a cap"
    assert none.hints == ("raise the cap",)
    full = waiting(nodes=2, standing=held, helps=("wait for running jobs to end",))
    why = "raise the cap (it buys nothing now: over a cap)"
    assert full.hints == ("wait for running jobs to end", why)
    small = waiting(
        nodes=2, standing=BuyingStatus("buys what is missing"), kind="a node with 9 GPUs"
    )
    assert small.hints == ("see what it would buy now: `longshore buy --dry-run --pool default`",)
    alone = waiting(nodes=2, kind="a node with 9 GPUs", helps=("ask for fewer GPUs",))
    assert alone.hints == (
        "ask for fewer GPUs",
        "add a node with 9 GPUs: run `longshore agent --pool default` on it",
    )  # fmt: skip
    agent = "`longshore agent --pool default --label zone=a`"
    told = waiting(nodes=2, kind="a node with 9 GPUs", agent=agent, helps=("ask for fewer GPUs",))
    assert told.hints[1] == f"add a node with 9 GPUs: run {agent} on it"
    labels = ("start the agents with labels, as in `longshore agent --pool default --label r=1`",)
    assert waiting(nodes=2, kind="nodes that name it", helps=labels).hints == labels


def test_how_a_job_failed() -> None:
    failed = a_job(
        JobState.FAILED, failure="user", exit_code=3, reason="exited with code 3",
        ended_at=NOW - MINUTE, node_id="node-a",
    )  # fmt: skip
    assert "user, exit code 3 (node-a): exited" in drawn(jobs_table((failed,), NOW, 140), 140)[1]


def test_one_job_in_full() -> None:
    spec = JobSpec.model_validate(
        {"name": "train", "gpus": 4, "vram_per_gpu": "40GB", "command": ["python", "train.py"]}
    )
    lost = AttemptRecord(
        attempt=1, node_id="node-b", gpu_indices=(0, 2), placed_at=NOW - 9 * MINUTE,
        ended_at=NOW - 5 * MINUTE, failure=FailureClass.NODE, message="silent for 12 s",
    )  # fmt: skip
    now_running = AttemptRecord(
        attempt=2, node_id="node-a", gpu_indices=(0, 1, 2, 3), placed_at=NOW - 3 * MINUTE
    )
    status = a_status(
        JobState.RUNNING, attempt=2, attempts=(lost, now_running), since=NOW - 3 * MINUTE
    )
    progress = Progress(fraction=0.25, message="epoch 3", started_at=NOW - 3 * MINUTE)
    job = a_running_job(simulated=True, reason="the best of 2 candidates")
    report = JobReport(job=job, status=status, progress=progress, spec=spec)
    text = "\n".join(drawn(job_screen(report, NOW)))
    for part in (
        "train-abcdefghij  RUNNING for 3m",
        "25%  about 9m left  epoch 3",
        "node-a GPUs 0-3 (simulated)",
        "4 x GPU with 40GB, 1 core, 1GB RAM, about 1h",
        "python train.py",
        "node: silent for 12 s",
        "longshore logs -f train-abcdefghij",
    ):
        assert part in text


def test_a_job_says_what_it_brings_and_gives_back() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "train", "gpus": 4, "command": ["sh", "-c", "a; b"],
            "code": {"snapshot": "0" * 64, "files": 1, "bytes": 44, "commit": "0123456789abcd",
                     "changed": True},
            "environment": "requirements.txt", "outputs": ["results"],
        }
    )  # fmt: skip
    job = a_job(JobState.SUCCEEDED, ended_at=NOW)
    text = "\n".join(drawn(job_screen(JobReport(job=job, spec=spec), NOW)))
    assert "command      sh -c 'a; b'" in text
    assert "1 file, 44B, of commit 0123456789ab, with changes" in text
    assert "environment  requirements.txt" in text
    assert "outputs      results" in text
    assert f"longshore logs {job.id}, or longshore pull {job.id}" in text


def test_a_job_that_gave_way_says_how_often() -> None:
    first, then = NOW - 9 * MINUTE, NOW - 5 * MINUTE
    attempts = (
        AttemptRecord(
            attempt=1, node_id="node-a", gpu_indices=(0,), moved=True, message="its time ends",
            placed_at=first, ended_at=then,
        ),
        AttemptRecord(
            attempt=2, node_id="node-b", gpu_indices=(0,), failure=FailureClass.PREEMPTED,
            message="for big-1", placed_at=then, ended_at=NOW,
        ),
    )  # fmt: skip
    status = a_status(JobState.QUEUED, attempts=attempts, preemptions=2, moves=1)
    spec = JobSpec.model_validate({"name": "train", "command": "true"})
    text = "\n".join(drawn(job_screen(JobReport(job=a_job(), status=status, spec=spec), NOW)))
    for part in (
        "preempted 2 times, moved 1 time",
        "moved: its time ends",
        "preempted: for big-1",
    ):
        assert part in text


def test_why_names_the_next_best_of_a_job_that_was_placed() -> None:
    terms = ScoreTerms(utilization=1, fragmentation=0, expiry=0, provider=0, total=0.25)
    best, other = (
        Candidate(node_id=node, gpu_indices=(0, 1), terms=terms) for node in ("node-a", "node-b")
    )
    placed = Decision(
        job_id="x", kind=PlacementKind.EXISTING_NODE, node_id="node-a", candidates=(best, other)
    )
    explanation = Explanation(job=a_running_job(), headline="runs", placed=placed)
    text = "\n".join(drawn(explanation_screen(explanation, NOW)))
    assert "Nodes that could take it when it was placed, best first" in text
    assert text.index("node-a") < text.index("node-b")
    assert text.count("GPUs 0-1, score 0.250") == 2


def test_why_lists_every_node_with_what_is_missing() -> None:
    rejection = Rejection(
        node_id="node-a", code=RejectionCode.GPUS_BUSY, permanent=False,
        reason="has 1 of 8 GPUs free, job wants 4",
    )  # fmt: skip
    alone = Decision(job_id="x", kind=PlacementKind.REQUEST_MORE_CAPACITY, rejections=(rejection,))
    explanation = Explanation(
        job=a_job(), headline="waits: no node can take it now", position=3, ahead=2,
        decision=alone, last_decision=alone.model_copy(update={"reason": "it was not its turn"}),
        decided_at=NOW - MINUTE, hints=("wait for running jobs to end",),
    )  # fmt: skip
    for width in (80, 140):
        text = "\n".join(drawn(explanation_screen(explanation, NOW), width))
        for part in (
            "train-abcdefghij waits: no node can take it now",
            "place 3 in pool default, 2 jobs before it",
            "ago: it was not its turn",
            "gpus-busy",
            "has 1 of 8 GPUs free, job wants 4",
            "- wait for running jobs to end",
        ):
            assert part in text


@pytest.mark.parametrize(
    ("state", "failure", "exit_code", "expected"),
    [
        (JobState.SUCCEEDED, None, 0, 0),
        (JobState.FAILED, FailureClass.USER, 3, 3),
        (JobState.FAILED, FailureClass.OUT_OF_MEMORY, 137, 137),
        (JobState.FAILED, FailureClass.NODE, None, 70),
        (JobState.FAILED, FailureClass.NODE, 0, 70),
        (JobState.FAILED, FailureClass.QUEUE_TIMEOUT, None, 75),
        (JobState.CANCELLED, FailureClass.CANCELLED, None, 130),
        (JobState.CANCELLED, FailureClass.CANCELLED, 0, 130),
    ],
)
def test_the_exit_code_of_a_job(
    state: JobState, failure: FailureClass | None, exit_code: int | None, expected: int
) -> None:
    result = JobResult(job_id="x", state=state, failure=failure, exit_code=exit_code)
    assert exit_code_of(result) == expected


def test_plain_lines_say_each_thing_once() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.changed(a_status(JobState.QUEUED, reason="waits"))
    lines.changed(a_status(JobState.QUEUED, reason="waits"))
    for percent in range(0, 100, 3):
        lines.progressed(Progress(fraction=percent / 100))
    result = JobResult(
        job_id="x", state=JobState.FAILED, failure=FailureClass.USER, exit_code=3, message="code 3"
    )
    lines.changed(a_status(JobState.FAILED, reason="code 3", result=result))
    said = [line.split("  ", 1)[1] for line in written]
    assert said[0] == "QUEUED  waits"
    assert len(said) == 12
    assert said[-1] == "FAILED (user, exit code 3) code 3"


def test_plain_lines_never_go_back_in_time() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    lines.progressed(Progress(fraction=0.93))  # now, which is long after NOW
    lines.changed(a_status(JobState.RUNNING, attempt=2, since=NOW))
    lines.ended(JobResult(job_id="x", state=JobState.SUCCEEDED, exit_code=0, ended_at=NOW))
    assert len(written) == 3
    assert len({line.partition("  ")[0] for line in written}) == 1


def test_states_that_end_well_look_otherwise_than_those_that_do_not() -> None:
    ends = (JobState.SUCCEEDED, JobState.CANCELLED, JobState.FAILED)
    assert len({str(styled(state).style) for state in ends}) == len(ends)
    assert len({chip(state.value).split('"')[1] for state in ends}) == len(ends)


def test_what_runs_is_as_old_as_its_run_and_not_as_its_submission() -> None:
    day = timedelta(days=1)
    submitted = {"submitted_at": NOW - 7 * day}
    jobs = [
        a_job(JobState.QUEUED, **submitted), a_running_job(started_at=NOW - 2 * day, **submitted),
        a_job(JobState.SUCCEEDED, ended_at=NOW - MINUTE, **submitted),
    ]  # fmt: skip
    heading, *lines = drawn(jobs_table(jobs, NOW, 140), 140)
    at = heading.index("ago")
    assert [line[at - 1 : at + 3].strip() for line in lines] == ["7d", "2d", "1m"]


def test_the_panel_shows_where_and_how_far() -> None:
    record = AttemptRecord(attempt=2, node_id="node-a", gpu_indices=(0, 1), placed_at=NOW)
    status = a_status(JobState.RUNNING, attempt=2, attempts=(record,), reason="on node node-a")
    lines = drawn(job_panel(status, Progress(fraction=0.5), a_running_job(simulated=True)))
    assert lines[1] == "on node-a GPUs 0-1 (simulated), attempt 2"
    assert " 50%" in lines[2]


def test_why_of_an_ended_job_says_how_it_ended_where_it_ran_and_what_it_cost() -> None:
    terms = ScoreTerms(utilization=1, fragmentation=0, expiry=0, provider=0, total=0.25)
    old = Decision(
        job_id="x", kind=PlacementKind.EXISTING_NODE, node_id="node-a",
        candidates=(Candidate(node_id="node-a", gpu_indices=(0, 1), terms=terms),),
    )  # fmt: skip
    ended = a_job(
        JobState.FAILED, attempt=1, node_id="node-a", gpu_indices=(0, 1), failure="user",
        exit_code=3, reason="exited with code 3", started_at=NOW - 5 * MINUTE,
        ended_at=NOW - 2 * MINUTE,
    )  # fmt: skip
    record = AttemptView(
        attempt=1, shares=(AttemptShare(node_id="node-a", gpu_indices=(0, 1)),),
        placed_at=NOW - 5 * MINUTE, ended_at=NOW - 2 * MINUTE, end_reason="finished",
        end_message="exited with code 3",
    )  # fmt: skip
    cost = JobCost(
        gpu_time=6 * MINUTE, booked_micro_usd=1_200_000, bought=True, open_blocks=("b-2",)
    )
    told = explain(ended, placed=old).model_copy(update={"attempts": (record,), "cost": cost})
    text = "\n".join(drawn(explanation_screen(told, NOW), 120))
    for part in (
        "has failed (user, exit code 3): exited with code 3",
        "ran last on   node-a GPUs 0-1",
        "ended         2m ago (",
        "ran last for  3m",
        "cost          $1.20 for 6m of GPU time; its share of b-2 is booked when that ends",
        "finished: exited with code 3",
    ):
        assert part in text
    assert "score" not in text
    assert told.placed == old  # for --json
    own = told.model_copy(update={"cost": JobCost(gpu_time=6 * MINUTE)})
    assert "6m of GPU time on nodes that were not bought" in "\n".join(
        drawn(explanation_screen(own, NOW), 120)
    )


def test_of_a_job_whose_workflow_was_ended_from_outside_no_attempt_goes_on() -> None:
    """Its end is on record with the next reconcile only."""
    began, over = NOW - 5 * MINUTE, NOW - 2 * MINUTE
    ended = a_job(
        JobState.FAILED, attempt=1, node_id="node-a", gpu_indices=(0, 1), started_at=began,
        reason="its workflow was terminated", ended_at=over,
    )  # fmt: skip
    held = AttemptView(
        attempt=1, shares=(AttemptShare(node_id="node-a", gpu_indices=(0, 1)),), placed_at=began
    )
    told = explain(ended).model_copy(update={"attempts": (held,)})
    (row,) = [
        line
        for line in drawn(explanation_screen(told, NOW), 160)
        if "ended with its workflow; the next reconcile frees its GPUs" in line
    ]
    assert " 3m " in row
    record = AttemptRecord(attempt=1, node_id="node-a", gpu_indices=(0, 1), placed_at=began)
    status = a_status(JobState.FAILED, attempts=(record,))
    screen = drawn(job_screen(JobReport(job=ended, status=status), NOW), 160)
    (row,) = [line for line in screen if line.endswith("ended with its workflow")]
    assert " 3m " in row
