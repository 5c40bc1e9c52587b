"""Money of budgets: purchases over it are refused, each split over the tenants that it serves."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from longshore.activities.buying.decisions import caps_left
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_rows import store_intent
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.funding.views import budgets_view
from longshore.activities.migrations import upgrade
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.revisions import newest_revision
from longshore.client.bought_view import purchase_screen
from longshore.console.purchases_view import head_html
from longshore.models.caps_left import BudgetLeft
from longshore.models.money import MICRO
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from longshore.scheduling.funding.money import forecast
from longshore.workers.stack import Stack
from tests.support.databases import database_of
from tests.support.funding import tenant
from tests.support.ledger import Ledger
from tests.support.screens import NOW, drawn

TEN = 10 * MICRO
"""What a purchase of these tests costs: a GPU for an hour."""


@pytest.fixture
async def tree(ledger: Ledger) -> Ledger:
    """A tree `root` over `red`, which is over `infra`, and `blue`."""
    for name, parent in (("root", None), ("red", "root"), ("infra", "red"), ("blue", "root")):
        await tenant(ledger, name, parent)
    async with ledger.database.transaction() as connection:
        await ensure_pool(connection, ledger.pool)
    return ledger


async def give(ledger: Ledger, name: str, day: int | None = None, month: int | None = None):
    await ledger.rows(
        "UPDATE tenants SET money_per_day = :day, money_per_month = :month WHERE name = :name",
        name=name, day=None if day is None else day * MICRO,
        month=None if month is None else month * MICRO,
    )  # fmt: skip


async def buy(ledger: Ledger, number: int, owner: str = "red", **fields: Any) -> str:
    """Store an intent of ten dollars; return why it was refused."""
    option = PurchaseOption(
        provider="sfcompute", instance_type="1xH100", gpus_per_node=1, length=timedelta(hours=1),
        limit=TEN,
    )  # fmt: skip
    request = PurchaseRequest(pool=ledger.pool, tenant=owner, options=(option,), **fields)
    assert request.planned == TEN
    return await store_intent(ledger.database, f"p-{number}", request)


async def spent(ledger: Ledger, name: str) -> int:
    return await ledger.value(
        "SELECT budget_spent(:name, current_date - 1, current_date + 1)", name=name
    )


async def test_money_of_a_tenant_above_counts_too(tree: Ledger):
    await give(tree, "root", day=25)
    assert await buy(tree, 1, "infra") == ""
    assert await buy(tree, 2, "blue") == ""
    refused = await buy(tree, 3, "red")
    assert refused.startswith("with it $30.00 would be committed for the budget of root on ")
    assert refused.endswith(", and $25.00 is the most")
    assert await buy(tree, 4, "default") == "", "it is not in the tree"
    assert await spent(tree, "root") == 2 * TEN
    assert (await spent(tree, "red"), await spent(tree, "infra")) == (TEN, TEN)


async def test_a_month_is_limited_too(tree: Ledger):
    await give(tree, "red", day=100, month=15)
    assert await buy(tree, 1) == ""
    assert "for the budget of red in the month of " in await buy(tree, 2)


async def test_each_tenant_pays_by_its_part(tree: Ledger):
    await give(tree, "red", day=3)
    split = {"red": 1, "blue": 3}
    assert await buy(tree, 1, "blue", split=split) == ""
    assert (await spent(tree, "red"), await spent(tree, "blue")) == (2_500_000, 7_500_000)
    assert "the budget of red" in await buy(tree, 2, "blue", split=split)
    assert await buy(tree, 3, "blue") == ""


@pytest.mark.parametrize("split", [{"nobody": 1}, {"nobody": 2, "red": 1}])
async def test_what_a_name_that_nobody_knows_would_pay_the_tenant_pays(
    tree: Ledger, split: dict[str, int]
):
    await give(tree, "red", day=15)
    assert await buy(tree, 1, split=split) == ""
    assert (await spent(tree, "red"), await spent(tree, "nobody")) == (TEN, 0)
    assert "the budget of red" in await buy(tree, 2, split=split)


async def test_a_tenant_of_which_only_jobs_are_known_pays_its_part_and_so_does_default(
    tree: Ledger,
):
    await tree.add_job("a")
    await tree.rows("UPDATE jobs SET tenant = 'audio'")
    assert await buy(tree, 1, split={"red": 2, "audio": 1, "default": 2}) == ""
    parts = "SELECT name, committed FROM purchase_sums WHERE scope = 'part' ORDER BY name"
    assert [(each["name"], each["committed"]) for each in await tree.rows(parts)] == [
        ("audio", 2 * MICRO), ("default", 4 * MICRO), ("red", 4 * MICRO),
    ]  # fmt: skip


async def test_shares_of_nothing_are_no_split(tree: Ledger):
    assert await buy(tree, 1, split={"red": 0, "blue": 0}) == ""
    assert (await spent(tree, "red"), await spent(tree, "blue")) == (TEN, 0)
    for split in ("{}", '{"red": 0}'):
        with pytest.raises(IntegrityError, match="purchases_split_in_numbers"):
            await tree.rows(
                "INSERT INTO purchases (id, pool, tenant, tier, state, request, planned,"
                " committed, split) SELECT 'p-2', pool, tenant, tier, state, request, planned,"
                " committed, CAST(:split AS jsonb) FROM purchases",
                split=split,
            )


@pytest.mark.parametrize(
    "change",
    ["split = '{\"blue\": 1}'", "split = NULL", "day = day - 40", "tenant = 'blue'",
     "tier = 'FLEX'", "committed = 0, day = day - 40",
     "split = '{\"red\": 1, \"blue\": 9}', committed = 5"],
)  # fmt: skip
async def test_what_committed_money_counts_to_stays(tree: Ledger, change: str):
    assert await buy(tree, 1, split={"red": 1, "blue": 1}) == ""
    with pytest.raises(IntegrityError, match=r"split of purchase p-1 stay .* 10000000 micro"):
        await tree.rows(f"UPDATE purchases SET {change}")
    await tree.rows("UPDATE purchases SET committed = 0, spent = 0, split = split, day = day")
    await tree.rows(f"UPDATE purchases SET {change}")


async def test_what_each_tenant_pays_is_shown(tree: Ledger):
    await buy(tree, 1, "blue", split={"red": 1, "blue": 3})
    await buy(tree, 2, "blue")
    found = {each.id: each for each in await PurchaseViews(tree.database).purchases()}
    split = found["p-1"].split_micro_usd
    assert split == {"red": 2_500_000, "blue": 7_500_000}
    assert found["p-2"].split_micro_usd == {}
    shared, alone = [await PurchaseDetails(tree.database).purchase(f"p-{n}") for n in (1, 2)]
    assert shared.split_micro_usd == split
    said = "$7.50 blue, $2.50 red, by GPU-hours"
    lines = [line.split(maxsplit=1) for line in drawn(purchase_screen(shared, NOW), 120)]
    assert ["split", said] in lines
    assert said in head_html(shared)
    assert "split" not in "\n".join(drawn(purchase_screen(alone, NOW), 120))
    assert "Split" not in head_html(alone)


async def test_what_comes_cheaper_is_given_back_and_what_was_spent_is_never_refused(tree: Ledger):
    await give(tree, "red", day=10)
    assert await buy(tree, 1) == ""
    assert await buy(tree, 2) != ""
    await tree.rows("UPDATE purchases SET committed = 4000000 WHERE id = 'p-1'")
    assert await spent(tree, "red") == 4 * MICRO
    with pytest.raises(IntegrityError, match="budget of red"):
        await tree.rows("UPDATE purchases SET committed = 12000000 WHERE id = 'p-1'")
    await tree.rows("UPDATE purchases SET committed = 12000000, spent = 12000000 WHERE id = 'p-1'")
    assert await spent(tree, "red") == 12 * MICRO


async def test_money_and_a_parent_that_come_later_count_what_was_bought_before(tree: Ledger):
    await tenant(tree, "new", None)
    assert await buy(tree, 1, "new") == ""
    await tree.rows("UPDATE tenants SET parent = 'red' WHERE name = 'new'")
    await give(tree, "root", day=15)
    assert "the budget of root" in await buy(tree, 2, "blue")
    await tree.rows("UPDATE purchases SET committed = 0 WHERE id = 'p-1'")
    assert await buy(tree, 3, "blue") == ""


async def test_of_many_at_once_no_more_are_taken_than_there_is_money_for(tree: Ledger):
    await give(tree, "root", day=30)
    owners = ("red", "blue", "infra", "root")
    told = await asyncio.gather(*(buy(tree, n, owners[n % 4]) for n in range(12)))
    assert told.count("") == 3
    assert await spent(tree, "root") == 3 * TEN


async def test_who_decides_knows_what_is_left(tree: Ledger):
    await give(tree, "root", day=25, month=100)
    await give(tree, "infra", month=40)
    await buy(tree, 1, "infra")
    async with tree.database.transaction() as connection:
        left = await caps_left(connection, PoolSpec(name=tree.pool), ["infra", "blue", "default"])
    ends = {"day_ends", "month_ends"}
    assert {
        name: each.model_copy(update=dict.fromkeys(ends)) for name, each in left.budgets.items()
    } == {
        "root": BudgetLeft(
            day=15 * MICRO, month=90 * MICRO, per_day=25 * MICRO, per_month=100 * MICRO
        ),
        "infra": BudgetLeft(month=30 * MICRO, per_month=40 * MICRO),
    }
    root = left.budgets["root"]
    assert root.day_ends is not None
    assert root.month_ends is not None
    now = datetime.now(UTC)
    assert now < root.day_ends <= min(now + timedelta(days=1), root.month_ends)
    assert root.month_ends.day == 1
    assert {name: set(each) for name, each in left.above.items()} == {
        "infra": {"infra", "root"}, "blue": {"root"},
    }  # fmt: skip


async def test_what_was_spent_is_shown_with_a_forecast(tree: Ledger):
    await give(tree, "root", day=25)
    await buy(tree, 1, "infra")
    async with tree.database.transaction() as connection:
        shown = {each.tenant: each.spent for each in await budgets_view(connection)}
    assert shown["blue"] is None, "it has no money"
    spent = shown["root"]
    assert spent is not None
    assert (spent.today, spent.this_month) == (TEN, TEN)
    assert spent.forecast >= TEN


@pytest.mark.parametrize(
    ("today", "comes_to"), [((2026, 11, 30), 100), ((2026, 11, 16), 240), ((2028, 2, 1), 380)]
)
def test_a_month_goes_on_as_the_last_week(today: tuple[int, int, int], comes_to: int):
    assert forecast(100, 70, date(*today)) == comes_to


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 10**9), min_size=1),
)
async def test_the_parts_are_the_whole_and_the_sums_are_the_parts(
    tree: Ledger, totals: list[int], split: dict[str, int]
):
    for total in totals:
        parts = await tree.rows(
            "SELECT tenant, part FROM purchase_parts(:t, CAST(:s AS jsonb), 'x')",
            t=total, s=str(split).replace("'", '"'),
        )  # fmt: skip
        assert sum(row["part"] for row in parts) == total
        whole = sum(split.values())
        for row in parts:
            assert abs(row["part"] - total * split[row["tenant"]] / whole) < 1 + total * 1e-12


_WITHOUT_A_SHARE = """
    INSERT INTO pools (name, spec) VALUES ('pool', '{}');
    INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed, split)
    VALUES ('p-1', 'pool', 'red', 'FAST', 'READY', '{}', 3, 3, '{}'),
           ('p-2', 'pool', 'red', 'FAST', 'READY', '{}', 4, 4, '{"red": 0}'),
           ('p-3', 'pool', 'red', 'FAST', 'READY', '{}', 8, 8, '{"red": 1, "blue": 3}');
"""


def test_purchases_that_counted_to_no_tenant_count_to_their_own_after_the_upgrade(stack: Stack):
    with database_of(stack, "0069") as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_WITHOUT_A_SHARE)
        parts = "SELECT name, committed FROM purchase_sums WHERE scope = 'part' ORDER BY name"
        assert connection.execute(parts).fetchall() == [("blue", 6), ("red", 2)]
        assert upgrade(url) == newest_revision()
        assert connection.execute(parts).fetchall() == [("blue", 6), ("red", 9)]
        splits = connection.execute("SELECT split FROM purchases ORDER BY id").fetchall()
        assert splits == [(None,), (None,), ({"red": 1, "blue": 3},)]
