"""A job has the same terms while it waits and while it runs: no two stop each other in turn."""

from typing import Any

import pytest

from longshore.activities.database import clock
from longshore.activities.preemption_inputs import PreemptionInputs, read_inputs
from longshore.activities.snapshot import load_nodes, load_pool, load_queue
from longshore.activities.stops import read_stops
from longshore.activities.views import set_pool
from longshore.client.preempt_plan import with_one_more
from longshore.models.data import HeldData, HeldReport
from longshore.models.environment import JobEnvironment
from longshore.models.job_request import JobRequest
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.node_messages import Holdings
from longshore.models.placement import PlacementKey
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.scheduling.score import Scores
from tests.support.ledger import SUBMITTED_AT, Ledger

SAVES: dict[str, Any] = {"gpus": 2, "checkpoint": {"folder": "saved", "save_file": True}}
ENVIRONMENT = JobEnvironment(requirements=("numpy",), digest="a" * 32)
IMAGE, SOURCE = "trainer:1", "s3://sets/set/"
ASKS: dict[str, tuple[dict[str, Any], float]] = {
    "none": ({}, 0.5),
    "named": ({"data": {"set": 100}}, 1.0),
    "fetched": ({"data": {"set": {"from": SOURCE, "size": "10GB"}}}, 0.5),  # half of it is there
    "image": ({"image": IMAGE}, 1.0),
    "environment": ({"environment": ENVIRONMENT, "data": {"set": 100}}, 1.0),
}
HELD = (
    HeldData(name=f"image {IMAGE}", bytes=9, total=9),
    HeldData(name=f"environment {ENVIRONMENT.digest}", bytes=9, total=9),
    HeldData(name="set", tenant="default", source=SOURCE, bytes=50, total=100),
)
STOPS = [each for each in ScoreProfile if each.stops]


@pytest.mark.parametrize(("asks", "term"), ASKS.values(), ids=ASKS)
async def test_a_job_has_the_same_terms_while_it_runs_and_when_it_waits_again(
    ledger: Ledger, asks: dict[str, Any], term: float
):
    await _begin(ledger, ScoreProfile.ML_TRAINING)
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a", **SAVES, **asks)
        assert (await ledger.cycle("first")).placed == 1
        await ledger.enqueue("b", **SAVES, data={"others": 5})
        await _older(ledger, "3 hours")
        await _saved(ledger)
        runs = await _data_terms(ledger)
        assert runs["a"] == term
        await _stopped(ledger, "a", 1, asks)
        assert await _data_terms(ledger) == runs


async def test_one_that_is_tried_beside_a_queue_has_the_terms_of_one_in_it(ledger: Ledger):
    """Of `preempt --dry-run` and `place` for a file: nodes count with what they hold of its
    data."""
    await _begin(ledger, ScoreProfile.ML_TRAINING)
    async with ledger.listening("a"):
        await ledger.enqueue("a", **SAVES, data={"set": 100})
        await ledger.cycle("first")
    job = JobRequest.of("new", ledger.spec(image=IMAGE), SUBMITTED_AT, 1)
    async with ledger.database.transaction() as connection:
        inputs = await read_inputs(connection, ledger.pool)
        inputs = await with_one_more(connection, inputs, job)
    assert _terms_in(inputs) == {"a": 1.0, "new": 1.0}


@pytest.mark.parametrize("profile", STOPS)
async def test_no_two_jobs_stop_each_other_in_turn(ledger: Ledger, profile: ScoreProfile):
    """And whoever another is stopped for starts then."""
    await _begin(ledger, profile)
    asks: dict[str, dict[str, Any]] = {name: {"data": {f"set-{name}": 100}} for name in ("a", "b")}
    stops: list[str] = []
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a", **SAVES, **asks["a"])
        await ledger.cycle("first")
        await _older(ledger, "3 hours")
        await ledger.enqueue("b", **SAVES, **asks["b"])
        for step in range(8):
            await _saved(ledger)
            await ledger.cycle(f"stop-{step}")
            found = await ledger.rows(
                "SELECT d.job_id, d.attempt, d.for_job FROM preemptions d"
                " JOIN placements p USING (job_id, attempt) WHERE p.ended_at IS NULL"
            )
            for row in found:
                stops.append(row["job_id"])
                await _saved(ledger)
                await _stopped(ledger, row["job_id"], row["attempt"], asks[row["job_id"]])
                await ledger.cycle(f"start-{step}")
                live = "SELECT job_id FROM placements WHERE ended_at IS NULL"
                assert await ledger.value(live) == row["for_job"]
            await _older(ledger, "30 minutes")
    assert stops[:1] == ["a"]
    assert len(stops) <= 2


