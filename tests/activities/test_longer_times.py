"""Who pays for the longer time of a machine that is billed as it runs, and what budgets say.

A GPU costs ten dollars an hour here, and red has bought the first hour.
"""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.machine_extension import MachineExtensionActivities
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.migrations import upgrade
from longshore.activities.views import set_pool
from longshore.models.block import BlockVerdict
from longshore.models.block_end import BlockDecision, BlockOption, BlockOptionKind, GoOnRequest
from longshore.models.buying_policy import BuyingPolicy
from longshore.models.market import OrderRequest
from longshore.models.money import MICRO
from longshore.models.pool import PoolSpec
from longshore.models.purchase import PurchaseOption, PurchaseRequest
from longshore.workers.stack import Stack
from tests.support.databases import database_of
from tests.support.funding import tenant
from tests.support.ledger import WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

TEN = 10 * MICRO
HOUR = timedelta(hours=1)
STARTS = datetime(2026, 11, 20, 12, tzinfo=UTC)
GO_ON, KEEP = BlockOptionKind.GO_ON, BlockOptionKind.KEEP


@pytest.fixture
async def tree(ledger: Ledger) -> Ledger:
    """Tenants `red` and `blue` below `root`, a job of each, and red's machine `m`."""
    for name, parent in (("root", None), ("red", "root"), ("blue", "root")):
        await tenant(ledger, name, parent)
        await ledger.add_job(f"of-{name}")
        await ledger.rows(
            "UPDATE jobs SET tenant = :name WHERE id = :job", name=name, job=f"of-{name}"
        )
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
    assert await buy(ledger) == ""
    await machine(ledger, "m")
    return ledger


async def buy(ledger: Ledger, name: str = "p", owner: str = "red", nodes: int = 1) -> str:
    """Store the intent to buy an hour; return why it was refused."""
    option = PurchaseOption(
        provider="runpod", instance_type="1xH100", gpus_per_node=1, length=HOUR, limit=TEN
    )
    request = PurchaseRequest(pool=ledger.pool, tenant=owner, options=(option,), nodes=nodes)
    return await rows.store_intent(ledger.database, name, request)


async def machine(ledger: Ledger, name: str, number: int = 1) -> None:
    """Have the purchase `p` have brought a machine, and buy no more."""
    order = OrderRequest(key=name, instance_type="1xH100", nodes=1, limit=TEN)
    decision = BlockDecision(
        block_id=name, at=STARTS, kind=GO_ON, reason="go on",
        options=(BlockOption(kind=KEEP, title="leave it", lost="gains less"),
                 BlockOption(kind=GO_ON, title="go on", chosen=True)),
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": name, "number": number, "pool": ledger.pool, "starts": STARTS,
        "ends": STARTS + HOUR, "order": order.model_dump_json(),
        "decision": decision.model_dump_json(exclude={"block_id"}),
    }  # fmt: skip
    for statement in _MACHINE:
        await ledger.rows(statement, **values)
    await recount(ledger)


async def recount(ledger: Ledger) -> None:
    async with ledger.database.transaction() as connection:
        await rows.recount(connection, "p")


async def go_on(
    ledger: Ledger, hours: float, *jobs: str, name: str = "m", unsaid: bool = False
) -> BlockVerdict:
    """Have a machine go on for these jobs until so many hours after its start."""
    steps = MachineExtensionActivities(ledger.database, ledger.temporal)
    uses = None if unsaid else dict.fromkeys(jobs, 1)
    request = GoOnRequest(block_id=name, until=STARTS + hours * HOUR, uses=uses)
    return await ActivityEnvironment().run(steps.go_on, request)


async def end(ledger: Ledger, hours: float, spent: float, name: str = "m") -> None:
    """End a machine, and close its account, so many hours after its start."""
    await ledger.rows(
        "UPDATE machines SET state = 'ENDED', ended_at = :at WHERE name = :name",
        at=STARTS + hours * HOUR, name=name,
    )  # fmt: skip
    await ledger.rows(
        "UPDATE orders SET spent = :spent WHERE key = :name", spent=round(spent * MICRO), name=name
    )
    async with ledger.database.transaction() as connection:
        await order_rows.close(connection, name)
        await rows.recount(connection, "p")


async def spent(ledger: Ledger) -> dict[str, float]:
    """Return what counts to each tenant, in dollars."""
    found = await ledger.rows("SELECT name, committed FROM purchase_sums WHERE scope = 'part'")
    return {each["name"]: each["committed"] / MICRO for each in found if each["committed"]}


async def give(ledger: Ledger, name: str, day: int) -> None:
    await ledger.rows(
        "UPDATE tenants SET money_per_day = :day WHERE name = :name", name=name, day=day * MICRO
    )


