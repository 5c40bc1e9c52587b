"""A machine whose clock is wrong: `longshore doctor` says that, and nothing else for it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.pollers import POLL_SEEN_WITHIN, server_time
from longshore.client import control_worker
from longshore.client.deployments import Deployments
from longshore.client.payloads import data_converter
from longshore.workers import control_health
from longshore.workers.control_health import ControlHealth
from longshore.workers.doctor import temporal as checks
from longshore.workers.doctor.findings import Level
from longshore.workers.health import OK
from tests.support.plant import Plant
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
async def temporal(plant: Plant, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of the plant's server, whose clock is an hour away from this machine's."""
    client = await Client.connect(plant.stack.temporal.address, data_converter=data_converter)
    describe = client.workflow_service.describe_task_queue

    async def by_another_clock(*given: Any, **named: Any) -> DescribeTaskQueueResponse:
        reply = await describe(*given, **named)
        for poller in reply.pollers:
            poller.last_access_time.FromDatetime(
                poller.last_access_time.ToDatetime() + request.param
            )
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.workflow_service, "describe_task_queue", by_another_clock)
        yield client


@pytest.fixture
async def database(plant: Plant) -> AsyncIterator[Database]:
    database = Database(plant.stack.postgres.url())
    yield database
    await database.close()


async def test_the_doctor_says_that_the_clock_is_wrong_and_that_all_ask_for_work(
    temporal: Client, database: Database
):
    (clock,) = await checks.checks(temporal)["temporal clock"]()
    assert clock.level is Level.FAIL
    assert clock.says.startswith(
        ("the clock of Temporal is 3600 s", "the clock of Temporal is 35")
    )

    async def all_ask() -> bool:
        """A worker that a busy machine holds up may answer later."""
        (control,) = await checks.checks(temporal)["control worker"]()
        assert "nobody asks" not in control.says
        return control.level is Level.OK

    await eventually(all_ask)
    agents = await checks.checks_of_nodes(temporal, database)["agents"]()
    assert not [each.says for each in agents if "asks for no work" in each.says]
    assert (await Deployments(temporal, "none").status()).unversioned_workers == 1


async def test_who_asked_long_ago_by_the_server_s_clock_is_missing(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    """Whatever this machine's clock says."""

    async def later(temporal: Client) -> datetime:
        now = await server_time(temporal)
        assert now is not None
        return now + POLL_SEEN_WITHIN

    monkeypatch.setattr(control_worker, "poll_time", later)
    assert (await control_worker.who_asks(temporal)).missing == ("workflows", "activities")


async def test_a_worker_is_well_whatever_its_clock_says_until_its_last_poll_is_long_ago(
    database: Database, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    temporal = await Client.connect(plant.stack.temporal.address, identity="own")
    polled_at, since_boot = datetime.now(UTC) - HOUR, 1000.0

    async def seen(*given: Any, **named: Any) -> dict[str, datetime]:
        return {"own": polled_at}

    monkeypatch.setattr(control_health, "last_polls", seen)
    monkeypatch.setattr(control_health, "boot_clock", lambda: since_boot)
    monkeypatch.setattr(control_health, "CHECK_EVERY", 0.01)
    health = ControlHealth(temporal, database)
    checking = asyncio.create_task(health.keep_checking())
    try:
        await eventually(lambda: health.parts()["worker"] == OK)
        since_boot += POLL_SEEN_WITHIN.total_seconds()
        await eventually(lambda: "does not poll" in health.parts()["worker"])
        polled_at += timedelta(minutes=1)
        await eventually(lambda: health.parts()["worker"] == OK)
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
