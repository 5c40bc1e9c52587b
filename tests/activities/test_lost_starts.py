"""A machine whose start was never answered is looked for before it is started once more."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from longshore.activities.buying import machines
from longshore.activities.buying.machines import MachineActivities
from longshore.activities.providers import registry
from longshore.models.errors import CredentialsError, InvalidOrderError, MarketAwayError
from longshore.models.market import Machine, MachineRequest, MachineState
from longshore.models.purchase import MachineStart
from longshore.models.settings import Settings
from tests.activities.test_startup_failures import BLOCK, Failing, failing
from tests.support.ledger import Ledger

__all__ = ["failing"]
NAME = f"{BLOCK}.m9"
LAG = 3.0


class Lagging:
    """A market that loses the answer to a start, and lists what it has started after a while."""

    name = "sfcompute"

    def __init__(self, *, lags_for: int, loses: Exception) -> None:
        self.lags_for = lags_for
        self.loses: list[Exception] = [loses]
        self.started: list[Machine] = []
        self.looks = 0

    async def start_machine(self, request: MachineRequest) -> Machine:
        machine = Machine(
            provider=self.name, id=f"i-{len(self.started) + 1}", name=request.name,
            state=MachineState.STARTING, created_at=datetime.now(UTC), simulated=True,
        )  # fmt: skip
        if self.loses and not getattr(self.loses[0], "uncertain", False):
            raise self.loses.pop()
        self.started.append(machine)
        if self.loses:
            raise self.loses.pop()
        return machine

    async def machines(self) -> list[Machine]:
        self.looks += 1
        return self.started if self.looks > self.lags_for else []

    async def aclose(self) -> None:
        pass


async def _started(ledger: Ledger, market: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a machine twice, as after the first answer was lost."""
    monkeypatch.setattr(registry, "connect", lambda *_: market)
    monkeypatch.setattr(machines, "script_for", lambda *_: "#!/bin/sh")
    monkeypatch.setattr(machines, "_POLL_EVERY", timedelta(seconds=0.5))
    settings = Settings.model_validate({"market_list_lag": f"{LAG}s"})
    steps = MachineActivities(ledger.database, ledger.temporal, settings)
    start = MachineStart(block_id=BLOCK, number=9)
    if isinstance(market.loses[0], MarketAwayError):
        with pytest.raises(ApplicationError):
            await ledger.run(steps.start_machine, start)
    else:
        await ledger.run(steps.start_machine, start)
    await ledger.run(steps.start_machine, start, attempt=2)


async def _stored(ledger: Ledger) -> Any:
    return await ledger.value("SELECT machine_id FROM machines WHERE name = :name", name=NAME)


async def test_a_start_whose_answer_was_lost_is_one_although_the_list_lags(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
):
    ledger = failing.ledger
    lost = MarketAwayError("sfcompute", "the answer broke off", uncertain=True)
    market = Lagging(lags_for=2, loses=lost)
    await _started(ledger, market, monkeypatch)
    assert [each.id for each in market.started] == ["i-1"]
    assert await _stored(ledger) == "i-1"


@pytest.mark.parametrize(
    "error",
    [
        InvalidOrderError("sfcompute", "no room", status=422),
        MarketAwayError("sfcompute", "later", status=429),
    ],
)
async def test_a_start_that_was_refused_or_did_not_arrive_is_not_waited_for(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    ledger = failing.ledger
    market = Lagging(lags_for=0, loses=error)
    await _started(ledger, market, monkeypatch)
    assert (market.looks, await _stored(ledger)) == (0, "i-1")


async def test_a_look_that_is_refused_leaves_open_whether_it_was_started(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
):
    ledger = failing.ledger
    lost = MarketAwayError("sfcompute", "the answer broke off", uncertain=True)
    market = Lagging(lags_for=2, loses=lost)
    refusals = [CredentialsError("sfcompute", "the token has ended", status=401)]
    listed = market.machines

    async def machines_or_refused() -> list[Machine]:
        if refusals:
            raise refusals.pop()
        return await listed()

    monkeypatch.setattr(market, "machines", machines_or_refused)
    await _started(ledger, market, monkeypatch)  # the second try hears of the token
    assert await _stored(ledger) is None
    steps = MachineActivities(
        ledger.database, ledger.temporal, Settings.model_validate({"market_list_lag": f"{LAG}s"})
    )
    await ledger.run(steps.start_machine, MachineStart(block_id=BLOCK, number=9), attempt=3)
    assert [each.id for each in market.started] == ["i-1"]
    assert await _stored(ledger) == "i-1"


async def test_the_wait_for_a_start_ends_however_often_it_is_tried(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
):
    ledger = failing.ledger
    market: Any = Lagging(lags_for=99, loses=MarketAwayError("sfcompute", "lost", uncertain=True))
    monkeypatch.setattr(registry, "connect", lambda *_: market)
    monkeypatch.setattr(machines, "script_for", lambda *_: "#!/bin/sh")
    settings = Settings(market_list_lag=timedelta(hours=1))
    steps = MachineActivities(ledger.database, ledger.temporal, settings)
    start = MachineStart(block_id=BLOCK, number=9)
    with pytest.raises(ApplicationError):
        await ledger.run(steps.start_machine, start)
    with pytest.raises(TimeoutError):  # an attempt ends before the list can be believed
        async with asyncio.timeout(2):
            await ledger.run(steps.start_machine, start, attempt=2)
    assert market.looks == 1
    await ledger.rows("UPDATE machines SET asked_at = asked_at - interval '1 hour'")
    async with asyncio.timeout(20):
        await ledger.run(steps.start_machine, start, attempt=3)
    assert [each.id for each in market.started] == ["i-1", "i-2"]
    fresh = await ledger.value(
        "SELECT asked_at > now() - interval '1 minute' FROM machines WHERE name = :name", name=NAME
    )
    assert fresh