async def test_each_longer_time_is_paid_by_those_whose_jobs_run_there_then(tree: Ledger):
    assert (await go_on(tree, 2, "of-red", "of-blue")).kind is GO_ON
    assert await spent(tree) == {"red": 15, "blue": 5}
    assert (await go_on(tree, 3, "of-blue")).kind is GO_ON
    assert await spent(tree) == {"red": 15, "blue": 15}
    assert (await go_on(tree, 3.5)).kind is GO_ON  # kept for the warm target
    assert await spent(tree) == {"red": 15, "blue": 15, "default": 5}
    (seen,) = await PurchaseViews(tree.database).purchases()
    assert seen.split_micro_usd == {"red": 15 * MICRO, "blue": 15 * MICRO, "default": 5 * MICRO}


async def test_what_was_bought_by_hand_goes_on_also_where_its_pool_would_not_buy_it(tree: Ledger):
    other = BuyingPolicy(enabled=True, instance_types=("8xB200",))
    async with tree.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=tree.pool, buying=other))
    assert (await go_on(tree, 2, "of-red")).kind is GO_ON
    await tree.rows("UPDATE purchases SET decision = '{}'")
    refused = await go_on(tree, 3, "of-red")
    assert (refused.kind, "`instance_types`" in refused.reason) == (KEEP, True)


async def test_who_pays_all_alone_pays_for_its_longer_time_without_a_split(tree: Ledger):
    await go_on(tree, 2, "of-red")
    assert await spent(tree) == {"red": 20}
    (seen,) = await PurchaseViews(tree.database).purchases()
    assert seen.split_micro_usd == {}


async def test_of_a_longer_time_that_ends_early_its_tenants_get_back_what_was_not_spent(
    tree: Ledger,
):
    await give(tree, "red", 13)
    await go_on(tree, 4, "of-blue")
    assert await spent(tree) == {"red": 10, "blue": 30}
    await end(tree, 1.1, 11)
    assert await spent(tree) == {"red": 10, "blue": 1}
    assert "$20.00 would be committed for the budget of red" in await buy(tree, "again")


@pytest.mark.parametrize(
    ("hours", "cost", "parts"),
    [
        (0.5, 5.0, {"red": 5}),
        (1.5, 13.5, {"red": 9, "blue": 4.5}),  # at less than its limit
        (2.5, 22.5, {"red": 13.5, "blue": 9}),
        (3.0, 36.0, {"red": 24, "blue": 12}),  # and at more
    ],
)
async def test_what_a_machine_has_cost_is_divided_by_its_time(
    tree: Ledger, hours: float, cost: float, parts: dict[str, float]
):
    await go_on(tree, 2, "of-blue")
    await go_on(tree, 3, "of-red")
    await end(tree, hours, cost)
    assert await spent(tree) == parts


async def test_what_a_machine_costs_after_its_committed_end_is_divided_as_the_rest(tree: Ledger):
    await go_on(tree, 2, "of-blue")
    await end(tree, 2.5, 25)
    assert await spent(tree) == {"red": 12.5, "blue": 12.5}


async def test_no_cap_and_no_budget_refuses_that_a_machine_has_ended_after_its_end(tree: Ledger):
    await tree.rows("UPDATE purchases SET buying = true")
    await go_on(tree, 2, "of-blue")
    await tree.rows("UPDATE orders SET spent = committed")
    await recount(tree)
    for name in ("root", "blue"):
        await give(tree, name, 10)
    await tree.rows("INSERT INTO purchase_caps (scope, name, micro) VALUES ('day', 'all', 1)")
    await end(tree, 2.08, 20)
    assert await spent(tree) == {"red": 10, "blue": 10}


async def test_a_budget_is_asked_for_a_longer_time_that_an_overrun_has_paid_for(tree: Ledger):
    await tree.rows("UPDATE orders SET spent = 20000000")
    await recount(tree)
    await give(tree, "blue", 9)
    refused = await go_on(tree, 2, "of-blue")
    assert (refused.kind, "the budget of blue" in refused.reason) == (KEEP, True)
    assert await spent(tree) == {"red": 20}
    await give(tree, "blue", 10)
    assert (await go_on(tree, 2, "of-blue")).kind is GO_ON
    assert await spent(tree) == {"red": 10, "blue": 10}


async def test_what_one_machine_gives_back_is_not_taken_from_the_longer_time_of_another(
    tree: Ledger,
):
    await machine(tree, "n", 2)
    await go_on(tree, 4, "of-blue")
    await end(tree, 0.5, 5, name="n")
    assert await spent(tree) == {"red": 15, "blue": 30}


