"""Settings of a pool that an earlier version took, beyond the bounds of this one."""

import json

import pytest

from longshore.activities.snapshot import load_pool
from longshore.activities.views import Views, set_pool
from longshore.models.errors import SpecError
from longshore.models.pool import LEAST_INTERVAL, PoolSpec
from tests.support.ledger import Ledger

SELLERS = tuple(f"seller-{number}" for number in range(1_500))


async def test_they_go_on_as_they_are_and_are_not_taken_anew(ledger: Ledger):
    stored = {"name": ledger.pool, "buying": {"sellers": {"include": SELLERS}}}
    await ledger.rows(
        "INSERT INTO pools (name, spec) VALUES (:name, CAST(:spec AS jsonb))"
        " ON CONFLICT (name) DO UPDATE SET spec = excluded.spec",
        name=ledger.pool, spec=json.dumps(stored),
    )  # fmt: skip
    (shown,) = await Views(ledger.database).pools()
    async with ledger.database.transaction() as connection:
        loaded = await load_pool(connection, ledger.pool)
    assert shown.spec.buying.sellers.include == loaded.buying.sellers.include == SELLERS
    async with ledger.listening("a"):
        await ledger.register()
        await ledger.enqueue("a")
        assert (await ledger.cycle("one")).placed == 1
    for again in (shown.spec, loaded, shown.spec.model_copy(update={"name": "another"})):
        with pytest.raises(SpecError, match=r"sellers.include: has 1,500 entries; 1,000 is the"):
            await _set(ledger, again)
    await _set(ledger, PoolSpec(name=ledger.pool))
    (shown,) = await Views(ledger.database).pools()
    assert shown.spec == PoolSpec(name=ledger.pool)


async def test_a_pool_that_an_earlier_version_gave_no_interval_plans_its_queue(ledger: Ledger):
    await ledger.rows(
        "INSERT INTO pools (name, spec) VALUES (:name, CAST(:spec AS jsonb))"
        " ON CONFLICT (name) DO UPDATE SET spec = excluded.spec",
        name=ledger.pool, spec=json.dumps({"name": ledger.pool, "interval": "0s"}),
    )  # fmt: skip
    await ledger.enqueue("a")
    assert (await ledger.cycle("one")).next_wake == LEAST_INTERVAL


async def _set(ledger: Ledger, spec: PoolSpec) -> None:
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec)
