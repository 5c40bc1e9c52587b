"""The last lines of stderr, wherever a job that failed is shown."""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from temporalio.client import Client

from longshore.activities.logstore import LogStore
from longshore.client.api import Longshore
from longshore.client.job_view import job_screen
from longshore.client.live import say_stderr_tail
from longshore.client.logs import stderr_tail
from longshore.client.terminal import now
from longshore.client.why_view import explanation_screen
from longshore.console.job_view import stderr_html
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import USER_ERROR, ScriptedNode

SAID = ["Traceback (most recent call last):", "ValueError: 3 < 4", "\x1b[31mred"]
TAIL = (*SAID[:2], "\\x1b[31mred")


@pytest.fixture
async def api(temporal: Client, settings: Settings, control: None) -> AsyncIterator[Longshore]:
    found = Longshore(temporal, settings)
    yield found
    await found.close()


async def failed(
    api: Longshore, settings: Settings, node: ScriptedNode, pool: str, lines: list[str]
) -> str:
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.started(job_id)
    logs = LogStore(settings.resolve_log_store())
    logs.write(job_id, 1, node.id, "stderr", 0, "\n".join([*lines, ""]).encode())
    logs.write_end(job_id, 1, node.id)
    await node.end(job_id, report=USER_ERROR)
    await reaches(api, job_id, JobState.FAILED)
    return job_id


async def test_they_are_on_every_screen_of_a_job_that_failed(
    api: Longshore,
    settings: Settings,
    node: ScriptedNode,
    pool: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = await failed(api, settings, node, pool, SAID)
    report, why = await api.report(job_id), await api.explain(job_id)
    assert report.stderr_tail == why.stderr_tail == TAIL
    for screen in (job_screen(report, now()), explanation_screen(why, now())):
        terminal = Console(file=io.StringIO(), width=100)
        terminal.print(screen)
        shown = [line.rstrip() for line in cast(io.StringIO, terminal.file).getvalue().split("\n")]
        begin = shown.index("The last lines of its stderr")
        assert tuple(shown[begin + 1 : begin + 4]) == TAIL
    assert "ValueError: 3 &lt; 4\n" in stderr_html(report)
    await say_stderr_tail(api, await api.wait(job_id))
    said = capsys.readouterr().err
    assert f"`longshore logs {job_id}` has all" in said
    assert "\n  ValueError: 3 < 4\n" in said


async def test_they_are_ten_at_most(
    api: Longshore, settings: Settings, node: ScriptedNode, pool: str
) -> None:
    lines = [str(number) * 200 for number in range(10, 70)]
    job_id = await failed(api, settings, node, pool, lines)
    assert (await api.report(job_id)).stderr_tail == tuple(lines[-10:])


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"".join(b"%02d%s\n" % (n, b"z" * 1000) for n in range(20)),
         [f"{n}{'z' * 1000}" for n in range(10, 20)]),
        (b"first\n" + b"y" * 200_000 + b"\nlast\n", ["first", "y" * 1999 + "…", "last"]),
        (b"first\n" + b"y" * 5_000_000 + b"\nlast\n", ["last"]),
        (b"ValueError\r\n" + b"\r".join(b"%d%%" % n for n in range(100_000)) + b"\n",
         ["ValueError", "99999%"]),
        (b"\n\nno end", ["", "", "no end"]),
        (b"", []),
    ],
)  # fmt: skip
async def test_each_is_whole_and_one_that_was_written_over_is_what_it_was_last(
    tmp_path: Path, written: bytes, shown: list[str]
) -> None:
    LogStore(tmp_path.as_uri()).write("job", 1, "node", "stderr", 0, written)
    assert await stderr_tail(tmp_path.as_uri(), "job", 1) == tuple(shown)


async def test_a_job_that_succeeds_or_whose_logs_are_away_has_none(
    api: Longshore, settings: Settings, node: ScriptedNode, pool: str
) -> None:
    fine = (await api.submit(a_spec(pool))).job_id
    await node.end(fine)
    await reaches(api, fine, JobState.SUCCEEDED)
    assert (await api.report(fine)).stderr_tail == ()
    job_id = await failed(api, settings, node, pool, SAID)
    away = settings.model_copy(update={"log_store": "http://127.0.0.1:9/logs"})
    other = Longshore(api.temporal, away)
    report = await other.report(job_id)
    assert (report.job.state, report.stderr_tail) == (JobState.FAILED, ())
    assert stderr_html(report) == ""
    await other.close()
