"""A cluster is bought whole: a node on each of its machines, one bill, one end."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.providers import registry
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.market import Offer
from longshore.models.purchase import PurchaseState
from tests.buying.buyer import Buyer, pod_option
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec
from tests.support.waiting import eventually

WHERE_IT_RAN = 'echo "rank $RANK of $WORLD_SIZE on $LONGSHORE_NODE_ID"'


async def a_cluster(buyer: Buyer) -> Offer:
    """Return the cheapest cluster of two machines."""
    async with aclosing(registry.connect(buyer.market.settings(), "prime")) as provider:
        return next(o for o in await provider.offers() if o.nodes == 2 and not o.unusable)


async def buy_cluster(buyer: Buyer, offer: Offer, **changes: Any):
    option = pod_option(offer, for_gang=True, fast_fabric=True)
    return await buyer.buy(option, nodes=offer.nodes, **changes)


async def machines_of(buyer: Buyer, purchase_id: str) -> list[dict[str, Any]]:
    return await buyer.rows(
        "SELECT m.name, m.machine_id, m.state, m.reason, n.state AS node,"
        " n.labels ->> 'fabric.domain' AS domain,"
        " (SELECT count(*) FROM gpus g WHERE g.node_id = n.id) AS gpus"
        " FROM machines m LEFT JOIN nodes n ON n.id = m.name"
        " WHERE m.purchase_id = :id ORDER BY m.name",
        id=purchase_id,
    )


@pytest.mark.exhaustive
async def test_a_gang_runs_on_a_cluster_with_each_rank_on_its_own_machine(
    buyer: Buyer, longshore: Longshore
):
    await may_buy(buyer)
    offer = await a_cluster(buyer)
    status = await buy_cluster(buyer, offer)
    (key,) = status.orders
    assert status.state is PurchaseState.READY
    assert set(status.nodes) == {f"{key}.m1", f"{key}.m2"}
    found = await machines_of(buyer, status.purchase_id)
    assert [row["gpus"] for row in found] == [8, 8]
    assert {row["domain"] for row in found} == {key}
    assert len({row["machine_id"] for row in found}) == 1

    job = await longshore.submit(
        a_spec(
            buyer.pool, gpus=16, gang={"group_gpus": 16}, command=WHERE_IT_RAN,
            expected_duration="1m",
        )
    )  # fmt: skip
    async with asyncio.timeout(240):
        assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    said: list[str] = []
    for rank in (0, 1):
        pieces = [piece async for piece in longshore.logs(job.job_id, rank=rank)]
        said += b"".join(pieces).decode().splitlines()
    assert {line.partition(" on ")[0] for line in said} == {"rank 0 of 2", "rank 1 of 2"}
    assert {line.partition(" on ")[2] for line in said} == set(status.nodes)

    end = await buyer.let_go(key)
    assert end.cost == end.used + end.idle
    await buyer.agrees()
    (pod,) = [pod for pod in buyer.market.state()["pods"] if pod["name"] == key.replace(".", "-")]
    assert (pod["status"], len(pod["machines"])) == ("TERMINATED", 2)
    assert end.cost == pod["billed"]
    assert {row["state"] for row in await machines_of(buyer, status.purchase_id)} == {"ENDED"}


@pytest.mark.exhaustive  # 40 s; test_billed.py has such a machine
async def test_a_cluster_one_machine_of_which_never_answers_is_let_go_whole(buyer: Buyer):
    offer = await a_cluster(buyer)
    buyer.market.fault("machine_silent", provider="prime")
    # The other machine's agent is to come up in that time.
    status = await buy_cluster(buyer, offer, ready_within=timedelta(seconds=40))
    assert status.state is PurchaseState.ENDED
    assert status.nodes == ()
    found = await machines_of(buyer, status.purchase_id)
    assert {row["state"] for row in found} == {"ENDED"}
    silent = next(row["name"] for row in found if row["node"] is None)
    reasons = {row["name"]: row["reason"] for row in found}
    assert reasons.pop(silent) == "no agent registered in time"
    assert list(reasons.values()) == [
        f"its cluster ends as one: {silent}: no agent registered in time"
    ]
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_pool_buys_a_cluster_for_a_gang_where_the_exchange_has_nothing(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.book()
    await a_cluster(buyer)
    await may_buy(buyer)
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=16, gang={"group_gpus": 16}, expected_duration="10m")
    )
    async with asyncio.timeout(150):
        assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    (option,) = purchase["request"]["options"]
    assert (option["provider"], option["offer"]["nodes"]) == ("prime", 2)
    assert (purchase["request"]["nodes"], option["gpus_per_node"]) == (2, 8)
    (block,) = await buyer.rows(
        "SELECT id, nodes, gpus_per_node FROM blocks WHERE purchase_id = :id", id=purchase["id"]
    )
    assert (block["nodes"], block["gpus_per_node"]) == (2, 8)
    await buyer.let_go(block["id"])
    await buyer.agrees()


async def test_16_gpus_without_a_gang_are_not_bought_and_it_is_said_why(
    buyer: Buyer, longshore: Longshore
):
    await a_cluster(buyer)
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=16, expected_duration="10m"))

    async def decided() -> bool:
        (row,) = await buyer.rows(
            "SELECT buying_decision ->> 'reason' AS reason FROM pools WHERE name = :pool",
            pool=buyer.pool,
        )
        return "no machine of 16 GPUs is for sale" in (row["reason"] or "")

    await eventually(decided)
    await longshore.cancel(job.job_id)
    assert await bought(buyer) == []
    await buyer.agrees_on_nothing()
