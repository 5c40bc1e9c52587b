"""Jobs that leave a node: drained, at the end of its time, at a notice that it is taken away."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.node import NodeState
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import RejectionCode
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.models.views import NodeView
from tests.support.control import a_spec, lease_ends, reaches, serving_control
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

END_MARGIN = timedelta(seconds=8)
SHORT = {"node_end_margin": END_MARGIN, "publish_allowance": timedelta(seconds=1)}
SAVES = {"folder": "c", "grace": "1s"}
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
async def control(temporal: Client, settings: Settings) -> AsyncIterator[Database]:
    """Starts a control worker by which nodes are left 8 s before their end; 0.3 s."""
    async with serving_control(temporal, settings.model_copy(update=SHORT)) as database:
        yield database


@pytest.fixture
async def saving(longshore: Longshore, node: ScriptedNode, pool: str) -> str:
    """Starts a job with checkpoints on the node, which runs for long; 0.2 s."""
    job_id = (await longshore.submit(a_spec(pool, checkpoint=SAVES))).job_id
    await node.started(job_id)
    return job_id


async def test_a_cordon_leaves_what_runs_alone(
    longshore: Longshore, node: ScriptedNode, saving: str, pool: str
):
    status = await longshore.cordon(node.id, "new driver")
    assert (status.state, status.clearing, status.reason) == ("DRAINING", False, "new driver")
    later = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, later, JobState.QUEUED)
    view = await _view(longshore, pool)
    assert (view.state, view.clearing) == (NodeState.DRAINING, False)
    await node.end(saving)
    assert (await longshore.wait(saving)).attempts == 1
    assert node.stops == []
    assert (await longshore.uncordon(node.id)).state == "READY"
    await node.end(later)
    await longshore.wait(later)


@pytest.mark.exhaustive
async def test_why_advises_an_uncordon_only_where_it_helps(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await longshore.cordon(node.id)
    waits = (await longshore.submit(a_spec(pool))).job_id
    large = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    for job_id in (waits, large):
        await reaches(longshore, job_id, JobState.QUEUED)
        await eventually(lambda job_id=job_id: _is_explained(longshore, job_id))
    helped = await longshore.explain(waits)
    assert helped.decision is not None
    assert [each.reason for each in helped.decision.rejections] == ["is cordoned"]
    assert "uncordon" in " ".join(helped.hints)
    not_helped = await longshore.explain(large)
    assert "no known node could ever hold it (1 node: 1 not-enough-gpus)" in not_helped.headline
    assert "uncordon" not in " ".join(not_helped.hints)
    await longshore.drain(node.id)
    drained = await longshore.explain(waits)
    assert drained.decision is not None
    assert [each.reason for each in drained.decision.rejections] == ["is draining"]
    for job_id in (waits, large):
        await longshore.cancel(job_id)


@pytest.mark.exhaustive
async def test_a_drain_moves_those_that_can_save_and_lets_the_others_finish(
    longshore: Longshore, node: ScriptedNode, temporal: Client, saving: str, pool: str
):
    cannot = (await longshore.submit(a_spec(pool))).job_id
    await node.started(cannot)
    status = await longshore.drain(node.id, "new disk")
    assert (status.state, status.clearing) == ("DRAINING", True)
    other = ScriptedNode(temporal, pool, node.token)
    async with other.serving():
        await other.register()
        await other.end(saving, 2)
        assert (await longshore.wait(saving)).attempts == 2
        assert [(stop.key.job_id, stop.reason) for stop in node.stops] == [(saving, "new disk")]
        assert (await longshore.status(cannot)).state is JobState.RUNNING
        await node.end(cannot)
        assert (await longshore.wait(cannot)).attempts == 1
        view = await _view(longshore, pool, node.id)
        assert (view.drained, view.clearing) == (True, True)
        assert sorted(node.runs()) == sorted([(saving, 1), (cannot, 1)])


async def test_a_drain_now_moves_all(
    longshore: Longshore, node: ScriptedNode, control: Database, pool: str
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await node.started(job_id)
    await longshore.drain(node.id, "fire", now=True)
    await reaches(longshore, job_id, JobState.QUEUED)
    assert await lease_ends(control, job_id) == ["moved"]
    await longshore.uncordon(node.id)
    await node.end(job_id, 2)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED


async def test_a_deadline_moves_each_in_time_to_be_gone(
    longshore: Longshore, node: ScriptedNode, control: Database, pool: str
):
    spec = a_spec(pool, stop_grace="2s")
    job_id = (await longshore.submit(spec)).job_id
    await node.started(job_id)
    began = datetime.now(UTC)
    await longshore.drain(node.id, "new disk", deadline=timedelta(seconds=4))
    await reaches(longshore, job_id, JobState.QUEUED)
    first = (await longshore.status(job_id)).attempts[0]
    assert first.moved
    assert first.ended_at is not None
    assert first.ended_at - began >= timedelta(seconds=1.9)
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


async def test_an_undone_drain_moves_nobody_any_more(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, stop_grace="1s"))).job_id
    await node.started(job_id)
    await longshore.drain(node.id, "new disk", deadline=timedelta(seconds=60))
    assert (await longshore.uncordon(node.id)).clearing is False
    later = (await longshore.submit(a_spec(pool))).job_id
    await node.end(later)  # it takes jobs
    await longshore.wait(later)
    await longshore.drain(node.id, "later", deadline=HOUR)
    assert (await longshore.status(job_id)).state is JobState.RUNNING
    assert node.stops == []
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


async def test_jobs_leave_before_the_end_of_a_node(
    longshore: Longshore, node: ScriptedNode, saving: str, control: Database, pool: str
):
    ends_at = datetime.now(UTC) + timedelta(seconds=13)
    assert (await node.ends_at(ends_at)).expires_at == ends_at
    await eventually(lambda: node.stops)
    assert datetime.now(UTC) < ends_at
    assert "its node ends at" in node.stops[0].reason
    await reaches(longshore, saving, JobState.QUEUED)
    view = await _view(longshore, pool)
    assert (view.state, view.expires_at, view.clearing) == (NodeState.DRAINING, ends_at, True)
    assert await lease_ends(control, saving) == ["moved"]
    await node.ends_at(datetime.now(UTC) + 9 * HOUR)
    again = (await node.end(saving, 2)).placement
    assert again.node_expires_at is not None
    assert again.node_expires_at > ends_at
    await longshore.wait(saving)


@pytest.mark.exhaustive
async def test_a_registration_brings_the_end(
    longshore: Longshore, temporal: Client, settings: Settings, control: Database, pool: str
):
    ends_at = datetime.now(UTC) + timedelta(seconds=13)
    token = settings.resolve_agent_token()
    node = ScriptedNode(temporal, pool, token, expires_at=ends_at)
    async with node.serving():
        assert (await node.register()).expires_at == ends_at
        await eventually(lambda: _is_draining(longshore, pool))
        assert datetime.now(UTC) >= ends_at - END_MARGIN
        assert (await node.uncordon()).expires_at == ends_at
        await eventually(lambda: _is_draining(longshore, pool))  # its time ends all the same


@pytest.mark.parametrize("by", ["cordon", "drain"])
async def test_why_advises_no_uncordon_of_a_drained_node_that_is_taken_away(
    longshore: Longshore, node: ScriptedNode, pool: str, by: str
):
    await (longshore.cordon if by == "cordon" else longshore.drain)(node.id, "new disk")
    waits = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, waits, JobState.QUEUED)
    await eventually(lambda: _is_explained(longshore, waits))
    await node.is_taken_away(None, "the market wants it back")

    async def is_said() -> bool:
        return (await _view(longshore, pool)).state_reason == "the market wants it back"

    await eventually(is_said)
    told = await longshore.explain(waits)
    assert told.hints == (f"add a node: {node.id} is on its way out",)
    await longshore.cancel(waits)
    await longshore.wait(waits)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("by", ["cordon", "drain"])
async def test_a_drained_node_whose_end_is_put_off_is_shut_for_what_it_was_drained_for(
    longshore: Longshore, node: ScriptedNode, pool: str, by: str
):
    await (longshore.cordon if by == "cordon" else longshore.drain)(node.id, "new disk")
    waits = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, waits, JobState.QUEUED)
    await eventually(lambda: _is_explained(longshore, waits))
    undo = f"let {node.id} take jobs again: `longshore uncordon {node.id}`"
    assert (await longshore.explain(waits)).hints[0] == undo
    await node.ends_at(datetime.now(UTC) + END_MARGIN)

    async def ends() -> bool:
        return (await _view(longshore, pool)).state_reason.startswith("its node ends at")

    await eventually(ends)
    assert "uncordon" not in " ".join((await longshore.explain(waits)).hints)
    await node.ends_at(datetime.now(UTC) + 9 * HOUR)

    async def is_as_before() -> bool:
        view = await _view(longshore, pool)
        return (view.state, view.state_reason) == (NodeState.DRAINING, "new disk")

    await eventually(is_as_before)
    assert (await longshore.explain(waits)).hints[0] == undo
    assert (await _view(longshore, pool)).clearing is (by == "drain")
    await longshore.uncordon(node.id)
    await node.end(waits)
    await longshore.wait(waits)


async def test_a_later_end_keeps_the_jobs(
    longshore: Longshore, node: ScriptedNode, saving: str, pool: str
):
    for seconds in (60, 7200):
        await node.ends_at(datetime.now(UTC) + timedelta(seconds=seconds))
    await node.ends_at(None)
    later = (await longshore.submit(a_spec(pool))).job_id
    await node.end(later)
    await longshore.wait(later)
    assert node.stops == []
    await node.end(saving)
    assert (await longshore.wait(saving)).attempts == 1


async def test_an_end_that_is_extended_in_the_database_alone_is_heeded(
    longshore: Longshore, node: ScriptedNode, saving: str, control: Database, pool: str
):
    ends_at = datetime.now(UTC) + timedelta(seconds=16)
    await node.ends_at(ends_at)
    async with control.transaction() as connection:
        await connection.execute(
            text("UPDATE nodes SET expires_at = :at WHERE id = :id"),
            {"at": ends_at + HOUR, "id": node.id},
        )

    async def has_looked() -> bool:
        return (await node.status()).expires_at == ends_at + HOUR

    await eventually(has_looked)
    assert not await _is_draining(longshore, pool)
    assert node.stops == []
    await node.end(saving)
    assert (await longshore.wait(saving)).attempts == 1


@pytest.mark.exhaustive
async def test_what_does_not_leave_is_killed_before_the_end(
    longshore: Longshore, node: ScriptedNode, saving: str, control: Database
):
    node.slow_to_stop = True
    await node.ends_at(datetime.now(UTC) + timedelta(seconds=12))
    await eventually(lambda: len(node.stops) >= 2)
    asked, killed = node.stops[:2]
    assert asked.reason.startswith("its node ends")
    assert (killed.signal, killed.grace) == ("SIGKILL", timedelta(0))
    assert killed.reason == "the time of its node ended"
    report = ProcessReport(exit_code=137, stopped_for=asked.reason)
    await node.end(saving, report=report)
    await reaches(longshore, saving, JobState.QUEUED)
    assert await lease_ends(control, saving) == ["moved"]
    await longshore.cancel(saving)
    await longshore.wait(saving)


@pytest.mark.exhaustive
async def test_a_notice_moves_all_at_once(
    longshore: Longshore, node: ScriptedNode, saving: str, control: Database, pool: str
):
    cannot = (await longshore.submit(a_spec(pool))).job_id
    await node.started(cannot)
    await node.is_taken_away(datetime.now(UTC) + timedelta(minutes=2), "the market wants it back")
    for job_id in (saving, cannot):
        status = await reaches(longshore, job_id, JobState.QUEUED)
        assert (status.moves, status.attempts[0].failure) == (1, None)
        assert await lease_ends(control, job_id) == ["moved"]
    view = await _view(longshore, pool)
    assert (view.state, view.state_reason) == (NodeState.DRAINING, "the market wants it back")
    for job_id in (saving, cannot):
        await longshore.cancel(job_id)
        await longshore.wait(job_id)


async def test_a_job_that_is_lost_with_its_node_while_it_leaves_runs_elsewhere(
    longshore: Longshore, node: ScriptedNode, saving: str, control: Database
):
    node.slow_to_stop = True
    await longshore.drain(node.id, "new disk")
    await eventually(lambda: node.stops)
    node.leave()
    status = await reaches(longshore, saving, JobState.RETRYING, JobState.QUEUED)
    assert status.attempts[0].failure is FailureClass.NODE
    assert await lease_ends(control, saving) == ["node-lost"]
    await longshore.cancel(saving)
    await longshore.wait(saving)


@pytest.mark.exhaustive
async def test_a_drain_outlives_a_new_registration(
    longshore: Longshore, node: ScriptedNode, saving: str, pool: str
):
    await longshore.drain(node.id, "new disk", deadline=HOUR)
    assert (await node.register(boot_id="boot-2")).drain_reason == "new disk"
    status = await reaches(longshore, saving, JobState.RETRYING, JobState.QUEUED)
    assert status.attempts[0].failure is FailureClass.NODE
    view = await _view(longshore, pool)
    assert (view.state, view.clearing, view.epoch) == (NodeState.DRAINING, True, 2)
    await longshore.uncordon(node.id)
    await node.end(saving, 2)
    await longshore.wait(saving)


async def _view(longshore: Longshore, pool: str, node_id: str | None = None) -> NodeView:
    views = await longshore.nodes(pool=pool, with_gone=True)
    return next(view for view in views if node_id in (None, view.id))


async def _is_draining(longshore: Longshore, pool: str) -> bool:
    return (await _view(longshore, pool)).state is NodeState.DRAINING


@pytest.mark.exhaustive
async def test_a_job_that_takes_long_to_leave_is_seen_before_the_next_planned_look(
    longshore: Longshore, node: ScriptedNode, control: Database, pool: str
):
    packing = PoolPacking(safety_margin=timedelta(0))
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, packing=packing))
    # Looks are planned halfway: the next one is 28 s ahead, and the job has to go 15 s before it.
    ends_at = datetime.now(UTC) + timedelta(seconds=60)
    await node.ends_at(ends_at)
    spec = a_spec(pool, expected_duration="1s", stop_grace="43s")
    job_id = (await longshore.submit(spec)).job_id
    await node.started(job_id)
    await eventually(lambda: [stop.key.job_id for stop in node.stops] == [job_id])
    assert datetime.now(UTC) < ends_at - timedelta(seconds=36)
    await reaches(longshore, job_id, JobState.QUEUED)
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("checkpoint", [None, {"folder": "c", "grace": "20m"}])
async def test_a_job_is_not_placed_where_it_would_have_to_leave_at_once(
    longshore: Longshore, node: ScriptedNode, temporal: Client, settings: Settings,
    control: Database, pool: str, checkpoint: dict[str, str] | None,
):  # fmt: skip
    packing = PoolPacking(safety_margin=timedelta(0))
    async with control.transaction() as connection:
        await set_pool(connection, PoolSpec(name=pool, packing=packing))
    await node.ends_at(datetime.now(UTC) + timedelta(minutes=10))
    spec = a_spec(pool, expected_duration="1s", stop_grace="20m", checkpoint=checkpoint)
    job_id = (await longshore.submit(spec)).job_id
    quick = (await longshore.submit(a_spec(pool, expected_duration="1s"))).job_id
    await node.end(quick)
    await longshore.wait(quick)
    reader = Longshore(temporal, settings.model_copy(update=SHORT))
    await eventually(lambda: _is_explained(reader, job_id))
    found = await reader.explain(job_id)
    assert found.last_decision is not None
    assert found.last_decision.rejected == {RejectionCode.EXPIRY: 1}
    assert found.decision is not None
    (rejection,) = found.decision.rejections
    publish = ", 1s to publish" if checkpoint else ""
    notice = f"the job would be asked to leave at once (20m grace{publish}, 8s margin)"
    assert rejection.reason.endswith(f"left; {notice}")
    await reader.close()
    await node.ends_at(datetime.now(UTC) + HOUR)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1
    assert node.stops == []


async def _is_explained(reader: Longshore, job_id: str) -> bool:
    """Return whether a cycle has said why a job waits."""
    return (await reader.explain(job_id)).last_decision is not None
