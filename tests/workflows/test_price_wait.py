"""A job that waits for the price of its pool to fall: the pool lets it in, and nobody polls."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.dag import DagSpec
from longshore.models.errors import NotFoundError
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PoolPrice, PricePoint, PriceSeries
from longshore.models.retry import FailureClass
from longshore.models.views import JobView
from tests.support.control import a_spec, is_queued, lease_ends
from tests.support.histories import activities, timers
from tests.support.scripted_http import Reply, ScriptedHTTP
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)
BELOW = "$2.10/gpu-hour"
DEAR, CHEAP = 2_600_000, 2_000_000


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
    async with ScriptedHTTP() as running:
        yield running


async def price(longshore: Longshore, pool: str, *prices: int, step: timedelta = HOUR) -> None:
    """Give the pool a series whose first price has just begun."""
    began = datetime.now(UTC)
    points = tuple(PricePoint(began + number * step, each) for number, each in enumerate(prices))
    series = PriceSeries.of(points, HOUR, "file prices.csv")
    spec = PoolSpec(name=pool, price=PoolPrice(source="file prices.csv"))
    await longshore.set_pool(spec, series)


async def seen(longshore: Longshore, job_id: str) -> JobView | None:
    """Return a job as the database has it; None before it does."""
    try:
        return await longshore.job(job_id)
    except NotFoundError:
        return None


async def waits(longshore: Longshore, job_id: str) -> None:
    """Wait until a job waits for its price, and its workflow has heard so."""

    async def there() -> bool:
        view, status = await seen(longshore, job_id), await longshore.status(job_id)
        told = status.reason.startswith("waits for a price below $2.10 a GPU-hour; now $2.60 (")
        if view is None or not view.waits_for_price:
            return False
        return view.state is status.state is JobState.QUEUED and told

    await eventually(there)


async def test_it_starts_when_its_price_comes_and_stays_when_that_rises(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client, control: Database
):
    await price(longshore, pool, DEAR)
    job_id = (await longshore.submit(a_spec(pool, start_below=BELOW))).job_id
    await waits(longshore, job_id)
    other = (await longshore.submit(a_spec(pool))).job_id
    await node.end(other)  # so a cycle has looked at the queue
    await longshore.wait(other)
    assert await lease_ends(control, job_id) == []
    await price(longshore, pool, CHEAP)
    await node.started(job_id)
    await price(longshore, pool, DEAR)
    between = (await longshore.submit(a_spec(pool))).job_id
    await node.end(between)  # so the cycle is over that may have looked at the price before
    await longshore.wait(between)
    third = (await longshore.submit(a_spec(pool, start_below=BELOW))).job_id
    await waits(longshore, third)  # so the pool has seen that it is dear again
    assert (await longshore.job(job_id)).state is JobState.RUNNING
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1
    history = job_workflow_id(job_id)
    assert await timers(temporal, history) == [], "the pool waits, and no workflow of a job"
    assert "set_hold" not in await activities(temporal, history)
    await longshore.cancel(third)


@pytest.mark.exhaustive
async def test_the_pool_looks_when_the_series_says_that_the_price_falls(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await price(longshore, pool, DEAR, DEAR, CHEAP, step=timedelta(seconds=4))
    job_id = (await longshore.submit(a_spec(pool, start_below=BELOW))).job_id
    await node.end(job_id)  # nobody pokes: without a look it were ten minutes
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    view = await longshore.job(job_id)
    assert view.started_at is not None
    assert view.started_at - view.submitted_at > timedelta(seconds=2)


@pytest.mark.exhaustive
async def test_a_url_is_read_again_by_a_workflow_that_ends(
    longshore: Longshore, node: ScriptedNode, pool: str, control: Database, server: ScriptedHTTP
):
    began = f"{datetime.now(UTC) - HOUR / 2:%Y-%m-%dT%H:%M:%SZ}"
    server.on("GET /prices", Reply(f"{began},2.60".encode()), Reply(f"{began},2.00".encode()))
    source = PoolPrice(source=f"{server.url}/prices", every=timedelta(hours=10))
    await longshore.set_pool(PoolSpec(name=pool, price=source))

    async def is_read() -> bool:
        return len(server.seen("GET /prices")) == 1

    await eventually(is_read)
    job_id = (await longshore.submit(a_spec(pool, start_below=BELOW))).job_id
    await waits(longshore, job_id)
    async with control.transaction() as connection:  # ten hours later
        await connection.execute(
            text("UPDATE price_series SET tried_at = tried_at - interval '11 hours'"
                 " WHERE pool = :pool"), {"pool": pool}
        )  # fmt: skip
    other = (await longshore.submit(a_spec(pool))).job_id  # has a cycle run
    await node.end(other)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
    assert len(server.seen("GET /prices")) == 2


async def test_its_queue_timeout_goes_on_meanwhile(
    hasty: Longshore, pool: str, temporal: Client, control: Database
):
    await price(hasty, pool, DEAR)
    job_id = (await hasty.submit(a_spec(pool, start_below=BELOW, queue_timeout="1h"))).job_id
    result = await hasty.wait(job_id)
    assert result.failure is FailureClass.QUEUE_TIMEOUT
    assert not await is_queued(control, job_id)


@pytest.mark.exhaustive
async def test_a_hold_of_its_user_and_its_price_both_have_to_be_over(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await price(longshore, pool, DEAR)
    job_id = (await longshore.submit(a_spec(pool, start_below=BELOW))).job_id
    await waits(longshore, job_id)
    await longshore.hold(job_id, "not yet")

    async def is_held() -> bool:
        view = await longshore.job(job_id)
        return view.state is JobState.HELD and not view.waits_for_price

    await eventually(is_held)
    await longshore.release(job_id)
    await waits(longshore, job_id)
    await price(longshore, pool, CHEAP)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.exhaustive
async def test_begin_comes_first_and_the_price_after(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await price(longshore, pool, DEAR)
    job_id = (await longshore.submit(a_spec(pool, start_below=BELOW, begin="2s"))).job_id
    await waits(longshore, job_id)
    await price(longshore, pool, CHEAP)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).attempts == 1


@pytest.mark.exhaustive
async def test_slots_of_an_array_and_jobs_of_a_dag_wait_each_for_themselves(
    longshore: Longshore, node: ScriptedNode, pool: str
):
    await price(longshore, pool, DEAR)
    array_id = (await longshore.submit(a_spec(pool, array="0-1%1", start_below=BELOW))).job_id

    async def array_waits() -> bool:
        view = await seen(longshore, array_id)
        if view is None or not view.waits_for_price:
            return False
        return view.reason.startswith("waits for a price below $2.10")

    await eventually(array_waits)
    assert "It waits for a price below" in (await longshore.explain(array_id)).headline
    jobs = {
        "first": {"command": "true", "pool": pool},
        "then": {"command": "true", "pool": pool, "start_below": BELOW, "after": ["first"]},
    }
    dag = DagSpec.model_validate({"name": "dag", "jobs": jobs})
    dag_id = (await longshore.submit_dag(dag)).dag_id
    await node.end(f"{dag_id}.first")
    await longshore.wait(f"{dag_id}.first")

    async def step_waits() -> bool:
        step = await longshore.step(f"{dag_id}.then")
        return step is not None and step.state is JobState.QUEUED

    await eventually(step_waits)
    await waits(longshore, f"{dag_id}.then")
    await price(longshore, pool, CHEAP)
    await node.end_batches(f"{array_id}.s1")
    assert (await longshore.wait(array_id)).state is JobState.SUCCEEDED
    await node.end(f"{dag_id}.then")
    assert (await longshore.wait(f"{dag_id}.then")).state is JobState.SUCCEEDED
