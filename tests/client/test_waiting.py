"""Waiting for a job while the server goes away and comes back."""

import asyncio

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from client.api import Longshore
from models.job import JobState
from models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.relay import relay_to
from tests.support.waiting import eventually


async def test_who_waits_hears_once_that_the_server_is_away_and_once_that_it_is_back(
    temporal: Client, settings: Settings, control: None, pool: str
) -> None:
    away: list[str] = []
    back: list[bool] = []
    async with relay_to(settings.stack().temporal_address) as relay:
        through = await Client.connect(relay.address, data_converter=pydantic_data_converter)
        api = Longshore(through, settings, on_away=away.append, on_back=lambda: back.append(True))
        job_id = (await api.submit(a_spec(pool))).job_id
        await reaches(api, job_id, JobState.QUEUED)
        waiting = asyncio.create_task(api.wait(job_id))

        relay.cut()
        await eventually(lambda: away)
        assert not waiting.done()
        await relay.open()
        await Longshore(temporal, settings).cancel(job_id)

        result = await asyncio.wait_for(waiting, 60)
        assert result.state is JobState.CANCELLED
        await api.close()
    assert len(away) == len(back) == 1
    assert away[0].startswith("Temporal does not answer")
