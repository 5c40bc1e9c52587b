"""A pool that lacks capacity buys it; markets that are away hold nothing up."""

import asyncio
import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata

from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.views import set_pool
from longshore.client.api import Longshore
from longshore.models.block import block_workflow_id
from longshore.models.buying_policy import BuyingPolicy, Caps
from longshore.models.explanation import Explanation
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.workers.doctor.buying import checks
from longshore.workers.doctor.findings import Finding
from tests.buying.buyer import DOLLAR, Buyer, an_offer, pod_option
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually


async def may_buy(buyer: Buyer, **policy: Any) -> None:
    spec = PoolSpec(
        name=buyer.pool,
        interval=timedelta(seconds=2),
        buying=BuyingPolicy.model_validate({"enabled": True, **policy}),
    )
    async with buyer.database.transaction() as connection:
        await set_pool(connection, spec)


async def bought(buyer: Buyer) -> list[dict[str, Any]]:
    found = await buyer.rows("SELECT * FROM purchases WHERE pool = :pool", pool=buyer.pool)
    buyer.purchases = [row["id"] for row in found]
    return found


async def test_a_job_that_nothing_can_hold_runs_on_what_is_bought_for_it(
    buyer: Buyer, longshore: Longshore
):
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    async with asyncio.timeout(150):
        result = await longshore.wait(job.job_id)
    assert result.state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    assert purchase["decision"]["serves"] == [job.job_id]
    assert any(option["chosen"] for option in purchase["decision"]["options"])
    blocks = await buyer.rows("SELECT id FROM blocks WHERE purchase_id = :id", id=purchase["id"])
    end = await buyer.let_go(blocks[0]["id"])
    assert end.cost == end.used + end.idle
    await buyer.agrees()
    assert len(await bought(buyer)) == 1


@pytest.mark.exhaustive
async def test_a_machine_that_is_billed_as_it_runs_ends_when_it_is_idle(
    buyer: Buyer, longshore: Longshore
):
    await may_buy(buyer, idle_after="10m")
    pod = await buyer.buy(pod_option(await an_offer(buyer.market)))
    job = await longshore.submit(
        a_spec(buyer.pool, command="sleep 4", cpus=0.1, ram=0.1, expected_duration="10s")
    )
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    await may_buy(buyer, idle_after="1s")
    await buyer.wake(pod.orders[0])
    assert "nothing has run" in (await buyer.ended(pod.orders[0])).reason
    block = buyer.temporal.get_workflow_handle(block_workflow_id(pod.orders[0]))
    shown = await block.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert re.fullmatch(
        r"Ended: nothing has run .*\. \$\d+\.\d\d, of which \$\d+\.\d\d idle\.",
        shown.current_details,
    )
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_bought_time_goes_on_when_it_is_idle(buyer: Buyer):
    await may_buy(buyer, idle_after="1ms")
    bought = await buyer.buy()
    look = await buyer.look(bought.orders[0])
    assert (look.idle, look.idle_at) == ("", None)
    await buyer.let_go(bought.orders[0])


async def test_a_pool_that_may_not_buy_buys_nothing(buyer: Buyer, longshore: Longshore):
    job = await longshore.submit(a_spec(buyer.pool, gpus=8))
    await reaches(longshore, job.job_id, JobState.QUEUED)
    await longshore.cancel(job.job_id)
    assert await bought(buyer) == []


