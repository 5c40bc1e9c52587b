"""Waiting for a job while the server goes away and comes back, or is slow to answer."""

import asyncio
import io
from typing import cast

import pytest
from rich.console import Console
from rich.text import Text
from temporalio.client import Client

from longshore.activities.logstore import LogStore
from longshore.client import live
from longshore.client.api import Longshore
from longshore.client.live import Lines, Panel, follow_job
from longshore.client.payloads import data_converter
from longshore.client.submit_command import follow_with_logs
from longshore.models.job_status import JobState, JobStatus
from longshore.models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.relay import relay_to
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually


@pytest.mark.exhaustive
async def test_who_waits_hears_once_that_the_server_is_away_and_once_that_it_is_back(
    temporal: Client, settings: Settings, control: None, pool: str
) -> None:
    away: list[str] = []
    back: list[bool] = []
    async with relay_to(settings.stack().temporal_address) as relay:
        through = await Client.connect(relay.address, data_converter=data_converter)
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


class Mute(Longshore):
    """Asks workflows that do not answer: one that has just ended may take ten seconds and more."""

    async def _status_when_back(self, job_id: str) -> JobStatus:
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


async def test_what_a_job_wrote_is_shown_though_its_workflow_answers_no_question(
    temporal: Client,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    api = Mute(temporal, settings)
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.started(job_id)
    logs = LogStore(settings.resolve_log_store())
    logs.write(job_id, 1, node.id, "stdout", 0, b"I have 0,1\n")
    logs.write(job_id, 1, node.id, "stderr", 0, b"and a remark\n")
    logs.write_end(job_id, 1, node.id)
    await node.end(job_id)
    result = await asyncio.wait_for(follow_with_logs(api, job_id, silent=True), 60)
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert capsysbinary.readouterr() == (b"I have 0,1\n", b"and a remark\n")
    await api.close()


async def test_how_a_job_ended_is_shown_though_its_workflow_answers_no_question(
    temporal: Client,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_LAST_WORD", 0.1)
    api = Mute(temporal, settings)
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.end(job_id, report=USER_ERROR)
    lines, terminal = list[str](), Console(file=io.StringIO(), width=100, force_terminal=True)
    for screen in (Lines(lines.append), Panel(terminal)):
        await asyncio.wait_for(follow_job(api, job_id, screen), 60)
    said = "FAILED (user, exit code 3) exit code 3"
    assert [line.partition("  ")[2] for line in lines] == [said]
    drawn = Text.from_ansi(cast(io.StringIO, terminal.file).getvalue()).plain
    assert f"{job_id}  FAILED" in drawn
    assert "(user, exit code 3) exit code 3" in drawn
    await api.close()


async def test_a_job_ends_as_it_has_where_its_output_cannot_be_read(
    temporal: Client,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    away = settings.model_copy(update={"log_store": "http://127.0.0.1:9/logs"})
    api = Longshore(temporal, away)
    job_id = (await api.submit(a_spec(pool))).job_id
    following = asyncio.create_task(follow_with_logs(api, job_id, silent=True))
    await node.end(job_id)
    result = await asyncio.wait_for(following, 60)
    assert result.state is JobState.SUCCEEDED
    said = capsysbinary.readouterr().err.decode()
    assert "note: what it wrote in attempt 1 cannot be read" in said
    await api.close()