async def test_the_longer_time_of_one_comes_on_top_of_what_a_purchase_still_buys(tree: Ledger):
    await tree.rows("UPDATE purchases SET planned = planned * 2, buying = true")
    await recount(tree)
    assert await spent(tree) == {"red": 20}
    await give(tree, "blue", 9)
    refused = await go_on(tree, 2, "of-blue")
    assert "the budget of blue" in refused.reason
    await give(tree, "blue", 10)
    await go_on(tree, 2, "of-blue")
    assert await spent(tree) == {"red": 20, "blue": 10}
    await machine(tree, "n", 2)
    assert await spent(tree) == {"red": 20, "blue": 10}


async def test_a_budget_that_pays_none_of_the_longer_time_is_not_asked(tree: Ledger):
    await give(tree, "red", 8)
    await give(tree, "blue", 500)
    assert (await go_on(tree, 2, "of-blue")).kind is GO_ON
    assert (await go_on(tree, 3.1, "of-blue")).kind is GO_ON
    await give(tree, "root", 20)
    refused = await go_on(tree, 4, "of-blue")
    assert (refused.kind, "the budget of root" in refused.reason) == (KEEP, True)
    await give(tree, "root", 500)
    refused = await go_on(tree, 4, "of-red", "of-blue")
    assert "with it $14.50 would be committed for the budget of red" in refused.reason
    assert await spent(tree) == {"red": 10, "blue": 21}


async def test_the_parts_are_the_whole_and_grow_for_those_alone_who_run_there(tree: Ledger):
    await machine(tree, "n", 2)
    await tree.rows(
        "UPDATE orders SET request = request || '{\"limit\": 9999991}', committed = 9999991"
    )
    await recount(tree)
    numbers, hours = random.Random(7), {"m": 1.0, "n": 1.0}
    for step in range(24):
        name, jobs = numbers.choice("mn"), ["of-red", "of-blue", "of-root"][: 1 + step % 3]
        before = await spent(tree)
        hours[name] += numbers.random() / 3
        await go_on(tree, hours[name], *jobs, name=name)
        after = await spent(tree)
        assert sum(after.values()) == pytest.approx(await whole(tree), abs=1e-9)
        others = {owner for owner in after if f"of-{owner}" not in jobs}
        assert all(abs(after[each] - before.get(each, 0)) < 1e-5 for each in others), step
    for name in "mn":
        await end(tree, hours[name] - 0.4, numbers.random() * 50, name=name)
        assert sum((await spent(tree)).values()) == pytest.approx(await whole(tree), abs=1e-9)


async def whole(tree: Ledger) -> float:
    return (await tree.value("SELECT committed FROM purchases")) / MICRO


async def test_where_an_older_worker_decided_that_does_not_say_it_who_paid_pays(tree: Ledger):
    await go_on(tree, 2, unsaid=True)
    assert await spent(tree) == {"red": 20}
    await go_on(tree, 3, "of-blue")
    await go_on(tree, 4, unsaid=True)
    assert await spent(tree) == {"red": 20, "blue": 20}


async def test_what_a_worker_of_before_stored_with_its_decision_is_used(tree: Ledger):
    await tree.rows('UPDATE blocks SET decision = decision || \'{"uses": {"of-blue": 5}}\'')
    await go_on(tree, 2, unsaid=True)
    assert await spent(tree) == {"red": 10, "blue": 10}


async def test_an_older_worker_that_divides_a_longer_time_itself_hears_that_it_is_refused(
    tree: Ledger,
):
    split = 'UPDATE purchases SET split = \'{"red": 10000000, "blue": 10000000}\''
    with pytest.raises(IntegrityError) as refused:
        await tree.rows(f"{split}, committed = 20000000")
    why = "a longer time is divided over its tenants by workers of the new version alone"
    assert rows.refusal_of(refused.value) == why
    with pytest.raises(IntegrityError) as wrong:
        await tree.rows(split)
    assert rows.refusal_of(wrong.value) is None


async def test_older_workers_can_read_what_is_decided():
    decision = BlockDecision(
        block_id="m", at=STARTS, kind=GO_ON, reason="go on", until=STARTS, uses={"of-blue": 5}
    )
    assert "uses" not in decision.model_dump_json()


@pytest.mark.parametrize("refused", [False, True])
async def test_a_machine_goes_on_also_by_a_decision_that_only_another_version_can_read(
    tree: Ledger, refused: bool
):
    newer = "UPDATE blocks SET decision = decision || '{\"newer\": 1}' RETURNING decision"
    (before,) = await tree.rows(newer)
    if refused:
        await give(tree, "blue", 1)
    verdict = await go_on(tree, 2, "of-blue")
    assert verdict.kind is (KEEP if refused else GO_ON)
    assert ("the budget of blue" in verdict.reason) is refused
    assert await spent(tree) == ({"red": 10} if refused else {"red": 10, "blue": 10})
    assert await tree.rows("SELECT decision FROM blocks") == [before]


