"""What the demo makes of what it sees: events, the summary, and what is wrong."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from longshore.models.job import Tier
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.node import NodeState
from longshore.models.retry import FailureClass
from longshore.models.views import GPUView, JobView, NodeView
from longshore.workers.demo.events import events_between
from longshore.workers.demo.report import DemoReport, report_on
from longshore.workers.demo.state import DemoState, Snapshot, StateFile

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def an_attempt(
    number: int, start: float, end: float, gpus: int = 1, failure: FailureClass | None = None
) -> AttemptRecord:
    return AttemptRecord(
        attempt=number, node_id="demo-1", gpu_indices=tuple(range(gpus)), placed_at=at(start),
        ended_at=at(end), failure=failure,
    )  # fmt: skip


def a_job(name: str, state: JobState, *attempts: AttemptRecord) -> JobStatus:
    return JobStatus(
        job_id=name, name=name, tenant="demo", pool="demo", state=state, submitted_at=T0,
        since=T0, attempts=attempts,
    )  # fmt: skip


def a_node(
    *, holder: str | None = None, epoch: int = 1, state: NodeState = NodeState.READY
) -> NodeView:
    return NodeView(
        id="demo-1", pool="demo", tier=Tier.FAST, provider="own", state=state, epoch=epoch,
        simulated=True, gpu_type="H100", cpus=128, cpus_used=0, ram=824, ram_used=0,
        gpus=(GPUView(index=0, model="simulated H100", vram=80, vram_used=0, job_id=holder),
              GPUView(index=1, model="simulated H100", vram=80, vram_used=0)),
        registered_at=T0, labels={},
    )  # fmt: skip


def a_view(state: JobState, attempt: int = 1) -> JobView:
    return JobView(
        id="a", name="a", tenant="demo", pool="demo", tier=Tier.FAST, priority=5, gpus=2,
        state=state, attempt=attempt, node_id="demo-1", gpu_indices=(0, 1), submitted_at=T0,
        started_at=at(1), ended_at=at(4.5) if state.ended else None, reason="why",
    )  # fmt: skip


GOOD = (
    a_job("one", JobState.SUCCEEDED, an_attempt(1, 1, 3, failure=FailureClass.NODE),
          an_attempt(2, 5, 9, gpus=2)),
    a_job("two", JobState.SUCCEEDED, an_attempt(1, 2, 6)),
    a_job("three", JobState.CANCELLED, an_attempt(1, 4, 5, failure=FailureClass.CANCELLED)),
)  # fmt: skip
STATE = DemoState(
    batch="b", jobs=3, nodes=1, seed=1, began_at=T0, cancelled_job="three",
    killed_node="demo-1", killed_at=at(3), declared_lost_at=at(14.5),
)  # fmt: skip


def report(*jobs: JobStatus, state: DemoState = STATE, node: NodeView | None = None) -> DemoReport:
    return report_on(
        state,
        jobs,
        (node or a_node(),),
        cycles=4,
        training="accuracy 0.95",
        gang="all 2 ranks met",
        now=at(20),
    )


def test_a_demo_as_it_should_be() -> None:
    summary = report(*GOOD)
    assert summary.problems == ()
    assert (summary.succeeded, summary.cancelled, summary.failed) == (2, 1, 0)
    assert (summary.placements, summary.retries, summary.declared_lost_after) == (4, 1, 11.5)
    assert (summary.wait.p50, summary.wait.max, summary.run.max) == (2, 4, 4)
    assert summary.gpu_seconds_leased == 2 + 8 + 4 + 1
    assert summary.gpu_seconds_available == 8 * 2


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        (GOOD[:2], "2 jobs were found, 3 were submitted"),
        ((*GOOD[:2], a_job("three", JobState.SUCCEEDED)), "three is SUCCEEDED and not CANCELLED"),
        ((a_job("one", JobState.FAILED), *GOOD[1:]), "one is FAILED and not SUCCEEDED"),
        ((a_job("one", JobState.SUCCEEDED), *GOOD[1:]), "killed, and no job noticed"),
        (
            (
                a_job("one", JobState.FAILED, an_attempt(1, 1, 3, failure=FailureClass.NODE)),
                *GOOD[1:],
            ),
            "one lost its node in attempt 1, its last",
        ),
    ],
)
def test_what_is_wrong_is_said(jobs: tuple[JobStatus, ...], problem: str) -> None:
    assert any(problem in said for said in report(*jobs).problems)


def test_a_lease_that_is_still_open_is_wrong() -> None:
    assert report(*GOOD, node=a_node(holder="one")).problems == (
        "demo-1 GPU 0 is still leased to one",
    )


@pytest.mark.parametrize("excuse", ["interruptions", "disturbances"])
def test_steps_may_be_missing_only_when_somebody_interfered(excuse: str) -> None:
    state = STATE.model_copy(update={"killed_node": None, "killed_at": None})
    assert report(*GOOD, state=state).problems == ("no agent was killed",)
    assert report(*GOOD, state=state.model_copy(update={excuse: 1})).problems == ()


@pytest.mark.parametrize(
    ("before", "after", "kind", "text"),
    [
        (a_view(JobState.QUEUED), a_view(JobState.RUNNING), "placed", "a on demo-1 GPUs 0-1"),
        (None, a_view(JobState.RUNNING, 2), "placed", "a on demo-1 GPUs 0-1, attempt 2"),
        (a_view(JobState.RUNNING), a_view(JobState.SUCCEEDED), "finished", "a after 3.5 s"),
        (a_view(JobState.RUNNING), a_view(JobState.CANCELLED), "cancelled", "a: why"),
        (a_view(JobState.RUNNING), a_view(JobState.RETRYING), "requeued",
         "a waits again, after attempt 1"),
        (a_view(JobState.RUNNING), a_view(JobState.FAILED), "failed", "a: why"),
    ],
)  # fmt: skip
def test_events_of_a_job(before: JobView | None, after: JobView, kind: str, text: str) -> None:
    earlier = Snapshot(T0, jobs=(before,) if before else ())
    (event,) = events_between(earlier, Snapshot(at(1), jobs=(after,)))
    assert (event.kind, event.text, event.at) == (kind, text, at(1))


def test_events_of_a_node() -> None:
    seen = [
        Snapshot(T0),
        Snapshot(at(1), nodes=(a_node(),)),
        Snapshot(at(2), nodes=(a_node(state=NodeState.LOST),)),
        Snapshot(at(3), nodes=(a_node(epoch=2),)),
        Snapshot(at(4), nodes=(a_node(epoch=2),)),
    ]
    kinds = [
        [event.kind for event in events_between(one, next_one)] for one, next_one in pairwise(seen)
    ]
    assert kinds == [["joined"], ["lost"], ["recovered"], []]


def test_an_unfinished_demo_is_found_again_unless_it_is_old(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.unfinished() is None
    state = DemoState.new(8, 3, 1)
    file.save(state)
    assert file.unfinished() == state
    file.save(state.model_copy(update={"began_at": state.began_at - timedelta(days=1)}))
    assert file.unfinished() is None
    file.remove()
    file.remove()
