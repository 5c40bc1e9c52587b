"""`longshore setup` on bare servers, the schedule that it makes, and `longshore reconcile`."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleOverlapPolicy,
)

from longshore.activities.database import Database
from longshore.activities.migrations import current_revision
from longshore.activities.revisions import newest_revision
from longshore.client.api import Longshore
from longshore.client.payloads import data_converter
from longshore.client.reconcile import reconcile
from longshore.models.checkpointing import CHECKPOINT_WATCH_SCHEDULE
from longshore.models.job_status import JobState
from longshore.models.market_memory import MARKET_WATCH_SCHEDULE, MarketWatchReport
from longshore.models.messages import job_workflow_id
from longshore.models.reconcile import RECONCILE_SCHEDULE, ReconcileReport, ReconcileRequest
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.models.settings import Settings
from longshore.workers.schedules import (
    MARKET_WATCH,
    RECONCILE,
    Recurring,
    ensure_schedule,
    is_as,
    schedule_of,
)
from tests.support.control import a_spec, new_pool, reaches, serving_control
from tests.support.home import PROGRAM
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


@pytest.fixture
def bare() -> Iterator[Settings]:
    """Settings of servers that hold nothing of ours yet; 2 s."""
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), search_attributes={}) as stack,
    ):
        yield stack.settings


@pytest.fixture
async def schedule(temporal: Client) -> AsyncIterator[Recurring]:
    """The schedule of reconcile, under a name that no other test has."""
    own = replace(RECONCILE, schedule=f"{RECONCILE.schedule}-{uuid4().hex[:8]}")
    await ensure_schedule(temporal, own, timedelta(minutes=5))
    yield own
    await temporal.get_schedule_handle(own.schedule).delete()


async def test_setup_prepares_bare_servers_and_says_what_it_did(bare: Settings):
    url = bare.resolve_database_url()
    assert current_revision(url) is None
    first = (await _longshore(bare, "setup")).stdout.splitlines()
    assert first == [
        f"the database was brought from nothing to revision {newest_revision()}",
        f"search attributes were added: {', '.join(SEARCH_ATTRIBUTES)}",
        f"reconcile runs every 5m: the schedule {RECONCILE_SCHEDULE} was made",
        f"the watch of the markets runs every 1m: the schedule {MARKET_WATCH_SCHEDULE} was made",
        "the watch of unsaved work runs every 1m: "
        f"the schedule {CHECKPOINT_WATCH_SCHEDULE} was made",
    ]
    again = (await _longshore(bare, "setup")).stdout.splitlines()
    assert again == [
        f"the database was already at revision {newest_revision()}",
        f"all {len(SEARCH_ATTRIBUTES)} search attributes were there",
        "reconcile runs every 5m",
        "the watch of the markets runs every 1m",
        "the watch of unsaved work runs every 1m",
    ]
    # No control worker has ever run here.
    done = await _longshore(bare, "reconcile")
    assert done.returncode == 69
    assert "No control worker is running" in done.stderr
    temporal = await Client.connect(bare.stack().temporal_address, data_converter=data_converter)
    async with serving_control(temporal, bare):
        await _is_found_by_its_attributes(temporal, bare)


async def _is_found_by_its_attributes(temporal: Client, settings: Settings) -> None:
    longshore, pool = Longshore(temporal, settings), new_pool()
    job_id = (await longshore.submit(a_spec(pool))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    query = f"Pool = '{pool}' AND JobState = 'QUEUED'"

    async def found() -> list[str]:
        return [flow.id async for flow in temporal.list_workflows(query)]

    assert await eventually(found) == [job_workflow_id(job_id)]
    await longshore.cancel(job_id)
    await longshore.wait(job_id)
    await longshore.close()


async def test_the_schedule_skips_what_overlaps_and_follows_the_setting(
    temporal: Client, schedule: Recurring
):
    handle = temporal.get_schedule_handle(schedule.schedule)
    said = await ensure_schedule(temporal, schedule, timedelta(minutes=7))
    assert said == f"reconcile runs every 7m; the schedule {schedule.schedule} was changed"
    await handle.pause(note="by the test")

    # The server carries out what a schedule is asked for when it comes to it.
    async def is_changed_and_paused() -> bool:
        found = (await handle.describe()).schedule
        return found.state.paused and found.spec.intervals[0].every == timedelta(minutes=7)

    await eventually(is_changed_and_paused)
    said = await ensure_schedule(temporal, schedule, timedelta(minutes=7))
    assert said == "reconcile runs every 7m; it is paused, and stays so"
    found = (await handle.describe()).schedule
    assert found.spec.jitter == timedelta(seconds=42)
    assert found.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert found.state.paused


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


async def test_the_schedule_runs_reconcile(
    control: Database, temporal: Client, schedule: Recurring
):
    workflow_id = await _triggered(temporal, schedule.schedule)
    handle = temporal.get_workflow_handle(workflow_id, result_type=ReconcileReport)
    assert (await handle.result()).settled


async def test_the_schedule_of_the_markets_runs_a_look(
    settings: Settings, control: Database, temporal: Client
):
    watch = replace(MARKET_WATCH, schedule=f"{MARKET_WATCH_SCHEDULE}-{uuid4().hex[:8]}")
    said = await ensure_schedule(temporal, watch, settings.market_watch_every)
    assert (
        said == f"the watch of the markets runs every 1m: the schedule {watch.schedule} was made"
    )
    workflow_id = await _triggered(temporal, watch.schedule)
    await temporal.get_schedule_handle(watch.schedule).delete()
    handle = temporal.get_workflow_handle(workflow_id, result_type=MarketWatchReport)
    assert await handle.result() == MarketWatchReport()  # no market is configured


@pytest.mark.exhaustive
async def test_reconcile_says_that_all_agree(settings: Settings, control: Database):
    done = await _longshore(settings, "reconcile")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("All agree (open jobs: 0, ")


@pytest.mark.exhaustive
async def test_reconcile_says_what_has_ended_too_recently_and_when_to_run_it_again(
    longshore: Longshore, settings: Settings, control: Database, temporal: Client, pool: str
):
    job_id = (await longshore.submit(a_spec(pool, gpus=64))).job_id
    await reaches(longshore, job_id, JobState.QUEUED)
    job = temporal.get_workflow_handle(job_workflow_id(job_id))
    await job.terminate()
    closed_at = (await job.describe()).close_time
    assert closed_at
    again_at = closed_at + ReconcileRequest().margin

    async def told() -> bool:
        """A list of Temporal's may lag."""
        done = await _longshore(settings, "reconcile")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) == 3, lines
        assert lines[0].startswith(f"wait    job {job_id}: its workflow has ended (its workflow ")
        assert lines[0].endswith(", and nobody recorded that")
        assert lines[2].startswith("All else agrees (open jobs: 1, ")
        return lines[1] == (
            "Too recent to be judged: 1. Run it again after "
            f"{again_at + timedelta(seconds=1):%H:%M:%S} UTC."
        )

    await eventually(told)
    report = json.loads((await _longshore(settings, "reconcile", "--json")).stdout)
    assert report["too_recent"] == 1
    (waits,) = report["not_judged"]
    assert (waits["subject"], datetime.fromisoformat(waits["after"])) == (
        f"job {job_id}", again_at,
    )  # fmt: skip
    assert datetime.fromisoformat(report["again_at"]) == again_at
    at_once = ReconcileRequest(margin=timedelta(0), second_look=timedelta(0))
    report = await reconcile(longshore, at_once)
    assert (report.too_recent, report.again_at, len(report.findings)) == (0, None, 1)
    assert report.settled


@pytest.mark.exhaustive
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
        f"look    node {node.id}: cpu_milli_used counts 5, and 0 are held (ledger-differs)"
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