async def test_whatever_the_database_refuses_the_block_stays_as_it_is_and_says_why(tree: Ledger):
    await tree.rows(
        "ALTER TABLE blocks ADD CONSTRAINT some_rule CHECK (ends_at < '2026-11-20 14:00Z')"
    )
    refused = await go_on(tree, 3, "of-blue")
    assert (refused.kind, "some_rule" in refused.reason) == (KEEP, True)
    stored = await tree.value("SELECT decision FROM blocks")
    assert (stored["kind"], stored["reason"]) == ("keep", refused.reason)
    assert await spent(tree) == {"red": 10}


@pytest.mark.parametrize(
    "longer",
    ["7", "{}", "[1]", '[{"after": 1}]', '[{"after": "1", "split": {"a": 1}}]',
     '[{"after": 1, "split": {}}]', '[{"after": 1, "split": [{"a": 1}]}]',
     '[{"after": -1, "split": {"a": 1}}]', '[{"after": 1, "split": {"a": 1, "b": -1}}]',
     '[{"after": 1, "split": {"a": 1}}, [{"after": 1, "split": {"a": 1}}]]'],
)  # fmt: skip
async def test_who_pays_for_longer_times_is_kept_in_numbers(tree: Ledger, longer: str):
    with pytest.raises(IntegrityError, match="orders_longer_in_numbers"):
        await tree.rows("UPDATE orders SET longer = CAST(:longer AS jsonb)", longer=longer)


async def test_nobody_writes_by_hand_what_of_a_purchase_is_for_longer_times(tree: Ledger):
    await go_on(tree, 2, "of-blue")
    await tree.rows("UPDATE purchases SET longer = '{\"nobody\": 20000000}'")
    assert await tree.value("SELECT longer FROM purchases") == {"blue": TEN}
    assert await spent(tree) == {"red": 10, "blue": 10}
    # What was written of orders by hand counts once their purchase is written, whatever of it.
    await tree.rows("UPDATE orders SET ends_at = ends_at + interval '2 hours'")
    await tree.rows("UPDATE purchases SET split = split")
    assert await spent(tree) == {"red": 5, "blue": 15}
    await recount(tree)
    assert await spent(tree) == {"red": 5, "blue": 15}


def test_databases_in_which_splits_could_not_grow_are_as_others_after_the_upgrade(stack: Stack):
    """0074 stood on main for 35 minutes before 0073 came before it."""
    said: list[Any] = []
    for without_growth in (False, True):
        with (
            database_of(stack, "0071" if without_growth else "0075") as url,
            psycopg.connect(url, autocommit=True) as connection,
        ):
            if without_growth:
                connection.execute(_AS_OF_0074)
            upgrade(url)
            said.append(connection.execute(_FUNCTIONS).fetchall())
    assert said[0] == said[1]
    assert len(said[0]) == 2


async def test_an_upgrade_waits_for_a_worker_that_has_locked_a_purchase(stack: Stack):
    with (
        database_of(stack, "0075") as url,
        psycopg.connect(url) as worker,
        psycopg.connect(url, autocommit=True) as looks,
    ):
        worker.execute("SELECT id FROM purchases WHERE id = 'none' FOR UPDATE")
        upgrading = asyncio.create_task(asyncio.to_thread(upgrade, url))
        await eventually(lambda: asyncio.to_thread(_waiting, looks))
        worker.execute("SELECT key FROM orders FOR UPDATE")
        worker.commit()
        await upgrading


def _waiting(looks: psycopg.Connection) -> Any:
    return looks.execute(WAITING_FOR_LOCKS).fetchone() != (0,)


_MACHINE = (
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                        gpus_per_node, committed, nodes, state, starts_at, ends_at)
    VALUES (:name, 'p', :number, 0, 'runpod', CAST(:order AS jsonb), true, 1, 10000000, 1,
            'PLACED', :starts, :ends)""",
    """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, nodes,
                        gpus_per_node, price_micro_per_gpu_hour, purchase_id, pool, state,
                        decision)
    VALUES (:name, 'runpod', '1xH100', 'FAST', :starts, :ends, 1, 1, 10000000, 'p', :pool, 'OPEN',
            CAST(:decision AS jsonb))""",
    "INSERT INTO machines (name, purchase_id, block_id, provider, state, asked_at)"
    " VALUES (:name, 'p', :name, 'runpod', 'READY', :starts)",
    "UPDATE purchases SET buying = false WHERE :number = 1",
)
_AS_OF_0074 = """
    ALTER TABLE start_estimates ADD COLUMN kept_until timestamptz;
    UPDATE alembic_version SET version_num = '0074';
"""
_FUNCTIONS = """
    SELECT proname, pg_get_functiondef(oid) FROM pg_proc
     WHERE proname IN ('purchase_charges', 'purchase_commits') ORDER BY proname
"""
