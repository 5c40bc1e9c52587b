"""A new size in the capacity database: what asks for it, and that a next attempt is queued as the
leases of the one before it end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from longshore.activities.checkpoints.rows import CheckpointActivities
from longshore.activities.checkpoints.store import CheckpointStore
from longshore.models.checkpoint import CheckpointsRequest
from longshore.models.elastic import Malleable
from longshore.models.messages import EnqueueRequest, LeaseEnd, ReleaseRequest
from longshore.models.placement import PlacementKey
from longshore.models.protocol import KNOWS_JOINED
from longshore.models.resize import JoinRequest, LeaveRequest, ResizeReply, ResizeRequest
from tests.support.checkpoints import publish, write_tree
from tests.support.ledger import SUBMITTED_AT, WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

SIZES = Malleable(min=1, max=2)
ASKED = "SELECT request->'malleable'->'desired' AS desired, request->'gpus' AS gpus FROM queue"
SIZE = "SELECT cardinality(gpu_indices) AS gpus FROM placements WHERE attempt = :attempt"


async def resize(ledger: Ledger, gpus: int, *, delivery: int = 1) -> ResizeReply:
    sizes = SIZES.model_copy(update={"desired": gpus})
    request = ResizeRequest(
        key=PlacementKey(job_id="e", attempt=1), spec=ledger.spec(malleable=sizes, cpus=2),
        submitted_at=SUBMITTED_AT,
    )  # fmt: skip
    return await ledger.run(ledger.resizes.resize, request, attempt=delivery)


async def test_the_queue_and_the_record_have_the_new_size_whoever_comes_twice(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("e", malleable=SIZES, cpus=2)
    for delivery in (1, 2):
        reply = await resize(ledger, 1, delivery=delivery)
        assert (reply.desired, reply.gpus, reply.restarts) == (1, None, None)
        assert await ledger.rows(ASKED) == [{"desired": 1, "gpus": 1}]
    stored = "SELECT spec->'malleable'->'desired' AS desired FROM jobs"
    assert await ledger.value(stored) == 1
    async with ledger.listening("e"):
        await ledger.cycle("first")
    assert await ledger.value(SIZE, attempt=1) == 1
    assert await ledger.drift() == []


async def test_one_that_runs_is_told_what_a_stop_would_bring(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("e", malleable=SIZES, cpus=2)
    async with ledger.listening("e"):
        await ledger.cycle("first")
    for delivery in (1, 2):
        reply = await resize(ledger, 1, delivery=delivery)
        assert (reply.gpus, reply.restarts) == (2, 1)
    assert (await resize(ledger, 2)).restarts is None


async def test_one_that_has_ended_stays_as_it_was(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("e", malleable=SIZES, cpus=2)
    await ledger.finish("e")
    await resize(ledger, 1)
    assert await ledger.value("SELECT spec->'malleable'->>'desired' FROM jobs") is None


async def test_a_job_that_is_resized_loses_its_gpus_to_nobody_behind_it(ledger: Ledger):
    await ledger.register(gpus=2)
    await ledger.enqueue("e", malleable=SIZES, cpus=2)
    async with ledger.listening("e"):
        await ledger.cycle("first")
    await ledger.enqueue("later", gpus=2, cpus=1)
    key = PlacementKey(job_id="e", attempt=1)
    then = EnqueueRequest(
        job_id="e", attempt=2, submitted_at=SUBMITTED_AT,
        spec=ledger.spec(malleable=SIZES.model_copy(update={"desired": 1}), cpus=2),
    )  # fmt: skip
    request = ReleaseRequest(key=key, reason=LeaseEnd.RESIZED, message="resized", then=then)
    for delivery in (1, 2):
        assert await ledger.run(ledger.queue.release, request, attempt=delivery) is True
        assert await ledger.value("SELECT count(*) FROM queue WHERE job_id = 'e'") == 1
    async with ledger.listening("e"):
        await ledger.cycle("second")
    assert await ledger.value(SIZE, attempt=2) == 1
    assert await ledger.run(ledger.queue.release, request, attempt=3) is True
    assert await ledger.value("SELECT count(*) FROM queue WHERE job_id = 'e'") == 0
    assert await ledger.drift() == []


async def test_ranks_leave_once_whoever_says_it_twice_and_rank_0_never(ledger: Ledger):
    sizes = Malleable(min=1, max=4, in_place=True)
    gang: dict[str, Any] = {
        "gpus": 4, "malleable": sizes, "gang": {"unlabelled_nodes": True},
        "checkpoint": {"folder": "saved", "save_file": True},
    }  # fmt: skip
    for node in ("a", "b"):
        await ledger.register(node, gpus=2)
    await ledger.enqueue("e", **gang)
    async with ledger.listening("e"):
        await ledger.cycle("first")
    await ledger.enqueue("behind", gpus=2)
    request = LeaveRequest(
        key=PlacementKey(job_id="e", attempt=1), pool=ledger.pool, ranks=(0, 1), message="why"
    )
    for delivery in (1, 2):
        await ledger.run(ledger.resizes.leave_ranks, request, attempt=delivery)
        assert await ledger.rows("SELECT rank, end_reason AS end FROM placements ORDER BY 1") == [
            {"rank": 0, "end": None}, {"rank": 1, "end": "resized"},
        ]  # fmt: skip
    ends = "SELECT count(*) AS n, end_reason AS end FROM leases GROUP BY 2 ORDER BY 2"
    assert await ledger.rows(ends) == [{"n": 2, "end": "resized"}, {"n": 2, "end": None}]
    assert await ledger.drift() == []
    async with ledger.listening("behind"):
        await ledger.cycle("second")
    assert await ledger.value("SELECT count(*) FROM placements WHERE job_id = 'behind'") == 1


GANG: dict[str, Any] = {
    "gpus": 2, "gang": {"unlabelled_nodes": True},
    "malleable": Malleable(min=2, max=6, step=2, desired=2, in_place=True),
    "checkpoint": {"folder": "saved", "save_file": True},
}  # fmt: skip
RANKS = """
    SELECT rank, cardinality(gpu_indices) AS gpus, joined, ended_at IS NOT NULL AS over
      FROM placements WHERE job_id = 'e' ORDER BY rank
