"""No minute is billed without a reason: idle machines end in time, late ones before others are
bought, and those that nobody waits for are called off."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest

from longshore.client.api import Longshore
from longshore.models.block import BlockState
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.text import format_duration
from longshore.scheduling.buying import repeat_guard, scale_down
from tests.buying.buyer import Buyer, pod_option
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually

IDLE_AFTER = timedelta(seconds=8)
WITHIN = timedelta(seconds=15)
"""As docs/purchases.md says; without being told of it, its block looks every five minutes."""


async def test_a_machine_ends_soon_after_it_was_idle_for_long_enough(
    buyer: Buyer, longshore: Longshore
):
    """Nobody wakes its block: the end of its last job does."""
    buyer.market.book()  # no windows: a machine that is billed as it runs
    await may_buy(buyer, idle_after=IDLE_AFTER)
    job = await longshore.submit(
        a_spec(buyer.pool, command="sleep 1", gpus=1, cpus=0.1, ram=0.1, expected_duration="10s")
    )
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (purchase,) = await bought(buyer)
    (block,) = await buyer.rows("SELECT id FROM blocks WHERE purchase_id = :id",
                                id=purchase["id"])  # fmt: skip
    end = await buyer.ended(block["id"])
    assert "nothing has run" in end.reason
    (times,) = await buyer.rows(
        "SELECT m.ended_at, max(p.ended_at) AS idle_since FROM machines m"
        " JOIN placements p ON p.node_id = m.name WHERE m.block_id = :id GROUP BY m.name",
        id=block["id"],
    )
    assert IDLE_AFTER <= times["ended_at"] - times["idle_since"] <= IDLE_AFTER + WITHIN
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_machine_that_never_had_a_job_ends_as_soon(buyer: Buyer):
    await may_buy(buyer, idle_after=IDLE_AFTER)
    pod = await buyer.buy(pod_option(await buyer.an_offer()))
    end = await buyer.ended(pod.orders[0])
    assert "nothing has run" in end.reason
    (times,) = await buyer.rows(
        "SELECT m.ended_at, n.registered_at FROM machines m JOIN nodes n ON n.id = m.name"
        " WHERE m.block_id = :id", id=pod.orders[0],
    )  # fmt: skip
    assert IDLE_AFTER <= times["ended_at"] - times["registered_at"] <= IDLE_AFTER + WITHIN
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_warm_machine_that_is_cordoned_ends(
    buyer: Buyer, longshore: Longshore, monkeypatch: pytest.MonkeyPatch
):
    """A cycle finds that it is closed, and its block when that is long enough: by itself it looks
    in five minutes."""
    monkeypatch.setattr(scale_down, "CLOSED_GRACE", IDLE_AFTER)
    buyer.market.book()
    await may_buy(buyer, fast_warm_gpus=1, instance_types=["1xH100"], idle_after="1s")
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=1, cpus=0.1, ram=0.1, command="true", expected_duration="1m")
    )
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    up = await buyer.rows(
        "SELECT n.id, n.block_id FROM nodes n JOIN placements p ON p.node_id = n.id"
        " WHERE p.job_id = :id", id=job.job_id,
    )  # fmt: skip
    status = await longshore.cordon(up[0]["id"], "a new disk")
    node, block = up[0]["id"], up[0]["block_id"]
    assert status.note == (
        f"{node} is billed as it runs (block {block}): it ends once nothing has run there for "
        f"{format_duration(IDLE_AFTER)}, unless it is uncordoned, or its agent starts anew, "
        f"before; `longshore block {block}` says when"
    )
    (closed,) = await buyer.rows("SELECT state_since FROM nodes WHERE id = :id", id=up[0]["id"])
    end = await buyer.ended(up[0]["block_id"])
    assert "nothing has run" in end.reason
    (machine,) = await buyer.rows("SELECT ended_at FROM machines WHERE name = :id", id=up[0]["id"])
    after = machine["ended_at"] - closed["state_since"]
    assert IDLE_AFTER <= after <= IDLE_AFTER + WITHIN


@pytest.mark.exhaustive
async def test_a_warm_machine_whose_agent_has_left_ends(
    buyer: Buyer, monkeypatch: pytest.MonkeyPatch
):
    """In order, so that nothing falls silent; it may start anew, and does not."""
    monkeypatch.setattr(scale_down, "CLOSED_GRACE", IDLE_AFTER)
    buyer.market.book()
    await may_buy(buyer, fast_warm_gpus=1, instance_types=["1xH100"], idle_after="1s")
    pod = await buyer.buy(pod_option(await buyer.an_offer()))
    (agent,) = [
        process
        for process in psutil.process_iter()
        if f"--node-id {pod.nodes[0]}" in " ".join(_command(process))
    ]
    agent.terminate()
    gone = "SELECT FROM nodes WHERE id = :id AND state = 'GONE'"
    await eventually(lambda: buyer.rows(gone, id=pod.nodes[0]))
    await buyer.wake(pod.orders[0])  # as the next cycle does: long before ten minutes are over
    end = await buyer.ended(pod.orders[0])
    assert "nothing has run" in end.reason
    (times,) = await buyer.rows(
        "SELECT n.state, n.state_reason, m.ended_at - n.state_since AS after"
        " FROM machines m JOIN nodes n ON n.id = m.name WHERE m.name = :id", id=pod.nodes[0],
    )  # fmt: skip
    assert (times["state"], times["state_reason"]) == ("GONE", "agent stopped")
    assert IDLE_AFTER <= times["after"] <= IDLE_AFTER + WITHIN


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changed", [{"fast_warm_gpus": 0}, {"fast_warm_gpus": 1, "enabled": False}]
)
async def test_a_warm_machine_ends_soon_where_the_policy_wants_it_no_more(
    buyer: Buyer, longshore: Longshore, changed: dict[str, Any]
):
    policy = {"instance_types": ["1xH100"], "idle_after": IDLE_AFTER}
    buyer.market.book()
    await may_buy(buyer, fast_warm_gpus=1, **policy)
    job = await longshore.submit(
        a_spec(buyer.pool, gpus=1, cpus=0.1, ram=0.1, command="true", expected_duration="1m")
    )
    assert (await longshore.wait(job.job_id)).state is JobState.SUCCEEDED
    (block,) = await buyer.rows(
        "SELECT n.block_id AS id, p.ended_at FROM nodes n JOIN placements p ON p.node_id = n.id"
        " WHERE p.job_id = :id", id=job.job_id,
    )  # fmt: skip

    async def is_idle_for_long_enough() -> bool:
        return datetime.now(UTC) >= block["ended_at"] + IDLE_AFTER

    await eventually(is_idle_for_long_enough)
    buying = BuyingPolicy.model_validate({"enabled": True, **policy, **changed})
    began = datetime.now(UTC)
    await longshore.set_pool(PoolSpec(name=buyer.pool, buying=buying))
    end = await buyer.ended(block["id"])
    assert "nothing has run" in end.reason
    assert datetime.now(UTC) - began <= WITHIN


async def test_a_machine_on_its_way_is_called_off_when_its_job_has_gone(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.fault("machine_silent", provider="prime")
    await may_buy(buyer)
    job = await longshore.submit(a_spec(buyer.pool, gpus=1, expected_duration="10m"))

    async def is_starting() -> list[dict[str, Any]]:
        await bought(buyer)
        return await buyer.rows(
            "SELECT m.block_id FROM machines m JOIN purchases p ON p.id = m.purchase_id"
            " WHERE p.pool = :pool AND m.state = 'STARTING'", pool=buyer.pool,
        )  # fmt: skip

    starting: list[dict[str, Any]] = await eventually(is_starting)
    (machine,) = starting
    await longshore.cancel(job.job_id)
    end = await buyer.ended(machine["block_id"])
    assert "nothing that it was bought for wants it any more" in end.reason
    (row,) = await buyer.rows("SELECT state, decision FROM blocks WHERE id = :id",
                              id=machine["block_id"])  # fmt: skip
    assert (row["state"], row["decision"]["kind"]) == (BlockState.ENDED, "let-go")
    await buyer.agrees()


@pytest.mark.exhaustive
async def test_a_machine_on_its_way_is_kept_for_a_job_that_would_start_there(
    buyer: Buyer, longshore: Longshore
):
    buyer.market.book()
    buyer.market.knobs(pod_start_seconds=20)  # what is decided meanwhile comes in time
    try:
        # Else another may be bought for the second before the first is cancelled.
        await may_buy(buyer, cooldown="1h")
        first = await longshore.submit(a_spec(buyer.pool, gpus=1, expected_duration="10m"))
        await eventually(lambda: bought(buyer))
        second = await longshore.submit(a_spec(buyer.pool, gpus=1, expected_duration="10m"))
        await reaches(longshore, second.job_id, JobState.QUEUED)
        await longshore.cancel(first.job_id)
        assert (await longshore.wait(second.job_id)).state is JobState.SUCCEEDED
    finally:
        buyer.market.knobs(pod_start_seconds=1)
    blocks = await buyer.rows("SELECT reason FROM blocks WHERE pool = :pool", pool=buyer.pool)
    assert len(blocks) == 1
    assert "have gone" not in blocks[0]["reason"]


@pytest.mark.exhaustive
async def test_a_late_machine_ends_before_another_is_bought(
    buyer: Buyer, longshore: Longshore, monkeypatch: pytest.MonkeyPatch
):
    """At no time are two of them billed for one job."""
    monkeypatch.setattr(repeat_guard, "FIRST_PAUSE", timedelta(seconds=1))
    buyer.market.book()
    buyer.market.fault("machine_silent", times=1, provider="prime")
    await may_buy(buyer, startup_limit="20s", usual_startup="1s")
    await longshore.submit(a_spec(buyer.pool, gpus=1, expected_duration="10m"))

    async def two() -> list[dict[str, Any]]:
        found = await buyer.rows(
            "SELECT m.* FROM machines m JOIN purchases p ON p.id = m.purchase_id"
            " WHERE p.pool = :pool ORDER BY m.created_at", pool=buyer.pool,
        )  # fmt: skip
        return found if len(found) > 1 else []

    late: list[dict[str, Any]] = await eventually(two, 600)
    assert late[0]["ended_at"] is not None
    assert late[0]["ended_at"] <= late[1]["created_at"]
