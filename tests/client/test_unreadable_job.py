"""What is said of a job whose stored spec cannot be read, and what to do."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from html import unescape

import psycopg
import pytest
from psycopg.types.json import Jsonb

from longshore.console.fleet import Fleet
from longshore.console.job_view import head_html, notes_html
from longshore.console.jobs_view import list_html
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

DAMAGES = {
    "no-command": ("spec - 'command'", "spec: "),
    "text-for-gpus": ('spec || \'{"gpus": "many"}\'', "gpus: must be a whole number, got 'many'"),
    "no-mapping": ("'[1]'", "must be "),
    "null": ("'null'", "must be "),
}


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(("stored", "named"), list(DAMAGES.values()), ids=list(DAMAGES))
async def test_who_asks_is_told_what_is_wrong_with_it_and_what_to_do(
    longshore: Command, pool: str, node: ScriptedNode, settings: Settings, stored: str, named: str
) -> None:
    options = ("--pool", pool, "--deadline", "1h")
    runs = (await longshore("submit", "-q", *options, "--gpus", "8", "--", "true")).out.strip()
    await node.started(runs)
    waits = (await longshore("submit", "-q", *options, "--", "true")).out.strip()
    await eventually(_holds(longshore, waits, "reason of"))
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        whole = connection.execute("SELECT id, spec FROM jobs WHERE id IN (%s, %s)", (runs, waits))
        before = whole.fetchall()
        connection.execute(
            f"UPDATE jobs SET spec = {stored} WHERE id IN (%s, %s)",  # pyright: ignore
            (runs, waits),
        )
    for job_id in (runs, waits):
        ran = await longshore("why", job_id)
        said = " ".join(ran.out.split())
        assert (ran.code, ran.err) == (0, "")
        assert said.count("cannot be read") == 1
        assert named in said.partition("cannot be read")[2]
        assert f"`longshore cancel {job_id}` ends it" in said
        state = "RUNNING" if job_id == runs else "QUEUED"
        await _is_shown(longshore, settings, job_id, state, named)
        for command in ("requeue", "pull"):
            ran = await longshore(command, job_id)
            said = " ".join(ran.err.split())
            assert (ran.code, ran.out) == (65, "")
            assert f"what is stored of job {job_id}: " in said
            assert f"`longshore cancel {job_id}` ends it" in said
        assert (await longshore("fund", job_id)).code == 0, "it needs no more than the queue"
    if stored in ("'null'", "'[1]'"):
        await _is_listed_without_a_guess(longshore, settings, pool, (runs, waits))
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        for job_id, spec in before:
            connection.execute("UPDATE jobs SET spec = %s WHERE id = %s", (Jsonb(spec), job_id))
    assert "cannot be read" not in (await longshore("why", runs)).out
    await longshore("cancel", waits)
    await node.end(runs)


async def _is_listed_without_a_guess(
    longshore: Command, settings: Settings, pool: str, jobs: tuple[str, ...]
) -> None:
    """Fail unless `jobs` and the console's list say of each job that its spec cannot be read, and
    give it no tier and class."""
    said = "its stored spec cannot be read: must be a mapping"
    ran = await longshore("jobs", "--pool", pool)
    fleet = Fleet(settings)
    page = unescape(list_html(await fleet.jobs(pool=pool), datetime.now(UTC)))
    await fleet.close()
    lines = [line for line in ran.out.splitlines() if line.startswith(jobs)]
    assert len(lines) == len(jobs)
    for line in lines:
        assert said in line
        assert "FLEX" not in line
        assert line.split()[4:6] == ["–", "–"]
    assert page.count(f">{said}") == len(jobs)
    assert "FLEX" not in page


async def _is_shown(
    longshore: Command, settings: Settings, job_id: str, state: str, named: str
) -> None:
    """Fail unless `job` and the console's page of it say all that is known, and what is not."""
    shown = await longshore("job", job_id)
    note, screen = " ".join(shown.err.split()), " ".join(shown.out.split())
    assert (shown.code, f"{job_id} {state}" in screen) == (0, True)
    assert "wants" not in screen.partition("queue")[0]
    parsed = json.loads((await longshore("job", "--json", job_id)).out)
    assert (parsed["job"]["state"], parsed["spec"]) == (state, None)
    fleet = Fleet(settings)
    page = await fleet.report(job_id)
    await fleet.close()
    assert head_html(page, datetime.now(UTC), None)
    for said in (note, parsed["missing"][0], page.missing[0], unescape(notes_html(page))):
        assert "ts stored spec cannot be read: " in said
        assert named in said.partition("cannot be read")[2]
        assert f"longshore cancel {job_id}" in said


def _holds(longshore: Command, job_id: str, text: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return text in (await longshore("why", job_id)).out

    return holds
