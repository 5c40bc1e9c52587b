"""A new size in the capacity database: what asks for it, and that a next attempt is queued as the
leases of the one before it end."""

from typing import Any

from longshore.models.elastic import Malleable
from longshore.models.messages import EnqueueRequest, LeaseEnd, ReleaseRequest
from longshore.models.placement import PlacementKey
from longshore.models.resize import LeaveRequest, ResizeReply, ResizeRequest
from tests.support.ledger import SUBMITTED_AT, Ledger

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
