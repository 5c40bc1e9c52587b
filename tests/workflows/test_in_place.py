"""A malleable gang that changes its size in place: ranks leave, and the rest is not stopped."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import InterruptRequest, job_workflow_id
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workflows.job import JobWorkflow
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

WISH: dict[str, Any] = {
    "gpus": 24, "gang": {},
    "malleable": {"min": 8, "max": 24, "step": 8, "in_place": True},
    "checkpoint": {"folder": "saved", "store": False, "save_file": True, "grace": "7s"},
    "retry": {"node": {"max_retries": None, "backoff": 0}},
}  # fmt: skip
Ranks = list[ScriptedNode]


@pytest.fixture
async def three(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[Ranks]:
    """Registers three nodes of 8 GPUs in one fabric domain; 0.3 s."""
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "abc") as nodes:
        yield nodes


async def started(
    longshore: Longshore, nodes: Ranks, pool: str, **fields: Any
) -> tuple[str, Ranks]:
    """Start a job on all of the nodes; return its id, and the nodes by rank."""
    job_id = (await longshore.submit(a_spec(pool, **{**WISH, **fields}))).job_id
    ranks = [(await node.started(job_id)).placement.rank for node in nodes]
    await reaches(longshore, job_id, JobState.RUNNING)
    return job_id, [node for _, node in sorted(zip(ranks, nodes, strict=True), key=lambda p: p[0])]


@pytest.fixture
async def running(longshore: Longshore, three: Ranks, pool: str) -> tuple[str, Ranks]:
    return await started(longshore, three, pool)


async def settles(longshore: Longshore, job_id: str, resizes: int = 1) -> None:
    async def there() -> bool:
        return (await longshore.status(job_id)).resizes == resizes

    await eventually(there)


async def test_the_highest_ranks_leave_after_a_save_and_the_rest_is_told_and_not_stopped(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    reply = await longshore.resize(job_id, 8, "make room")
    assert (reply.gpus, reply.restarts, reply.in_place) == (24, None, 8)
    assert reply.reason == "from 24 to 8 GPUs in place: ranks 1 and 2 leave after a save"
    await settles(longshore, job_id)
    assert (len(first.saves), second.saves, third.saves) == (1, [], [])  # of storage that all see
    assert first.saves[0].within.total_seconds() == 7
    (told,) = first.sizes
    assert (told.gpus_before, told.gpus, [rank.rank for rank in told.ranks]) == (24, 8, [0])
    assert (second.sizes, third.sizes) == ([], [])
    assert [len(node.stops) for node in (first, second, third)] == [0, 1, 1]
    assert sorted(await lease_ends(control, job_id), key=str) == [None] * 8 + ["resized"] * 16
    status = await longshore.status(job_id)
    assert (status.state, status.attempt, status.preemptions) == (JobState.RUNNING, 1, 0)
    assert status.reason == (
        "resized make room: from 24 to 8 GPUs; in place: ranks 1 and 2 leave, 8 GPUs go on with "
        "no stop"
    )
    assert status.attempts[0].gpus == 8
    job = await longshore.job(job_id)
    assert (job.gpus, job.nodes) == (8, (first.id,))
    (change,) = (await longshore.explain(job_id)).sizes
    assert (change.gpus_before, change.gpus, change.in_place, change.end_reason) == (
        24, 8, True, "resized",
    )  # fmt: skip
    await first.end(job_id)
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    (change,) = (await longshore.explain(job_id)).sizes
    assert (change.gpus_before, change.gpus, change.in_place) == (24, 8, True)


@pytest.mark.exhaustive
async def test_one_change_after_the_other(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, _) = running
    await longshore.resize(job_id, 16)
    await settles(longshore, job_id)
    await longshore.resize(job_id, 8)
    await settles(longshore, job_id, 2)
    assert [told.gpus for told in first.sizes] == [16, 8]
    assert [told.gpus for told in second.sizes] == [16]
    assert len(first.stops) == 0
    assert [each.gpus for each in (await longshore.explain(job_id)).sizes] == [16, 8]


@pytest.mark.exhaustive
async def test_where_each_node_stores_its_part_every_rank_saves(
    longshore: Longshore, three: Ranks, pool: str
):
    job_id, ranks = await started(
        longshore, three, pool, checkpoint={"folder": "saved", "save_file": True}
    )
    await longshore.resize(job_id, 16)
    await settles(longshore, job_id)
    assert [len(node.saves) for node in ranks] == [1, 1, 1]


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("babble", "why"),
    [
        (None, "it did not save: UnavailableError: it did not"),
        ({"number": "x"}, "what a node answered of its save cannot be read"),
    ],
)
async def test_a_job_that_does_not_save_is_stopped_and_starts_again(
    longshore: Longshore, running: tuple[str, Ranks], control: Database, babble: object, why: str
):
    job_id, (first, *_) = running
    first.saves_nothing, first.babble = babble is None, babble
    assert (await longshore.resize(job_id, 8)).in_place == 8

    async def again() -> bool:
        return (await longshore.status(job_id)).attempt == 2

    await eventually(again)
    status = await longshore.status(job_id)
    assert f"; not in place: {why}" in first.stops[0].reason
    assert (status.resizes, status.attempts[0].resized) == (1, True)
    assert sorted(await lease_ends(control, job_id), key=str)[-24:] == ["resized"] * 24


@pytest.mark.exhaustive
async def test_the_size_that_was_asked_for_last_counts(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (_, second, third) = running
    third.slow_to_stop = True
    await longshore.resize(job_id, 16)
    await eventually(lambda: third.stops)
    await longshore.resize(job_id, 8)  # waits for the change before it
    await longshore.resize(job_id, 16)
    await third.end(job_id, 1, ProcessReport(exit_code=143, stopped_for="another size"))
    await settles(longshore, job_id)
    await longshore.resize(job_id, 16)  # whatever was to come before it has come
    assert second.stops == []
    assert (await longshore.job(job_id)).gpus == 16


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ["cancel", pytest.param("hold", marks=pytest.mark.exhaustive)])
async def test_a_stop_in_the_middle_of_a_change_ends_all_of_it(
    longshore: Longshore, running: tuple[str, Ranks], control: Database, command: str
):
    job_id, (first, second, third) = running
    third.slow_to_stop = True
    await longshore.resize(job_id, 16)
    await eventually(lambda: third.stops)
    await getattr(longshore, command)(job_id, "enough")
    await eventually(lambda: first.stops and second.stops)
    assert await lease_ends(control, job_id) == [None] * 24  # it still runs there
    await third.end(job_id, 1, ProcessReport(exit_code=143, stopped_for="enough"))
    end = "cancelled" if command == "cancel" else "held"
    await reaches(longshore, job_id, JobState.CANCELLED if command == "cancel" else JobState.HELD)
    assert await lease_ends(control, job_id) == [end] * 24


async def test_with_a_lost_node_it_goes_on_with_fewer(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    second.leave()
    await settles(longshore, job_id)
    for node in (first, third):
        (told,) = node.sizes
        assert (told.gpus, [rank.rank for rank in told.ranks]) == (16, [0, 2])
        assert not node.stops
    assert sorted(await lease_ends(control, job_id), key=str) == [None] * 16 + ["node-lost"] * 8
    status = await longshore.status(job_id)
    assert (status.attempt, status.state) == (1, JobState.RUNNING)
    assert (status.attempts[0].other_nodes, status.attempts[0].left) == (
        (second.id, third.id), (second.id,),
    )  # fmt: skip
    assert f"node {second.id} was lost" in status.reason
    (change,) = (await longshore.explain(job_id)).sizes
    assert (change.gpus_before, change.gpus, change.end_reason) == (24, 16, "node-lost")
    for node in (first, third):
        await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


@pytest.mark.exhaustive
async def test_the_loss_of_rank_0_or_of_too_many_ends_the_attempt(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    first.leave()
    await eventually(lambda: second.stops and third.stops)
    request = await second.started(job_id, 2)
    assert sum(len(rank.gpu_indices) for rank in request.placement.ranks) == 16
    status = await longshore.status(job_id)
    assert (status.resizes, status.attempts[0].failure) == (0, FailureClass.NODE)


@pytest.mark.exhaustive
async def test_below_its_smallest_size_it_queues(
    longshore: Longshore, three: Ranks, pool: str, control: Database
):
    sizes = {"min": 24, "max": 24, "step": 8, "in_place": True}
    job_id, (first, second, third) = await started(longshore, three, pool, malleable=sizes)
    third.leave()
    await eventually(lambda: first.stops and second.stops)
    await reaches(longshore, job_id, JobState.QUEUED)
    await longshore.cancel(job_id, "enough")


@pytest.mark.exhaustive
async def test_a_lost_node_takes_others_along_where_the_rest_has_no_size(
    longshore: Longshore, three: Ranks, pool: str, control: Database
):
    sizes = {"min": 8, "max": 24, "step": 16, "desired": 24, "in_place": True}
    job_id, (first, second, third) = await started(longshore, three, pool, malleable=sizes)
    second.leave()
    await settles(longshore, job_id)
    assert (len(first.stops), len(third.stops)) == (0, 1)
    assert (await longshore.job(job_id)).gpus == 8
    ends = sorted(await lease_ends(control, job_id), key=str)
    assert ends == [None] * 8 + ["node-lost"] * 8 + ["resized"] * 8


@pytest.mark.exhaustive
async def test_a_node_that_is_lost_while_its_rank_leaves_holds_nothing_up(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, _, third) = running
    third.slow_to_stop = True
    await longshore.resize(job_id, 16)
    await eventually(lambda: third.stops)
    third.leave()
    await settles(longshore, job_id)
    assert not first.stops
    assert sorted(await lease_ends(control, job_id), key=str) == [None] * 16 + ["node-lost"] * 8


@pytest.mark.exhaustive
async def test_it_is_shrunk_in_place_for_a_higher_class(
    longshore: Longshore, three: Ranks, pool: str, control: Database
):
    job_id, (first, second, third) = await started(longshore, three, pool, priority=3)
    high = (await longshore.submit(a_spec(pool, gpus=8, priority=8))).job_id
    await third.started(high)
    assert not first.stops
    assert not second.stops
    (stop,) = third.stops
    assert stop.reason == f"shrunk to 16 GPUs for {high} of class 8"
    status = await longshore.status(job_id)
    assert (status.resizes, status.preemptions, status.attempt) == (1, 0, 1)
    assert "in place: rank 2 leaves, 16 GPUs go on with no stop" in status.reason
    # What was to be freed is free: the job may be asked again in the same attempt.
    again = (await longshore.submit(a_spec(pool, gpus=8, priority=9))).job_id
    await reaches(longshore, again, JobState.QUEUED)
    await third.end(high)
    await third.started(again)
    await third.end(again)
    await longshore.wait(again)


@pytest.mark.exhaustive
async def test_for_a_job_that_waits_no_more_nothing_changes(
    longshore: Longshore, temporal: Client, running: tuple[str, Ranks]
):
    job_id, (first, second, third) = running
    job = temporal.get_workflow_handle_for(JobWorkflow.run, job_workflow_id(job_id))
    told = InterruptRequest(attempt=1, reason="shrunk", for_job="job-gone", gpus_left=8)
    await job.signal(JobWorkflow.preempt, told)
    await longshore.resize(job_id, 16)  # comes after that
    await settles(longshore, job_id)
    assert (first.stops, second.stops, len(third.stops)) == ([], [], 1)
    assert (await longshore.status(job_id)).attempt == 1


@pytest.mark.exhaustive
async def test_where_the_other_could_not_start_on_what_leaves_it_is_stopped(
    longshore: Longshore, three: Ranks, pool: str, control: Database
):
    job_id, (first, second, third) = await started(longshore, three, pool, priority=3)
    await third.cordon("full")  # the other job cannot go there
    high = (await longshore.submit(a_spec(pool, gpus=8, priority=8))).job_id
    await eventually(lambda: first.stops and second.stops and third.stops)
    assert f"not in place: {high} would not start: " in first.stops[0].reason
    await longshore.cancel(job_id, "enough")


@pytest.mark.exhaustive
async def test_whole_ranks_that_do_not_add_up_are_a_restart(
    longshore: Longshore, running: tuple[str, Ranks], control: Database, pool: str
):
    job_id, _ = running
    sizes = {"min": 4, "max": 8, "step": 4, "in_place": True}
    one = a_spec(pool, **{**WISH, "gpus": 8, "malleable": sizes})
    await longshore.cancel(job_id, "enough")
    await longshore.wait(job_id)
    alone = (await longshore.submit(one)).job_id
    await reaches(longshore, alone, JobState.RUNNING)
    assert (await longshore.resize(alone, 4)).restarts == 4
