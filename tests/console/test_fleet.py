"""What the pages of nodes and jobs read while Temporal is away, and when it is back."""

import asyncio

import pytest
from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.console.fleet import Fleet
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.control import a_spec, new_pool, reaches, serving_control
from tests.support.relay import Relay
from tests.support.waiting import eventually


async def test_a_job_shows_without_temporal_and_with_it_again(
    monkeypatch: pytest.MonkeyPatch, temporal: Client, settings: Settings, stack: Stack
):
    relay = Relay(stack.temporal.address)
    await relay.open()
    monkeypatch.setenv("TEMPORAL_ADDRESS", relay.address)
    longshore, fleet = Longshore(temporal, settings), Fleet(settings)
    try:
        async with serving_control(temporal, settings):
            relay.cut()
            job_id = (await longshore.submit(a_spec(new_pool()))).job_id
            await reaches(longshore, job_id, JobState.QUEUED)
            report = await fleet.report(job_id)
            assert (report.job.state, report.status) == (JobState.QUEUED, None)
            assert "Temporal" in report.missing[0]

            await relay.open()
            assert await eventually(lambda: says(fleet, job_id))

            relay.cut()
            assert await eventually(lambda: is_silent(fleet, job_id))
            await relay.open()
            assert await eventually(lambda: says(fleet, job_id))
            await longshore.cancel(job_id)
    finally:
        await fleet.close()
        await longshore.close()
        await relay.close()


async def test_many_who_look_are_one_question(settings: Settings):
    fleet = Fleet(settings)
    first, *others = await asyncio.gather(*(fleet.pools() for _ in range(20)))
    assert all(each is first for each in others)
    await fleet.close()


def test_without_a_web_ui_there_is_no_link(monkeypatch: pytest.MonkeyPatch, settings: Settings):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example.com:7233")
    assert Fleet(settings).workflow_url("train-1") is None
    known = settings.model_copy(update={"temporal_ui": "https://ui.example.com/"})
    where = "https://ui.example.com/namespaces/default/workflows/job-train-1"
    assert Fleet(known).workflow_url("train-1") == where


async def says(fleet: Fleet, job_id: str) -> bool:
    """Return whether the job's workflow is heard."""
    report = await fleet.report(job_id)
    return report.status is not None and not report.missing


async def is_silent(fleet: Fleet, job_id: str) -> bool:
    report = await fleet.report(job_id)
    return report.status is None and bool(report.missing)