async def test_a_refused_purchase_says_why_and_the_job_waits(buyer: Buyer, longshore: Longshore):
    await may_buy(buyer, caps=Caps(per_purchase=DOLLAR).model_dump())
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    handle = buyer.temporal.get_workflow_handle(f"buying-{buyer.pool}")
    decided = await eventually(lambda: _result(handle))
    assert decided["purchases"] == {}
    await longshore.cancel(job.job_id)
    await buyer.agrees_on_nothing()


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("policy", "setting", "why"),
    [
        (
            {"caps": {"per_day": "$1"}},
            "caps.per_day",
            "it is over what is left of the cap of today",
        ),
        ({"max_price": {"FAST": "$0.10"}}, "max_price.FAST", "over the price limit: "),
    ],
)
async def test_a_pool_that_a_limit_keeps_from_buying_names_the_limit(
    buyer: Buyer, longshore: Longshore, policy: dict[str, Any], setting: str, why: str
):
    await may_buy(buyer, **policy)
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    await reaches(longshore, job.job_id, JobState.QUEUED)

    async def held() -> Explanation | None:
        told = await longshore.explain(job.job_id)
        return told if "; it buys nothing now: " in told.headline else None

    told = await eventually(held)
    assert told is not None
    assert why in told.headline
    (helps,) = told.hints
    command = shlex.split(helps.partition(": `longshore ")[2].rstrip("`"))
    *to_set, value = command
    assert to_set == ["pool", "set", buyer.pool, "--buying"]
    assert re.fullmatch(rf"{setting}=\$\d+\.\d\d", value), value
    report = await longshore.report(job.job_id)
    assert report.not_bought.startswith("it buys nothing now: ")
    assert why in report.not_bought
    another = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    assert f"it bought nothing for others: {why}" in another.warnings[0], another.warnings
    await longshore.cancel(another.job_id)
    await longshore.cancel(job.job_id)
    assert await bought(buyer) == []


async def test_nothing_is_decided_while_buying_is_stopped(buyer: Buyer, longshore: Longshore):
    await may_buy(buyer)
    switch = BuyingSwitch(buyer.database)
    await switch.stop("a test")
    try:
        job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
        handle = buyer.temporal.get_workflow_handle(f"buying-{buyer.pool}")
        decided = await eventually(lambda: _result(handle))
        assert "stopped" in decided["reason"]
        await longshore.cancel(job.job_id)
    finally:
        await switch.resume()
    assert await bought(buyer) == []


async def _result(handle: Any) -> Any:
    try:
        return await handle.result()
    except Exception as error:  # not begun yet
        raise AssertionError(str(error)) from error


async def test_what_the_market_refuses_is_told_and_so_is_a_cap_for_all(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.fault("funds", -1)
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=8, expected_duration="10m"))
    await reaches(longshore, job.job_id, JobState.QUEUED)

    async def told(says: str) -> Explanation | None:
        found = await longshore.explain(job.job_id)
        return found if says in found.headline else None

    vain = await eventually(lambda: told("came to nothing: "))
    assert vain is not None
    assert "the balance of the wallet is too low" in vain.headline
    assert vain.hints == () or vain.hints == ("see what was tried: `longshore purchases --all`",)

    async def is_found() -> bool:  # not while the next purchase is under way
        says = "came to nothing: prime: POST /api/v1/pods/ was refused: the balance of the"
        return any(says in finding.says for finding in await found_of_buying(buyer))

    assert await eventually(is_found)

    switch = BuyingSwitch(buyer.database)
    await switch.set_cap("pool", buyer.pool, DOLLAR)
    try:
        capped = await eventually(lambda: told("over what is left of the cap of today"))
        assert capped is not None
        named = f"and $1.00 is left (`longshore market caps pool={buyer.pool}`)"
        assert named in capped.headline
        (helps,) = capped.hints
        raises = rf"raise the cap: `longshore market caps pool={buyer.pool} '\$[\d.]+'`"
        assert re.fullmatch(raises, helps), helps
        # One that was decided before there was a cap may be refused by it.
        decided = capped.buying
        assert decided is not None
        late = [row for row in await bought(buyer) if row["created_at"] >= decided.at]
        assert "REFUSED" not in {row["state"] for row in late}
    finally:
        await switch.set_cap("pool", buyer.pool, None)
        await longshore.cancel(job.job_id)


async def found_of_buying(buyer: Buyer) -> list[Finding]:
    """Return what `longshore doctor` finds of this pool."""
    check = checks(buyer.database, buyer.market.settings())["buying"]
    return [each for each in await check() if f"pool {buyer.pool}, " in each.says]