"""


def joining(ledger: Ledger, gpus: int, first_rank: int, *, by_user: bool = True) -> JoinRequest:
    sizes = GANG["malleable"].model_copy(update={"desired": gpus})
    return JoinRequest(
        key=PlacementKey(job_id="e", attempt=1), spec=ledger.spec(**{**GANG, "malleable": sizes}),
        submitted_at=SUBMITTED_AT, gpus=gpus, first_rank=first_rank, by_user=by_user,
        message="resized by a test",
    )  # fmt: skip


async def wants(ledger: Ledger, gpus: int) -> None:
    """Have it on record that so many GPUs were asked for, as `resize` does."""
    await ledger.rows(
        "UPDATE jobs SET spec ="
        " jsonb_set(spec, '{malleable,desired}', to_jsonb(CAST(:gpus AS int)))",
        gpus=gpus,
    )


async def gang_on_one_of(ledger: Ledger, *nodes: str) -> None:
    for node in nodes:
        await ledger.register(node, gpus=2)
    await ledger.enqueue("e", **GANG)
    async with ledger.listening("e"):
        await ledger.cycle("first")
    await wants(ledger, 6)


@pytest.mark.parametrize("step", [None, 7])
async def test_ranks_are_said_to_join_only_where_the_saves_name_their_step(
    ledger: Ledger, tmp_path: Path, step: int | None
):
    await gang_on_one_of(ledger, "a", "b", "c")
    store = CheckpointStore((tmp_path / "store").as_uri())
    folder = write_tree(tmp_path / "saves", {"model.bin": b"x"})
    publish(store, folder, 1, 1, job_id="e", step=step)
    observing = CheckpointActivities(ledger.database, store)
    await ledger.run(observing.observe_checkpoints, CheckpointsRequest(pool=ledger.pool))
    asked = joining(ledger, 6, 1)
    request = ResizeRequest(key=asked.key, spec=asked.spec, submitted_at=SUBMITTED_AT)
    reply = await ledger.run(ledger.resizes.resize, request)
    assert (reply.in_place, reply.restarts) == ((None, 6) if step is None else (6, None))


async def test_ranks_join_once_whoever_asks_twice_and_their_leases_begin_then(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b", "c")
    request = joining(ledger, 6, 1)
    for delivery in (1, 2):
        reply = await ledger.run(ledger.joins.join_ranks, request, attempt=delivery)
        assert reply.reason == ""
        assert [(rank.rank, rank.joined) for rank in reply.ranks] == [
            (0, False), (1, True), (2, True),
        ]  # fmt: skip
        assert len({rank.node_id for rank in reply.ranks}) == 3
    assert [row["joined"] for row in await ledger.rows(RANKS)] == [False, True, True]
    begins = """
        SELECT bool_and(l.started_at >= p.placed_at) AS later, count(*) AS n
          FROM leases l JOIN placements p USING (job_id, attempt, rank) WHERE p.joined
    """
    assert await ledger.rows(begins) == [{"later": True, "n": 4}]
    ends = """
        SELECT max(placed_at + make_interval(secs => expected_seconds))
             - min(placed_at + make_interval(secs => expected_seconds)) < interval '2 s'
          FROM placements WHERE job_id = 'e'
    """
    assert await ledger.value(ends) is True  # they are expected to end together
    assert await ledger.drift() == []


async def test_no_more_join_than_its_user_wants_by_then(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b", "c")
    await wants(ledger, 4)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 6, 1))
    assert (reply.ranks, reply.reason) == ((), "its user has asked for 4 GPUs meanwhile")


async def test_a_rank_joins_on_a_node_that_has_left_under_another_number(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b")
    await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1))
    leave = LeaveRequest(
        key=PlacementKey(job_id="e", attempt=1), pool=ledger.pool, ranks=(1,), message="why"
    )
    await ledger.run(ledger.resizes.leave_ranks, leave)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 2))
    assert [rank.rank for rank in reply.ranks] == [0, 2]
    assert [(row["rank"], row["over"]) for row in await ledger.rows(RANKS)] == [
        (0, False), (1, True), (2, False),
    ]  # fmt: skip
    assert await ledger.drift() == []


async def test_what_is_joining_as_the_attempt_ends_ends_with_it(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b")
    release = ReleaseRequest(
        key=PlacementKey(job_id="e", attempt=1), reason=LeaseEnd.HELD, message="held"
    )

    async def waiting(sessions: int) -> bool:
        return await ledger.value(WAITING_FOR_LOCKS) == sessions

    async with ledger.database.transaction() as connection:
        await connection.execute(text("SELECT FROM nodes ORDER BY id FOR UPDATE"))
        joins = asyncio.create_task(ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1)))
        await eventually(lambda: waiting(1))  # it has read that rank 0 is there
        releases = asyncio.create_task(ledger.run(ledger.queue.release, release))
        await eventually(lambda: waiting(2))
    await joins
    await releases
    assert [row["over"] for row in await ledger.rows(RANKS)] == [True, True]
    assert await ledger.drift() == []


async def test_nothing_joins_where_the_agent_would_not_know_it_by_its_number(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b")
    await ledger.rows("UPDATE nodes SET agent_protocol = :old", old=KNOWS_JOINED - 1)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1))
    assert reply.ranks == ()
    assert "of an older version" in reply.reason
    assert len(await ledger.rows(RANKS)) == 1


async def test_nothing_joins_without_room_for_all_or_an_attempt_that_is_over(ledger: Ledger):
    await gang_on_one_of(ledger, "a", "b")
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 6, 1))
    assert reply.ranks == ()
    assert "needs 4 GPUs, the domains together have 2" in reply.reason
    # The next cycle gives what is free to a job that is before it in the queue.
    await ledger.enqueue("before", gpus=2, priority=9)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1))
    assert reply.ranks == ()
    # By itself it takes nothing that a job behind it could use either.
    await ledger.finish("before")
    await ledger.enqueue("behind", gpus=2, priority=1)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1, by_user=False))
    assert reply.ranks == ()
    await ledger.finish("behind")
    release = ReleaseRequest(
        key=PlacementKey(job_id="e", attempt=1), reason=LeaseEnd.HELD, message="held"
    )
    await ledger.run(ledger.queue.release, release)
    reply = await ledger.run(ledger.joins.join_ranks, joining(ledger, 4, 1))
    assert (reply.ranks, reply.reason) == ((), "it holds no GPUs any more")
    assert len(await ledger.rows(RANKS)) == 1
    assert await ledger.drift() == []