async def test_why_asks_for_the_same(ledger: Ledger):
    """Whether any job that runs may be stopped for one: by the terms of both."""
    await _begin(ledger, ScoreProfile.ML_TRAINING)
    async with ledger.listening("a", "b"):
        await ledger.enqueue("a", **SAVES, data={"set": 100})
        await ledger.cycle("first")
        await _saved(ledger)
        # It has twice the rank of the other, and less than that by the data of both.
        await ledger.enqueue("b", **SAVES)
        await _older(ledger, "1 hour")
        await _saved(ledger)
        for attained, may in (("30 minutes", False), ("0", True)):
            await ledger.rows("UPDATE queue SET attained = CAST(:a AS interval)", a=attained)
            async with ledger.database.transaction() as connection:
                spec = await load_pool(connection, ledger.pool)
                (entry,) = await load_queue(connection, ledger.pool)
                nodes = await load_nodes(connection, ledger.pool)
                stops = await read_stops(connection, spec, entry.request, nodes)
                assert stops({"node-a"}, await clock(connection)) is may


async def _begin(ledger: Ledger, profile: ScoreProfile) -> None:
    packing = PoolPacking(score=ScorePolicy(profile=profile))
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, packing=packing))
    await ledger.register(gpus=2, container_runtime="docker")
    report = Holdings(node_id="node-a", epoch=1, report=HeldReport(held=HELD))
    await ledger.run(ledger.holdings.store_holdings, report)


async def _data_terms(ledger: Ledger) -> dict[str, float]:
    async with ledger.database.transaction() as connection:
        return _terms_in(await read_inputs(connection, ledger.pool))


def _terms_in(inputs: PreemptionInputs) -> dict[str, float]:
    scores = Scores(inputs.spec.packing, inputs.nodes)
    jobs = [*inputs.queue, *(work.request for work in inputs.running)]
    return {job.id: scores.differing(job, can_stop=True)["data"] for job in jobs}


async def _older(ledger: Ledger, time: str) -> None:
    """Have all that has been be longer ago."""
    await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    for table, *columns in (
        ("placements", "placed_at", "ended_at"), ("queue", "queued_at"),
        ("job_checkpoints", "saved_at"), ("preemptions", "decided_at", "frees_by"),
    ):  # fmt: skip
        changes = ", ".join(f"{name} = {name} - CAST(:time AS interval)" for name in columns)
        await ledger.rows(f"UPDATE {table} SET {changes}", time=time)
    await ledger.rows("ALTER TABLE placements ENABLE TRIGGER USER")


async def _saved(ledger: Ledger) -> None:
    """Have all that runs have saved just now."""
    await ledger.rows(
        "INSERT INTO job_checkpoints (job_id, attempt, number, ranks, bytes, write_seconds,"
        " saved_at, simulated) SELECT job_id, attempt, 1 + (SELECT count(*) FROM job_checkpoints),"
        " 1, 1000, 1, clock_timestamp(), true FROM placements WHERE ended_at IS NULL"
    )


async def _stopped(ledger: Ledger, job: str, attempt: int, asks: dict[str, Any]) -> None:
    key = PlacementKey(job_id=job, attempt=attempt)
    await ledger.run(ledger.queue.release, ReleaseRequest(key=key, reason=LeaseEnd.PREEMPTED))
    await ledger.enqueue(job, attempt=attempt + 1, **SAVES, **asks)
