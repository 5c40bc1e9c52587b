"""What `why` says of a job whose stored spec cannot be read."""

from collections.abc import Awaitable, Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

DAMAGES = {
    "no-command": ("spec - 'command'", "spec: "),
    "text-for-gpus": ('spec || \'{"gpus": "many"}\'', "gpus: must be a whole number, got 'many'"),
}


@pytest.mark.parametrize(("stored", "named"), list(DAMAGES.values()), ids=list(DAMAGES))
async def test_why_names_what_is_wrong_with_it(
    longshore: Command, pool: str, node: ScriptedNode, settings: Settings, stored: str, named: str
) -> None:
    options = ("--pool", pool, "--deadline", "1h")
    runs = (await longshore("submit", "-q", *options, "--gpus", "8", "--", "true")).out.strip()
    await node.started(runs)
    waits = (await longshore("submit", "-q", *options, "--", "true")).out.strip()
    await eventually(_holds(longshore, waits, "last cycle"))
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
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        for job_id, spec in before:
            connection.execute("UPDATE jobs SET spec = %s WHERE id = %s", (Jsonb(spec), job_id))
    assert "cannot be read" not in (await longshore("why", runs)).out
    await longshore("cancel", waits)
    await node.end(runs)


def _holds(longshore: Command, job_id: str, text: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return text in (await longshore("why", job_id)).out

    return holds
