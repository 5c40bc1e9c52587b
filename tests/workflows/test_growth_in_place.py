"""A malleable gang that grows in place: ranks join, and those that are there are not stopped."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.growth import Growing
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.node_messages import ProcessReport, joined_id
from longshore.models.pool import PoolSpec
from longshore.models.resize import Resize
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.scheduling import growth
from longshore.scheduling.ranks import COUNTS_SAVES
from tests.support.control import a_spec, lease_ends, reaches
from tests.support.scripted_node import serving_one_fabric
from tests.support.waiting import eventually
from tests.workflows.test_in_place import WISH, Ranks, settles

SIZES = {"min": 8, "max": 24, "step": 8, "desired": 16, "in_place": True}
AT_ONCE = {**WISH["checkpoint"], "grace": "0s"}
"""It saves in no time, so that GPUs need not be idle for long before it grows."""


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
    """Start a job on two of three nodes; return its id, and the nodes by rank, the free one
    last."""
    wish = {**WISH, "gpus": 16, "malleable": SIZES, **fields}
    job_id = (await longshore.submit(a_spec(pool, **wish))).job_id
    await reaches(longshore, job_id, JobState.RUNNING)
    names = (await longshore.job(job_id)).nodes
    by_id = {node.id: node for node in nodes}
    first = [by_id[name] for name in names]
    for node in first:
        await node.started(job_id)
    return job_id, [*first, *(node for node in nodes if node not in first)]


@pytest.fixture
async def running(longshore: Longshore, three: Ranks, pool: str) -> tuple[str, Ranks]:
    return await started(longshore, three, pool)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("step", [None, 7])
async def test_where_each_node_stores_its_part_ranks_join_by_the_step_that_is_named(
    longshore: Longshore, three: Ranks, pool: str, step: int | None
):
    """Of saves without a step those with one number belong together, and who joins has another."""
    wish = {"folder": "saved", "save_file": True}
    job_id, (first, second, third) = await started(longshore, three, pool, checkpoint=wish)
    first.step = second.step = step
    assert (await longshore.resize(job_id, 24)).in_place == 24
    if step is None:
        await third.started(job_id, attempt=2)
        assert f"; not in place: {COUNTS_SAVES}" in first.stops[0].reason
    else:
        await settles(longshore, job_id)
        await third.started(joined_id(job_id, 2))
        assert first.stops == []
    assert (len(first.saves), len(second.saves)) == (1, 1)


async def test_a_rank_joins_after_a_save_and_the_others_are_told_and_not_stopped(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    since = (await longshore.status(job_id)).since
    reply = await longshore.resize(job_id, 24, "hurry")
    assert (reply.gpus, reply.restarts, reply.in_place) == (16, None, 24)
    assert reply.reason == "from 16 to 24 GPUs in place: 1 rank joins after a save"
    await settles(longshore, job_id)
    request = await third.started(joined_id(job_id, 2))
    assert (request.placement.rank, request.placement.joined, request.gpus_before) == (2, True, 16)
    assert [rank.rank for rank in request.placement.ranks] == [0, 1, 2]
    assert [rank.address for rank in request.placement.ranks] == [
        f"{node.id}.test" for node in (first, second, third)
    ]
    assert (len(first.saves), second.saves, third.saves) == (1, [], [])  # of storage that all see
    for node in (first, second):
        (told,) = node.sizes
        assert (told.gpus_before, told.gpus) == (16, 24)
        assert [rank.node_id for rank in told.ranks] == [first.id, second.id, third.id]
        assert node.stops == []
    assert third.sizes == []
    async with control.transaction() as connection:  # nobody sees it in the store
        query = text("SELECT count(*) FROM job_checkpoints WHERE job_id = :id")
        assert await connection.scalar(query, {"id": job_id}) == 1
    assert await lease_ends(control, job_id) == [None] * 24
    status = await longshore.status(job_id)
    assert (status.state, status.attempt, status.resizes) == (JobState.RUNNING, 1, 1)
    assert status.since == since
    assert status.reason == (
        "resized hurry: from 16 to 24 GPUs; in place: rank 2 joins, 24 GPUs go on with no stop"
    )
    assert [node_id for node_id, _ in status.attempts[0].places] == [
        first.id, second.id, third.id,
    ]  # fmt: skip
    job = await longshore.job(job_id)
    assert (job.gpus, job.nodes) == (24, (first.id, second.id, third.id))
    explanation = await longshore.explain(job_id)
    (change,) = explanation.sizes
    assert (change.gpus_before, change.gpus, change.in_place, change.end_reason) == (
        16, 24, True, "resized",
    )  # fmt: skip
    assert change.reason == "resized hurry: from 16 to 24 GPUs"
    await first.end(job_id)
    await second.end(job_id)
    await third.end(joined_id(job_id, 2))
    result = await longshore.wait(job_id)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert await lease_ends(control, job_id) == ["finished"] * 24


@pytest.mark.exhaustive
async def test_it_grows_onto_a_node_that_has_left_it_and_shrinks_again(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    for times, gpus in enumerate((24, 8, 24, 16), 1):
        assert (await longshore.resize(job_id, gpus)).in_place == gpus
        await settles(longshore, job_id, times)
    assert [told.gpus for told in first.sizes] == [24, 8, 24, 16]
    # Rank 1 left and came back as 3 or 4; the last to come is the first to go.
    assert [rank.rank for rank in first.sizes[2].ranks] == [0, 3, 4]
    assert [rank.rank for rank in first.sizes[3].ranks] == [0, 3]
    assert first.stops == []
    status = await longshore.status(job_id)
    assert (status.attempt, status.attempts[0].gpus) == (1, 16)
    sizes = (await longshore.explain(job_id)).sizes
    assert [(each.gpus_before, each.gpus, each.in_place) for each in sizes] == [
        (16, 24, True), (24, 8, True), (8, 24, True), (24, 16, True),
    ]  # fmt: skip
    ends = sorted(await lease_ends(control, job_id), key=str)
    assert ends == [None] * 16 + ["resized"] * 24
    left = (await longshore.job(job_id)).nodes
    (there,) = (node for node in (second, third) if node.id in left)
    await first.end(job_id)
    await there.end(joined_id(job_id, 3))
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    job = await longshore.job(job_id)
    assert (job.gpus, job.nodes) == (16, (first.id, there.id))  # those that it had in the end


@pytest.mark.exhaustive
async def test_without_room_in_place_it_keeps_its_gpus(
    longshore: Longshore, running: tuple[str, Ranks], pool: str
):
    job_id, (first, second, third) = running
    other = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await third.started(other)
    reply = await longshore.resize(job_id, 24)
    assert (reply.in_place, reply.restarts) == (None, None)
    assert reply.reason.startswith("it keeps its 16 GPUs")
    assert first.stops == second.stops == []
    await third.end(other)


@pytest.mark.exhaustive
async def test_room_that_is_gone_when_it_has_saved_leaves_it_as_it_is(
    longshore: Longshore, running: tuple[str, Ranks], pool: str, control: Database
):
    job_id, (first, second, third) = running
    first.slow_to_save = True
    assert (await longshore.resize(job_id, 24)).in_place == 24
    await eventually(lambda: first.saves)
    other = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await third.started(other)
    first.let_save()

    async def it_is_said() -> bool:
        return "; not grown: " in (await longshore.status(job_id)).reason

    await eventually(it_is_said)
    status = await longshore.status(job_id)
    assert (status.state, status.attempt, status.resizes) == (JobState.RUNNING, 1, 0)
    assert first.sizes == second.sizes == first.stops == second.stops == []
    assert await lease_ends(control, job_id) == [None] * 16
    await third.end(other)


@pytest.mark.exhaustive
async def test_a_job_that_does_not_save_is_stopped_for_its_user(
    longshore: Longshore, running: tuple[str, Ranks]
):
    job_id, (first, second, third) = running
    first.saves_nothing = True
    assert (await longshore.resize(job_id, 24)).in_place == 24
    request = await third.started(job_id, 2)
    assert (len(request.placement.ranks), request.gpus_before) == (3, 16)
    assert "not in place: it did not save" in first.stops[0].reason
    assert len(second.stops) == 1


@pytest.mark.exhaustive
async def test_a_rank_that_cannot_be_told_is_a_stop_of_all_with_the_new_leases(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, (first, second, third) = running
    second.knows_no_sizes = True
    await longshore.resize(job_id, 24)
    await third.started(job_id, 2)
    assert (job_id, 1) not in third.runs()
    assert (joined_id(job_id, 2), 1) not in third.runs()  # it never began
    assert "not in place: a rank could not be told" in first.stops[0].reason
    ends = await lease_ends(control, job_id)
    assert sorted(ends, key=str) == [None] * 24 + ["resized"] * 24


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "how",
    [
        "lost",
        pytest.param("refused", marks=pytest.mark.exhaustive),
        pytest.param("failed to start", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_node_that_does_not_start_its_rank_is_a_rank_that_left(
    longshore: Longshore, running: tuple[str, Ranks], control: Database, how: str
):
    job_id, (first, second, third) = running
    if how == "refused":
        third.refusal = "fenced off"
    await longshore.resize(job_id, 24)
    if how == "lost":
        await third.started(joined_id(job_id, 2))
        third.leave()
    elif how != "refused":
        said = ProcessReport(exit_code=127, failure=FailureClass.START, message="no such image")
        await third.end(joined_id(job_id, 2), 1, said)
    await settles(longshore, job_id, 2)  # it came, and it left
    for node in (first, second):
        assert [told.gpus for told in node.sizes] == [24, 16]
        assert node.stops == []
    status = await longshore.status(job_id)
    assert (status.state, status.attempt) == (JobState.RUNNING, 1)
    assert (await longshore.job(job_id)).gpus == 16
    end = "node-lost" if how == "lost" else "resized"
    assert sorted(await lease_ends(control, job_id), key=str) == [None] * 16 + [end] * 8
    changes = (await longshore.explain(job_id)).sizes
    assert [(each.gpus_before, each.gpus) for each in changes] == [(16, 24), (24, 16)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [pytest.param("cancel", marks=pytest.mark.exhaustive), "hold"])
async def test_a_stop_while_it_saves_to_grow_leaves_nothing_behind(
    longshore: Longshore, running: tuple[str, Ranks], control: Database, command: str
):
    job_id, (first, second, third) = running
    first.slow_to_save = True
    await longshore.resize(job_id, 24)
    await eventually(lambda: first.saves)
    await getattr(longshore, command)(job_id, "enough")
    await reaches(longshore, job_id, JobState.CANCELLED if command == "cancel" else JobState.HELD)
    end = "cancelled" if command == "cancel" else "held"
    assert await lease_ends(control, job_id) == [end] * 16
    assert third.runs() == []
    assert len(first.stops) == len(second.stops) == 1


@pytest.mark.exhaustive
async def test_a_stop_after_a_rank_has_joined_stops_all_three(
    longshore: Longshore, running: tuple[str, Ranks], control: Database
):
    job_id, nodes = running
    await longshore.resize(job_id, 24)
    await settles(longshore, job_id)
    await longshore.cancel(job_id, "enough")
    await reaches(longshore, job_id, JobState.CANCELLED)
    assert [len(node.stops) for node in nodes] == [1, 1, 1]
    assert nodes[2].stops[0].key.job_id == joined_id(job_id, 2)
    assert await lease_ends(control, job_id) == ["cancelled"] * 24


@pytest.mark.exhaustive
async def test_by_itself_it_keeps_its_size_where_its_saves_name_no_step(
    longshore: Longshore, three: Ranks, pool: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    soon = timedelta(seconds=0.1)
    await longshore.set_pool(PoolSpec(name=pool, interval=soon, grow_after=soon))
    other = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await reaches(longshore, other, JobState.RUNNING)
    job_id, (first, second, third) = await started(
        longshore, three, pool, gpus=24, malleable={**SIZES, "desired": 24},
        checkpoint={**AT_ONCE, "store": True},
    )  # fmt: skip
    await third.end(other)

    async def it_is_said() -> bool:
        return f"; not grown: {COUNTS_SAVES}" in (await longshore.status(job_id)).reason

    await eventually(it_is_said)
    status = await longshore.status(job_id)
    assert (status.attempt, status.resizes, first.stops, second.sizes) == (1, 0, [], [])
    await longshore.cancel(job_id, "enough")


async def test_it_grows_by_itself_in_place_when_another_has_ended(
    longshore: Longshore, three: Ranks, pool: str, control: Database,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    soon = timedelta(seconds=0.1)
    await longshore.set_pool(PoolSpec(name=pool, interval=soon, grow_after=soon))
    other = (await longshore.submit(a_spec(pool, gpus=8))).job_id
    await reaches(longshore, other, JobState.RUNNING)
    sizes = {**SIZES, "desired": 24}
    job_id, (first, second, third) = await started(
        longshore, three, pool, gpus=24, malleable=sizes, checkpoint=AT_ONCE
    )
    kept = (await longshore.explain(job_id)).growth
    assert kept is not None
    assert kept.reason.startswith("16 of 24 desired GPUs: no more are free for it in place: ")
    await third.end(other)
    request = await third.started(joined_id(job_id, 2))
    assert request.placement.attempt == 1
    await settles(longshore, job_id)
    assert first.stops == second.stops == []
    status = await longshore.status(job_id)
    assert status.reason.startswith("grown in place from 16 to 24 GPUs: it ends ")
    assert status.reason.endswith("; in place: rank 2 joins, 24 GPUs go on with no stop")
    (change,) = (await longshore.explain(job_id)).sizes
    assert (change.gpus_before, change.gpus, change.in_place) == (16, 24, True)
    assert "of work in no save" not in change.reason
    assert "which earns $" in change.reason


@pytest.mark.exhaustive
async def test_growth_that_is_told_before_the_job_has_gone_on_without_a_lost_rank_is_kept(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """The database knows of the loss first, and a cycle may tell of growth from what is left."""
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        sizes = {"min": 8, "max": 16, "step": 8, "in_place": True}
        job_id, (first, second) = await started(
            longshore, nodes, pool, gpus=16, malleable=sizes, checkpoint=AT_ONCE
        )
        job = temporal.get_workflow_handle(job_workflow_id(job_id))
        grow = Growing(attempt=1, gpus_before=8, gpus=16, reason="GPUs are idle")
        await job.signal("grow", grow)
        await second.register(boot_id="boot-2")  # its agent began anew
        await second.started(joined_id(job_id, 2))
        await settles(longshore, job_id, 2)
        assert first.stops == []
        await first.end(job_id)
        await second.end(joined_id(job_id, 2))
        assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.exhaustive
async def test_growth_that_is_told_early_is_forgotten_where_the_user_asks_for_another_size(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        sizes = {"min": 8, "max": 16, "step": 8, "in_place": True}
        job_id, (first, _) = await started(
            longshore, nodes, pool, gpus=16, malleable=sizes, checkpoint=AT_ONCE
        )
        job = temporal.get_workflow_handle(job_workflow_id(job_id))
        grow = Growing(attempt=1, gpus_before=8, gpus=16, reason="GPUs are idle")
        await job.signal("grow", grow)
        await job.execute_update("resize", Resize(gpus=8))
        await settles(longshore, job_id, 1)
        await first.end(job_id)
        await longshore.wait(job_id)
        assert len(first.saves) == 1
        changes = (await longshore.explain(job_id)).sizes
        assert [(change.gpus_before, change.gpus) for change in changes] == [(16, 8)]


@pytest.mark.exhaustive
async def test_after_a_loss_it_grows_again_on_the_node_that_came_back(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(growth, "TO_START", timedelta(0))
    soon = timedelta(seconds=0.1)
    await longshore.set_pool(PoolSpec(name=pool, interval=soon, grow_after=soon))
    token = settings.resolve_agent_token()
    async with serving_one_fabric(temporal, pool, token, "ab") as nodes:
        sizes = {"min": 8, "max": 16, "step": 8, "in_place": True}
        job_id, (first, second) = await started(
            longshore, nodes, pool, gpus=16, malleable=sizes, checkpoint=AT_ONCE
        )
        await second.register(boot_id="boot-2")  # its agent began anew
        request = await second.started(joined_id(job_id, 2))
        assert request.placement.epoch == 2
        await settles(longshore, job_id, 2)
        assert first.stops == []
        assert [told.gpus for told in first.sizes] == [8, 16]
        await first.end(job_id)
        await second.end(joined_id(job_id, 2))
        assert (await longshore.wait(job_id)).attempts == 1
