"""`longshore setup` on bare servers, the schedule that it makes, and `longshore reconcile`."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleOverlapPolicy,
)

from activities.database import Database, current_revision, newest_revision
from client.api import Longshore
from models.checkpointing import CHECKPOINT_WATCH_SCHEDULE
from models.job import JobState
from models.market_memory import MARKET_WATCH_SCHEDULE, MarketWatchReport
from models.messages import job_workflow_id
from models.reconcile import RECONCILE_SCHEDULE, ReconcileReport, ReconcileRequest
from models.search import SEARCH_ATTRIBUTES
from models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.home import PROGRAM
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually
from workers.schedules import (
    MARKET_WATCH,
    RECONCILE,
    Recurring,
    ensure_schedule,
    is_as,
    schedule_of,
)


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Settings of servers that hold nothing of ours yet."""
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), search_attributes={}) as stack,
    ):
        yield stack.settings


async def test_setup_prepares_bare_servers_and_says_what_it_did(
    settings: Settings, temporal: Client
):
    url = settings.resolve_database_url()
    assert current_revision(url) is None
    first = (await _longshore(settings, "setup")).stdout.splitlines()
    assert first == [
        f"the database was brought from nothing to revision {newest_revision()}",
        f"search attributes were added: {', '.join(SEARCH_ATTRIBUTES)}",
        f"reconcile runs every 5m: the schedule {RECONCILE_SCHEDULE} was made",
        f"the watch of the markets runs every 1m: the schedule {MARKET_WATCH_SCHEDULE} was made",
        "the watch of unsaved work runs every 1m: "
        f"the schedule {CHECKPOINT_WATCH_SCHEDULE} was made",
    ]
    again = (await _longshore(settings, "setup")).stdout.splitlines()
    assert again == [
        f"the database was already at revision {newest_revision()}",
        f"all {len(SEARCH_ATTRIBUTES)} search attributes were there",
        "reconcile runs every 5m",
        "the watch of the markets runs every 1m",
        "the watch of unsaved work runs every 1m",
    ]


async def test_reconcile_without_a_control_worker_says_so(settings: Settings):
    done = await _longshore(settings, "reconcile")
    assert done.returncode == 69
    assert "No control worker is running" in done.stderr


async def test_a_job_can_be_found_by_its_attributes_after_setup(
    longshore: Longshore, control: Database, pool: str, temporal: Client
):
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    query = f"Pool = '{pool}' AND JobState = 'QUEUED'"

    async def found() -> list[str]:
        return [flow.id async for flow in temporal.list_workflows(query)]

    assert await eventually(found) == [job_workflow_id(job_id)]
    await longshore.cancel(job_id)
    await longshore.wait(job_id)


async def test_the_schedule_skips_what_overlaps_and_follows_the_setting(temporal: Client):
    schedule = temporal.get_schedule_handle(RECONCILE_SCHEDULE)
    said = await ensure_schedule(temporal, RECONCILE, timedelta(minutes=7))
    assert said == f"reconcile runs every 7m; the schedule {RECONCILE_SCHEDULE} was changed"
    await schedule.pause(note="by the test")

    async def is_paused() -> bool:
        return (await schedule.describe()).schedule.state.paused

    await eventually(is_paused)
    said = await ensure_schedule(temporal, RECONCILE, timedelta(minutes=7))
    assert said == "reconcile runs every 7m; it is paused, and stays so"
    found = (await schedule.describe()).schedule
    assert found.spec.intervals[0].every == timedelta(minutes=7)
    assert found.spec.jitter == timedelta(seconds=42)
    assert found.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert found.state.paused
    await schedule.unpause()


@pytest.mark.parametrize("recurring", [RECONCILE, MARKET_WATCH])
async def test_a_schedule_that_is_as_it_should_be_is_known(temporal: Client, recurring: Recurring):
    recurring = replace(recurring, schedule=f"{recurring.schedule}-of-a-test")
    every = timedelta(days=9)
    await ensure_schedule(temporal, recurring, every)
    schedule = temporal.get_schedule_handle(recurring.schedule)
    found = (await schedule.describe()).schedule
    await schedule.delete()
    assert await is_as(temporal, found, schedule_of(recurring, every))
    assert not await is_as(temporal, found, schedule_of(recurring, timedelta(days=8)))
    other = replace(recurring, arguments=(ReconcileRequest(dry_run=True),))
    assert not await is_as(temporal, found, schedule_of(other, every))


async def test_the_schedule_runs_reconcile(control: Database, temporal: Client):
    workflow_id = await _triggered(temporal, RECONCILE_SCHEDULE)
    handle = temporal.get_workflow_handle(workflow_id, result_type=ReconcileReport)
    assert (await handle.result()).settled


async def test_the_schedule_of_the_markets_runs_a_look(
    settings: Settings, control: Database, temporal: Client
):
    said = await ensure_schedule(temporal, MARKET_WATCH, settings.market_watch_every)
    assert said == "the watch of the markets runs every 1m"
    workflow_id = await _triggered(temporal, MARKET_WATCH_SCHEDULE)
    handle = temporal.get_workflow_handle(workflow_id, result_type=MarketWatchReport)
    assert await handle.result() == MarketWatchReport()  # no market is configured


async def test_reconcile_says_that_all_agree(settings: Settings, control: Database):
    done = await _longshore(settings, "reconcile")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("All agree (open jobs: 0, ")


async def test_reconcile_ends_with_1_where_a_person_must_look(
    settings: Settings, control: Database, node: ScriptedNode
):
    async with control.transaction() as connection:
        await connection.execute(text("UPDATE nodes SET cpu_milli_used = 5"))
    done = await _longshore(settings, "reconcile", "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["kind"], finding["mended"]) == ("ledger-differs", False)
    shown = await _longshore(settings, "reconcile", "--dry-run")
    assert shown.returncode == 1
    assert shown.stdout.splitlines()[0] == (
        f"look    node {node.id}: cpu_milli_used counts 5, and 0 are held"
    )
    async with control.transaction() as connection:
        await connection.execute(text("UPDATE nodes SET cpu_milli_used = 0"))


async def _triggered(temporal: Client, schedule_id: str) -> str:
    """Have a schedule run now; return the id of a workflow that it has started."""
    schedule = temporal.get_schedule_handle(schedule_id)
    await schedule.trigger()

    async def started() -> str | None:
        for result in (await schedule.describe()).info.recent_actions:
            assert isinstance(result.action, ScheduleActionExecutionStartWorkflow)
            return result.action.workflow_id
        return None

    return await eventually(started) or ""


async def _longshore(settings: Settings, *args: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [PROGRAM, *args],
        env=os.environ | {"LONGSHORE_STATE_DIR": str(settings.state_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
