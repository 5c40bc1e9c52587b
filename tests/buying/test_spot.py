"""A machine that its market takes away with a notice: its jobs leave before it goes."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.activities.providers import registry
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.market import InstanceType, Offer
from tests.buying.buyer import Buyer, pod_option
from tests.buying.test_let_go import a_job, is_ready
from tests.support.control import lease_ends, reaches
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

NOTICE = 25.0
"""Market seconds, which are seconds here."""


@pytest.fixture
def announces(market: RunningMarket) -> Any:
    market.knobs(spot_notice_seconds=NOTICE)
    yield
    market.knobs(spot_notice_seconds=0)


async def a_spot_offer(market: RunningMarket) -> Offer:
    async with aclosing(registry.connect(market.settings(), "prime")) as provider:
        offers = await provider.offers(InstanceType.parse("1xH100"))
    return next(o for o in offers if o.spot and not (o.prepaid or o.unusable))


@pytest.mark.usefixtures("announces")
async def test_jobs_leave_a_machine_that_is_announced_to_go(buyer: Buyer, longshore: Longshore):
    bought = await buyer.buy(pod_option(await a_spot_offer(buyer.market)))
    (block,), (node,) = bought.orders, bought.nodes
    look = await buyer.look(block)
    assert look.look_at is not None
    assert look.look_at - datetime.now(UTC) <= timedelta(seconds=20)
    job = await longshore.submit(a_job(buyer, "sleep 1; exit 0"))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: is_ready(longshore, job.job_id))
    buyer.market.fault("spot_lost")
    await buyer.temporal.get_workflow_handle(f"block-{block}").signal("wake")
    waiting = await reaches(longshore, job.job_id, JobState.QUEUED)
    (attempt,) = waiting.attempts
    assert (attempt.moved, attempt.failure, attempt.exit_code) == (True, None, 0)
    assert "is being taken away: prime says DELETING" in attempt.message
    assert await lease_ends(buyer.database, job.job_id) == ["moved"]
    assert not (await buyer.look(block)).over, "its notice has not passed"
    buyer.market.advance(NOTICE)
    await buyer.wake(block)
    end = await buyer.ended(block)
    assert end.reason == "its machines have ended"
    (machine,) = await buyer.rows("SELECT ended_at FROM machines WHERE name = :id", id=node)
    assert attempt.ended_at is not None
    assert attempt.ended_at < machine["ended_at"]
    await longshore.cancel(job.job_id)
    await longshore.wait(job.job_id)
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_what_is_not_spot_is_looked_at_as_usual(buyer: Buyer):
    bought = await buyer.buy(pod_option(await buyer.an_offer()))
    assert (await buyer.look(bought.orders[0])).look_at is None
    await buyer.let_go(bought.orders[0])
    await buyer.agrees()
