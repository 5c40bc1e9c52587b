"""Rows of tenants, envelopes, caps and charges, with all that the database lets somebody write
into them by hand: cycles, and what shows budgets, go on for everybody else."""

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.cycle import CycleActivities
from longshore.activities.funding.hours import load_hours
from longshore.activities.funding.views import budgets_view, tenants_view
from longshore.activities.signals import Signals
from longshore.models.money import MOST
from tests.activities.test_damaged_rows import ABSURD, COLUMNS, is_written, some_of
from tests.support.funding import cap, envelope, tenant
from tests.support.ledger import Ledger

VALUES = {
    **ABSURD,
    "_text": ("{}", "{NULL}", "{x}", '{"*"}'),
    "bool": ("true", "false"),
    "jsonb": (*ABSURD["jsonb"], '{"gpus": -1}', '{"gpus": "x"}', '{"x": ["y"]}', "7"),
    "text": ("", "x", "\u202e"),
}
DAMAGED = {
    "charges": "job_id = 'its'",
    "envelopes": "tenant = 'broken'",
    "funding_caps": "tenant = 'broken'",
    "tenants": "name = 'broken'",
}
JOBS = ("its", "waits", "sane", "first", "own")


@pytest.mark.parametrize(
    "all_values", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
@pytest.mark.parametrize("table", DAMAGED)
async def test_no_value_that_the_database_takes_stops_others(
    ledger: Ledger, table: str, all_values: bool
):
    await _fill(ledger)
    if table == "charges":  # the database rewrites none: here it is as if it were new
        await ledger.rows("ALTER TABLE charges DISABLE TRIGGER USER")
    where, number = DAMAGED[table], 0
    columns = await ledger.rows(COLUMNS, table=table)
    async with ledger.listening(*JOBS):
        for place, (column, kind) in enumerate((each["name"], each["kind"]) for each in columns):
            values = VALUES.get(kind, ())
            for value in values if all_values else some_of(values, place):
                was = await ledger.value(
                    f"SELECT CAST({column} AS text) FROM {table} WHERE {where} LIMIT 1"
                )
                if not await is_written(ledger, table, where, column, kind, value):
                    continue
                number += 1
                try:
                    await _is_looked_at(ledger, f"{number}")
                except Exception as error:
                    raise AssertionError(f"{table}.{column} = {value}: {error!r}") from error
                assert await is_written(ledger, table, where, column, kind, was)
    assert number


@pytest.mark.parametrize("stored", ["null", "[1]", '{"x": ["y"]}', '{"x": 7}', '{"x": null}'])
async def test_labels_of_an_envelope_are_texts(ledger: Ledger, stored: str):
    """A list, which is no key of a dictionary, ended the cycles of all pools."""
    await _fill(ledger)
    change = "UPDATE envelopes SET labels = CAST(:to AS jsonb)"
    with pytest.raises(IntegrityError, match="envelopes_labels_are_texts"):
        await ledger.rows(change, to=stored)
    await ledger.rows(change, to='{"x": "y"}')


@pytest.mark.parametrize("column", ["money_per_day", "money_per_month"])
async def test_the_money_of_a_budget_is_bounded(ledger: Ledger, column: str):
    await _fill(ledger)
    with pytest.raises(IntegrityError, match="tenants_money_in_bounds"):
        await ledger.rows(f"UPDATE tenants SET {column} = {MOST + 1}")
    await ledger.rows(f"UPDATE tenants SET {column} = {MOST}")


async def _is_looked_at(ledger: Ledger, cycle: str) -> None:
    """Plan all anew, and show the budgets; a job of another tenant is decided on."""
    await ledger.rows("UPDATE queue SET decision = NULL WHERE job_id = 'own'")
    ledger.cycles = CycleActivities(ledger.database, Signals(ledger.temporal))
    await ledger.cycle(cycle)
    assert await ledger.value("SELECT decision IS NOT NULL FROM queue WHERE job_id = 'own'")
    async with ledger.database.snapshot() as connection:
        await tenants_view(connection)
        await budgets_view(connection)
        await load_hours(connection)


async def _fill(ledger: Ledger) -> None:
    """Give the pool tenants with budgets, one of whose rows are damaged, and jobs of both."""
    await ledger.register("node-a", gpus=8)
    for name in ("root", "broken", "sane"):
        await tenant(ledger, name, None if name == "root" else "root")
    its = await envelope(ledger, "broken", milli=4000)
    await envelope(ledger, "sane", milli=4000)
    await cap(ledger, "broken", 3000, its)
    asks: dict[str, Any] = {"gpus": 2, "expected_duration": "100h"}
    await ledger.enqueue("its", tenant="broken", **asks)
    await ledger.enqueue("first", tenant="sane", **asks)
    async with ledger.listening("its", "first"):
        assert (await ledger.cycle("before")).placed == 2
    asks["gpus"] = 6
    await ledger.enqueue("waits", tenant="broken", **asks)
    await ledger.enqueue("own", tenant="sane", **asks)
