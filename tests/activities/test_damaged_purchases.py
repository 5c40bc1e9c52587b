"""Rows of purchases, orders, blocks, machines and sales, with all that the database lets somebody
write into them by hand: decisions to buy, reconcile, doctor and lists go on for everybody else."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.block_scene import read_scene
from longshore.activities.buying.block_wakeups import BlockWakeups
from longshore.activities.buying.decisions import BuyingActivities, caps_left
from longshore.activities.buying.incoming_capacity import purchases_under_way
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.buying.reasons import BuyingReasons, read_standing
from longshore.activities.database import clock
from longshore.activities.markets.reconcile import compare
from longshore.activities.observation import observe
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.activities.views import Views, set_pool
from longshore.client.bought_view import purchase_screen
from longshore.console.purchases_view import head_html
from longshore.models.buying import BuyingPolicy
from longshore.models.margins import Margins
from longshore.models.pool import PoolSpec
from longshore.models.purchase import BuyingRequest, PurchaseRequest
from longshore.models.reconcile import ReconcileRequest
from longshore.models.settings import Settings
from longshore.workers.doctor import buying
from tests.activities.test_damaged_rows import ABSURD, COLUMNS, some_of
from tests.buying.buyer import block_option
from tests.support.ledger import Ledger

DOCUMENTS = (
    "null", "[1]", '"x"', "7", "{}",
    '{"nodes": "x"}', '{"nodes": 1e30}', '{"nodes": -1}', '{"nodes": 1.5}', '{"nodes": [1]}',
    '{"options": []}', '{"options": {"0": {"fast_fabric": "x"}}}', '{"options": [7]}',
    '{"options": [{"fast_fabric": "x", "for_gang": 7}]}', '{"options": 7}',
    '{"ready_within": "x"}', '{"ready_within": "9000 years"}', '{"ready_within": {}}',
    '{"limit": "x"}', '{"limit": 1e30}', '{"offer": "x"}', '{"instance_type": 7}',
    '{"serves": 7}', '{"serves": "x"}', '{"serves": {"a": 1}}', '{"serves": [7, null, {}]}',
    '{"kind": 7}', '{"reason": [1]}', '{"at": "x"}',
)  # fmt: skip
"""What is written over the fields of a stored document, or in its place."""
VALUES = {**ABSURD, "int2": ("32767", "-1"), "jsonb": DOCUMENTS}
KEYS = {
    "blocks": "id", "machines": "name", "market_refusals": "provider", "purchase_orders": "key",
    "purchases": "id", "sales": "key",
}  # fmt: skip
"""Orders by their side: what one of the two sides may not have would hide what the other may."""
SCENES = (
    ("sane", "STARTING", True, False, "STARTING", "STARTING"),
    ("coming", "STARTING", True, False, "STARTING", "STARTING"),
    ("by-use", "READY", False, True, "OPEN", "READY"),
    ("lost", "READY", False, False, "OPEN", "ENDED"),
    ("let-go", "ENDED", False, False, "ENDED", "ENDED"),
)
"""Of each purchase: its state, whether it buys and by use, and the states of block and machine."""
Look = Callable[[], Awaitable[object]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "all_values", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
@pytest.mark.parametrize("table", KEYS)
async def test_no_value_that_the_database_takes_stops_others(
    ledger: Ledger, settings: Settings, table: str, all_values: bool
):
    await _fill(ledger)
    looks = _looks(ledger, settings)
    for look in looks.values():
        await look()
    if table != "blocks":
        looks.pop("reconcile")  # it asks Temporal a lot, and reads no other of these tables
    key = KEYS[table]
    for place, column in enumerate(await ledger.rows(COLUMNS, table=table)):
        name, kind = column["name"], column["kind"]
        values = VALUES.get(kind, ())
        for value in values if all_values else some_of(values, place):
            await ledger.rows(
                f"CREATE TABLE was AS SELECT {key} AS key, {name} AS value FROM {table}"
            )
            if await _is_written(ledger, table, name, kind, value):
                for what, look in looks.items():
                    try:
                        await look()
                    except Exception as error:
                        raise AssertionError(
                            f"{table}.{name} = {value}: {what}: {error!r}"
                        ) from error
                await ledger.rows(
                    f"UPDATE {table} t SET {name} = was.value FROM was WHERE was.key = t.{key}"
                )
            await ledger.rows("DROP TABLE was")


@pytest.mark.parametrize("column", ["starts_at", "ends_at"])
async def test_a_bought_window_has_both_its_ends(ledger: Ledger, column: str):
    await _fill(ledger)
    with pytest.raises(DBAPIError, match="blocks_bought_have_their_time"):
        await ledger.rows(f"UPDATE blocks SET {column} = NULL WHERE id = 'b-coming'")


@pytest.mark.parametrize(
    "split",
    ["null", "[1]", "7", '{"a": "x"}', '{"a": [1]}', '{"a": 1, "b": -1}', "{}", '{"default": 0}'],
)
async def test_what_a_purchase_is_split_by_is_numbers(ledger: Ledger, split: str):
    await _fill(ledger)
    await ledger.rows("UPDATE purchases SET committed = 0")
    with pytest.raises(DBAPIError, match="purchases_split_in_numbers"):
        await ledger.rows("UPDATE purchases SET split = CAST(:split AS jsonb)", split=split)


@pytest.mark.parametrize("stored", ["[1]", "7", '{"decision": 7}'])
async def test_a_decision_to_buy_that_cannot_be_read_counts_as_none(ledger: Ledger, stored: str):
    await _fill(ledger)
    await ledger.rows("UPDATE pools SET buying_decision = CAST(:stored AS jsonb)", stored=stored)
    async with ledger.database.snapshot() as connection:
        spec = await load_pool(connection, ledger.pool)
        assert await read_standing(connection, spec, await clock(connection))


async def test_within_the_cooldown_a_pool_is_not_said_to_buy_for_a_job_that_has_just_come(
    ledger: Ledger,
):
    await _fill(ledger)
    async with ledger.database.snapshot() as connection:
        spec = await load_pool(connection, ledger.pool)
        now = await clock(connection)
        assert (await read_standing(connection, spec, now)).buys
        just_bought = spec.buying.model_copy(update={"cooldown": timedelta(hours=10)})
        spec = spec.model_copy(update={"buying": just_bought})
        standing = await read_standing(connection, spec, now)
    assert not standing.buys
    assert standing.says.startswith("it buys nothing now: within the cooldown: the next purchase")
    assert "longshore pool set" in standing.helps


async def test_a_purchase_that_cannot_be_read_is_named(ledger: Ledger):
    await _fill(ledger)
    (found,) = await buying.purchases(ledger.database)
    assert found.level == "ok"
    await ledger.rows(
        """UPDATE purchases SET request = '{"options": [7]}' WHERE id = 'p-coming'"""
    )
    await ledger.rows("UPDATE orders SET option = 7 WHERE key = 'b-lost'")
    (found,) = await buying.purchases(ledger.database)
    async with ledger.database.snapshot() as connection:
        caps = await caps_left(connection, await load_pool(connection, ledger.pool), ())
    assert caps.unreadable == "p-coming", "or it would be bought for the same jobs again"
    assert "purchase p-coming: options[0]" in found.says
    assert "purchase p-lost: there is no option 7, which was ordered" in found.says


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        ("[1]", "the decision: all of it: must be a mapping"),
        ('{"serves": ["a", 7], "rule": "forecast"}', "the decision: serves[1]: must be text"),
        ('{"options": [{"title": "x"}], "rule": "forecast"}',
         "the decision: options[0].total: is required"),
    ],
)  # fmt: skip
async def test_a_page_shows_what_can_be_read_of_a_purchase_and_says_what_cannot(
    ledger: Ledger, stored: str, wrong: str
):
    await _fill(ledger)
    await ledger.rows(
        "UPDATE purchases SET decision = CAST(:stored AS jsonb) WHERE id = 'p-coming'",
        stored=stored,
    )
    await ledger.rows("UPDATE orders SET option = 7 WHERE key = 'b-coming'")
    found = await PurchaseDetails(ledger.database).purchase("p-coming")
    assert [each.key for each in found.made] == ["b-coming"]
    assert found.rule == ("forecast" if "rule" in stored else "")
    decision, request = found.unreadable
    assert decision.startswith(wrong)
    assert request == "what was asked for: there is no option 7, which was ordered"
    page, screen = head_html(found), Console(width=200, file=StringIO())
    screen.print(purchase_screen(found, datetime.now(UTC)))
    assert isinstance(screen.file, StringIO)
    for shown in (page, screen.file.getvalue()):
        assert "What was decided cannot be read." in shown
        assert wrong in shown
        assert request in shown


def _looks(ledger: Ledger, settings: Settings) -> dict[str, Look]:
    """Return what everybody reads of what was bought, by its name."""
    database, number = ledger.database, 0
    views, details = PurchaseViews(database), PurchaseDetails(database)

    async def decide() -> None:
        nonlocal number
        number += 1
        request = BuyingRequest(pool=ledger.pool, decision_id=f"buying-{number}")
        await ledger.run(BuyingActivities(database, settings).decide_buying, request)

    async def coming() -> None:
        async with database.snapshot() as connection:
            spec = await load_pool(connection, ledger.pool, Margins())
            now = await clock(connection)
            assert "p-sane" in {each.id for each in await purchases_under_way(connection, spec)}
            await read_standing(connection, spec, now)
            await read_scene(connection, "b-sane", now, Margins())

    async def reconcile() -> None:
        await observe(database, ledger.temporal, ReconcileRequest(), timedelta(seconds=12))
        async with database.snapshot() as connection:
            await compare(database, [], await clock(connection))

    async def lists() -> None:
        assert "p-sane" in {each.id for each in await views.purchases(with_ended=True)}
        blocks = [each.id for each in await views.blocks(with_ended=True)]
        assert "b-sane" in {each.id for each in await details.blocks(blocks)}
        for name, *_ in SCENES:
            await details.purchase(f"p-{name}")
            await BlockEndViews(database).of_block(f"b-{name}")
        for by in ("pool", "tenant", "job", "block"):
            await views.costs(by)

    async def jobs() -> None:
        await Views(database).jobs(pool=ledger.pool)
        await Views(database).nodes(pool=ledger.pool)
        await BuyingReasons(database).blocks_of_job("running")
        await BuyingReasons(database).cost_of_job("running")
        await BlockWakeups(database, Signals(ledger.temporal)).after_cycle(ledger.pool)

    async def doctor() -> None:
        await buying.purchases(database)

    looks = (decide, coming, reconcile, lists, jobs, doctor)
    return {look.__name__: look for look in looks}


async def _is_written(ledger: Ledger, table: str, column: str, kind: str, value: str) -> bool:
    """Write a value into a column of all rows but those of the purchase that stays as it was,
    unless the database refuses it; return whether it took it."""
    new = f"CAST(:value AS {kind})"
    if value.startswith('{"'):
        new = f"{column} || {new}"
    try:
        await ledger.rows(
            f"UPDATE {table} SET {column} = {new} WHERE {KEYS[table]} NOT LIKE '%-sane'",
            value=value,
        )
    except DBAPIError:
        return False
    return True


async def _fill(ledger: Ledger) -> None:
    """Give the pool a job that waits and one that runs, and what was bought in several states."""
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=BuyingPolicy(enabled=True)))
    await ledger.register("m-by-use", gpus=2)
    await ledger.enqueue("running", gpus=2, expected_duration="100h")
    await ledger.place("running", gpus=(0, 1), node="m-by-use")
    await ledger.rows("DELETE FROM queue WHERE job_id = 'running'")
    await ledger.enqueue("waits", gpus=2, expected_duration="10m")
    request = PurchaseRequest(pool=ledger.pool, options=(block_option(),), nodes=2)
    for scene in SCENES:
        names = ("name", "purchase", "buying", "by_use", "block", "machine")
        values: dict[str, Any] = {
            **dict(zip(names, scene, strict=True)), "pool": ledger.pool,
            "request": request.model_dump_json(), "order": ORDER, "serves": SERVES, "kept": KEPT,
        }  # fmt: skip
        for statement in _BUY:
            await ledger.rows(statement, **values)
    await ledger.rows("UPDATE nodes SET block_id = 'b-by-use'")
    await ledger.rows(_SELL, order=ORDER)
    await ledger.rows("INSERT INTO market_refusals VALUES ('prime', 'no money', 1, now())")


ORDER = '{"limit": 2500000, "nodes": 2, "instance_type": "8xH100"}'
SERVES = '{"serves": ["waits"], "reason": "buy", "rule": "forecast", "options": []}'
KEPT = '{"kind": "keep", "reason": "it is used", "at": "2026-11-20T12:00:00Z"}'
_BUY = (
    """
    INSERT INTO purchases (id, pool, tenant, tier, state, request, decision, planned, committed,
                           buying)
    VALUES ('p-' || :name, :pool, 'default', 'FAST', :purchase, CAST(:request AS jsonb),
            CAST(:serves AS jsonb), 9000000, 9000000, :buying)""",
    """
    INSERT INTO orders (key, purchase_id, number, option, provider, request, is_machine,
                                 gpus_per_node, committed, nodes, state, starts_at, ends_at)
    VALUES ('b-' || :name, 'p-' || :name, 1, 0, 'own', CAST(:order AS jsonb), :by_use, 8, 1, 2,
            'PLACED', now(), now() + interval '5 hours')""",
    """
    INSERT INTO blocks (id, provider, instance_type, tier, starts_at, ends_at, nodes,
                        price_micro_per_gpu_hour, purchase_id, pool, state, decision, ended_at)
    VALUES ('b-' || :name, 'own', '8xH100', 'FAST', now() - interval '1 hour',
            now() + interval '5 hours', 2, 1000000, 'p-' || :name, :pool, :block,
            CAST(:kept AS jsonb), CASE WHEN :block = 'ENDED' THEN now() END)""",
    """
    INSERT INTO machines (name, purchase_id, block_id, provider, state, asked_at, ended_at)
    VALUES ('m-' || :name, 'p-' || :name, 'b-' || :name, 'own', :machine, now(),
            CASE WHEN :machine = 'ENDED' THEN now() END)""",
    """
    INSERT INTO ledger (kind, debit, credit, micro, purchase_id, block_id, reference, simulated)
    VALUES ('purchase', 'block:b-' || :name, 'market:own', 5000000, 'p-' || :name, 'b-' || :name,
            'cost/' || :name, false)""",
)
_SELL = """
    INSERT INTO orders (key, side, block_id, number, machine, provider, starts_at, ends_at,
                        request, state, is_machine, committed)
    VALUES ('s-let-go', 'sell', 'b-let-go', 1, 'm-let-go', 'own', now(), now() + interval '1 hour',
            CAST(:order AS jsonb), 'SOLD', false, 0)
"""
