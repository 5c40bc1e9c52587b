"""What a machine costs beyond its time counts against the caps, and no job pays for it."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.buying.ledger import book_cost
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.console.purchases_view import list_html
from longshore.models.block import BlockRef
from longshore.models.errors import SpecError
from longshore.models.purchase import PurchaseState
from longshore.models.settings import Settings
from tests.buying.buyer import DOLLAR
from tests.buying.test_refusals import COST, Till, filled, lease, till

__all__ = ["till"]


async def _run(till: Till, statement: str, **values: Any) -> None:
    async with till.database.transaction() as connection:
        await connection.execute(text(statement), values)


async def booked(till: Till, key: str, total: int) -> None:
    async with till.database.transaction() as connection:
        order = await order_rows.lock(connection, key)
        await book_cost(connection, order, total, simulated=True)
        await rows.recount(connection, order.purchase_id)


async def _committed(till: Till) -> int:
    return await till.value("SELECT committed FROM purchase_sums WHERE scope = 'day'")


async def test_what_is_spent_beyond_a_commitment_counts_and_is_never_refused(till: Till):
    """Also beside an order that has spent nothing yet."""
    key = await filled(till, [])
    assert await till.intend("p-0", 2) == ""
    await till.settle("p-0")
    assert await _committed(till) == 2 * COST
    await till.switch.set_cap("day", "*", 3 * COST)
    await booked(till, key, 10 * COST)
    assert await _committed(till) == 11 * COST
    assert (await till.open("p-9")).state is PurchaseState.REFUSED
    await booked(till, key, 12 * COST)
    assert await _committed(till) == 13 * COST
    async with till.database.transaction() as connection:
        await order_rows.close(connection, key)
        await rows.recount(connection, "p-0")
    assert await _committed(till) == 13 * COST


async def test_an_order_beside_one_that_cost_more_is_held_against_the_cap(till: Till):
    key = await filled(till, [])
    await till.settle("p-0")
    await booked(till, key, 2 * COST)
    await till.switch.set_cap("day", "*", 2 * COST)
    assert "is the most" in await till.intend("p-0", 2)


@pytest.mark.parametrize(("ran", "used"), [(2, 2 * DOLLAR), (1, 4 * DOLLAR)])
async def test_the_time_after_the_end_of_a_machine_is_idle(
    till: Till, settings: Settings, ran: int, used: int
):
    """A job held all GPUs in the one hour that was bought; the machine ran for `ran` hours, and
    its market told of its end a day later."""
    key = await filled(till, [])
    await _run(till, "UPDATE orders SET is_machine = true")
    await _run(
        till,
        "UPDATE blocks SET starts_at = now() - interval '26 hours', gpus_per_node = 8,"
        " ends_at = now() - interval '25 hours'",
    )
    async with till.database.transaction() as connection:
        for gpu in range(8):
            await lease(connection, key, gpu, 0, 60)
    await _run(
        till,
        "INSERT INTO machines (name, purchase_id, block_id, provider, state, ended_at, part)"
        " SELECT id, purchase_id, id, provider, 'ENDED', starts_at + :ran, 0 FROM blocks",
        ran=timedelta(hours=ran),
    )
    await booked(till, key, 4 * DOLLAR)
    steps = BlockActivities(till.database, None, settings)  # type: ignore[arg-type]
    end = await ActivityEnvironment().run(steps.close_block, BlockRef(block_id=key))
    assert (end.cost, end.used, end.idle) == (4 * DOLLAR, used, 4 * DOLLAR - used)


async def test_a_cap_of_a_tier_that_there_is_not_is_refused(till: Till):
    with pytest.raises(SpecError, match=r"tier: must be one of FAST, FLEX, \*, not fast"):
        await till.switch.set_cap("tier", "fast", COST)
    assert await till.switch.set_cap("tier", "fast", None) == ""  # one of before can be removed
    assert await till.switch.set_cap("tier", "FAST", COST) == ""


async def test_a_cap_of_a_name_that_nobody_knows_is_told(till: Till):
    for scope, name in (("pool", "defualt"), ("tenant", "reserch")):
        said = await till.switch.set_cap(scope, name, COST)
        assert said == f"there is no {scope} {name} yet: the cap holds for that name alone"
    for scope, name in (("pool", "default"), ("tenant", "default"), ("tenant", "*"), ("day", "*")):
        assert await till.switch.set_cap(scope, name, COST) == ""


async def test_a_cap_of_a_day_shows_before_anything_is_committed(till: Till):
    for scope, name in (("day", "*"), ("tier", "FAST"), ("tier", "*"), ("purchase", "*")):
        await till.switch.set_cap(scope, name, COST)
    caps = (await till.switch.state()).caps
    assert {(cap.scope, cap.name): cap.committed_micro_usd for cap in caps} == {
        ("day", "*"): 0, ("tier", "FAST"): 0, ("tier", "*"): None, ("purchase", "*"): None,
    }  # fmt: skip


async def test_the_nodes_of_a_purchase_are_the_same_in_its_list_and_in_full(till: Till):
    key = await filled(till, [])
    for number, state in enumerate(("READY", "STARTING", "FAILED", "ENDED")):
        await _run(
            till,
            "INSERT INTO machines (name, purchase_id, block_id, provider, state, part)"
            " SELECT :name, purchase_id, id, provider, :state, 0 FROM blocks",
            name=f"{key}.m{number}", state=state,
        )  # fmt: skip
    (listed,) = await PurchaseViews(till.database).purchases()
    whole = await PurchaseDetails(till.database).purchase("p-0")
    assert listed.nodes == whole.nodes == (f"{key}.m0", f"{key}.m1")
    assert "2 nodes" in list_html([listed])
    assert "running" not in list_html([listed])
