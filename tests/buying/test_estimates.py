"""What a machine that runs has cost, where its market tells no bill before its end: an estimate by
price and time, the same on every screen."""

from typing import Any

from sqlalchemy import text

from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.console import blocks_view, purchases_view
from longshore.models.spending import NOT_BILLED, Account
from tests.buying.test_overruns import booked
from tests.buying.test_refusals import Till, filled, lease, till

__all__ = ["till"]
CENT = 10_000
_POD = (
    "UPDATE orders SET is_machine = true, order_id = 'pod-1', state = 'PLACED',"
    " sent_at = now() - interval '10 hours',"
    """ request = jsonb_set(request, '{offer}', '{"price": 2000000}')""",
    "UPDATE blocks SET state = 'OPEN', gpus_per_node = 8, price_micro_per_gpu_hour = 2500000,"
    " starts_at = now() - interval '10 hours', ends_at = now() + interval '2 hours',"
    " pool = 'default'",
    "INSERT INTO machines (name, purchase_id, block_id, provider, state)"
    " SELECT id, purchase_id, id, provider, 'READY' FROM blocks",
)


async def _shown(till: Till, key: str) -> dict[str, Any]:
    details, views = PurchaseDetails(till.database), PurchaseViews(till.database)
    return {
        "block": await details.block(key),
        "purchase": await details.purchase("p-0"),
        "blocks": (await views.blocks(with_ended=True))[0],
        "purchases": (await views.purchases(with_ended=True))[0],
    }


async def _pod(till: Till) -> str:
    """A pod of 8 GPUs at $16 an hour for ten hours, of which a job held all in the last nine."""
    key = await filled(till, [])
    async with till.database.transaction() as connection:
        for statement in _POD:
            await connection.execute(text(statement))
        for gpu in range(8):
            await lease(connection, key, gpu, 60, 600)
    return key


async def test_a_pod_that_runs_has_cost_its_price_by_its_time_on_every_screen(till: Till):
    key = await _pod(till)
    shown = await _shown(till, key)
    for what, each in shown.items():
        assert abs(each.estimated_micro_usd - 160_000_000) < 10 * CENT, what
        assert each.paid_micro_usd == 0
        assert each.paid_so_far.startswith("about $160.0"), what
        assert each.adds_up
        assert each.model_dump(mode="json")["estimated_micro_usd"] == each.estimated_micro_usd
    block = shown["block"]
    assert abs(block.used_so_far_micro_usd - 144_000_000) < 10 * CENT
    assert abs(block.idle_so_far_micro_usd - 16_000_000) < 10 * CENT
    assert "; about $160.0" in block.sum_in_words
    assert f" more {NOT_BILLED}" in block.sum_in_words
    for page in (
        blocks_view.head_html(block),
        blocks_view.sums_html([block]),
        purchases_view.head_html(shown["purchase"]),
        purchases_view.sums_html([shown["purchases"]]),
        purchases_view.list_html([shown["purchases"]]),
    ):
        assert "about $160.0" in page


async def test_what_is_billed_is_no_estimate(till: Till):
    key = await _pod(till)
    await booked(till, key, 100_000_000)
    for each in (await _shown(till, key)).values():
        assert each.paid_micro_usd == 100_000_000
        assert each.paid_so_far.startswith("about $160.0")
    async with till.database.transaction() as connection:
        await connection.execute(text("UPDATE blocks SET state = 'ENDED', ended_at = now()"))
    for each in (await _shown(till, key)).values():
        assert (each.estimated_micro_usd, each.paid_so_far) == (0, "$100.00")


async def test_nothing_is_estimated_of_a_machine_that_was_never_taken_and_of_a_window(till: Till):
    key = await _pod(till)
    for change in ("order_id = NULL", "order_id = 'o-1', is_machine = false"):
        async with till.database.transaction() as connection:
            await connection.execute(text(f"UPDATE orders SET {change}"))
        assert {each.estimated_micro_usd for each in (await _shown(till, key)).values()} == {0}


def test_the_estimate_is_no_part_of_the_sum():
    account = Account(paid_micro_usd=1, open_micro_usd=1, estimated_micro_usd=5)
    assert account.adds_up
