"""Watches run while there is something to watch, and rest otherwise."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client, ScheduleState

from longshore.activities.database import Database
from longshore.activities.schedules import RESTS, Schedules
from longshore.client.api import Longshore
from longshore.models.settings import MarketInfo, Settings
from longshore.workers.schedules import (
    CHECKPOINT_WATCH,
    MARKET_WATCH,
    Recurring,
    ensure_schedule,
    keep_watches_awake,
)
from tests.support.control import a_spec
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

SELDOM = timedelta(days=9)


@asynccontextmanager
async def scheduled(temporal: Client, recurring: Recurring) -> AsyncIterator[None]:
    """Make a schedule that runs when the test says so."""
    await ensure_schedule(temporal, recurring, SELDOM)
    yield
    await temporal.get_schedule_handle(recurring.schedule).delete()


async def test_the_markets_are_not_watched_where_there_is_none(
    settings: Settings, control: Database, temporal: Client
):
    async with scheduled(temporal, MARKET_WATCH):
        schedule = temporal.get_schedule_handle(MARKET_WATCH.schedule)
        await schedule.trigger()
        await eventually(lambda: _rests(temporal, MARKET_WATCH))
        said = await ensure_schedule(temporal, MARKET_WATCH, SELDOM)
        assert said.endswith("; it rests until there is something to watch")
        await Schedules(temporal).wake(MARKET_WATCH.schedule)  # as a control worker that starts
        await eventually(lambda: _goes_on(temporal, MARKET_WATCH))


async def test_the_markets_are_watched_once_a_simulated_one_has_started(
    settings: Settings, control: Database, temporal: Client
):
    often = settings.model_copy(
        update={"market": "simulated", "market_watch_every": timedelta(milliseconds=100)}
    )
    async with scheduled(temporal, MARKET_WATCH):
        awake = asyncio.create_task(keep_watches_awake(temporal, often))
        try:
            await temporal.get_schedule_handle(MARKET_WATCH.schedule).trigger()
            await eventually(lambda: _rests(temporal, MARKET_WATCH))
            info = MarketInfo(url="http://127.0.0.1:9", token="none", pid=os.getpid())
            often.market_file.write_text(info.model_dump_json())
            await eventually(lambda: _goes_on(temporal, MARKET_WATCH))
        finally:
            awake.cancel()
            often.market_file.unlink(missing_ok=True)


async def test_unsaved_work_is_watched_while_a_job_keeps_checkpoints(
    settings: Settings, control: Database, temporal: Client, node: ScriptedNode,
    longshore: Longshore,
):  # fmt: skip
    async with scheduled(temporal, CHECKPOINT_WATCH):
        schedule = temporal.get_schedule_handle(CHECKPOINT_WATCH.schedule)
        await schedule.trigger()
        await eventually(lambda: _rests(temporal, CHECKPOINT_WATCH))

        plain = (await longshore.submit(a_spec(node.pool))).job_id
        await node.started(plain)
        assert await _rests(temporal, CHECKPOINT_WATCH)
        await node.end(plain)

        saves = a_spec(node.pool, checkpoint={"folder": "saved", "save_file": True})
        saving = (await longshore.submit(saves)).job_id
        await node.started(saving)
        await eventually(lambda: _goes_on(temporal, CHECKPOINT_WATCH))
        await schedule.trigger()
        assert await _goes_on(temporal, CHECKPOINT_WATCH)
        await node.end(saving)
        await longshore.wait(saving)
        await eventually(lambda: _rests_after_a_look(temporal, CHECKPOINT_WATCH))


async def test_a_pause_of_somebody_else_is_left_alone(
    settings: Settings, control: Database, temporal: Client
):
    async with scheduled(temporal, MARKET_WATCH):
        schedules = Schedules(temporal)
        await temporal.get_schedule_handle(MARKET_WATCH.schedule).pause(note="a day off")
        await eventually(lambda: _is_paused(temporal, MARKET_WATCH))
        assert not await schedules.rest(MARKET_WATCH.schedule)
        await schedules.wake(MARKET_WATCH.schedule)
        state = await _state(temporal, MARKET_WATCH)
        assert (state.paused, state.note) == (True, "a day off")
        assert not await schedules.rest("not-there")


async def _state(temporal: Client, recurring: Recurring) -> ScheduleState:
    return (await temporal.get_schedule_handle(recurring.schedule).describe()).schedule.state


async def _is_paused(temporal: Client, recurring: Recurring) -> bool:
    return (await _state(temporal, recurring)).paused


async def _rests(temporal: Client, recurring: Recurring) -> bool:
    state = await _state(temporal, recurring)
    return state.paused and state.note == RESTS


async def _rests_after_a_look(temporal: Client, recurring: Recurring) -> bool:
    """Ask for a look, and again: one is left out while the one before it is under way."""
    await temporal.get_schedule_handle(recurring.schedule).trigger()
    return await _rests(temporal, recurring)


async def _goes_on(temporal: Client, recurring: Recurring) -> bool:
    return not await _is_paused(temporal, recurring)
