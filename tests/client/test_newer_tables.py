"""Commands on a capacity database that a newer version has upgraded."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.revisions import newest_revision
from longshore.console import problems
from longshore.console.fleet import Fleet
from longshore.models.errors import NewerTablesError, RefusedError
from longshore.models.settings import Settings
from tests.client.conftest import Command

REFUSED = (
    "error: the database is at revision 9999, which this version of Longshore does not know "
    f"(its newest is {newest_revision()}): a newer one has upgraded it. Run that version, or "
    "restore a backup from before.\n"
)
COMMANDS = [
    "reconcile", "reconcile --dry-run", "submit --name n --gpus 1 -- true",
    "pool set default --growth fixed", "jobs", "job anything", "why anything", "nodes", "pools",
    "purchases", "costs", "preempt --dry-run anything", "setup", "db upgrade",
]  # fmt: skip


@pytest.fixture
async def newer(control: Database) -> AsyncIterator[None]:
    """A newer version has upgraded the module's database, and its control worker runs on."""
    async with control.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    yield
    async with control.transaction() as connection:
        await connection.execute(
            text("UPDATE alembic_version SET version_num = :it"), {"it": newest_revision()}
        )


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_refuses_it(longshore: Command, newer: None, command: str):
    ran = await longshore(*command.split())
    assert (ran.code, ran.out, ran.err) == (RefusedError.exit_code, "", REFUSED)


async def test_doctor_says_so_once_and_goes_on(longshore: Command, newer: None):
    ran = await longshore("doctor", "--json")
    found = {each["check"]: each for each in json.loads(ran.out)["findings"]}
    assert found["schema"]["level"] == "fail"
    assert "revision 9999, which this version" in found["schema"]["says"]
    assert found["database"]["level"] == found["database clock"]["level"] == "ok"


async def test_a_snapshot_is_the_first_that_is_read(settings: Settings, control: Database):
    """Its isolation has to be set before anything is read."""
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    async with database.snapshot() as connection:
        assert await connection.scalar(text("SHOW transaction_isolation")) == "repeatable read"
    await database.close()


async def test_the_console_is_away_and_says_why(settings: Settings, newer: None):
    """No fault of its own (500): it can answer again once the versions are the same."""
    pages = Fleet(settings)
    with pytest.raises(NewerTablesError) as refused:
        await pages.jobs()
    await pages.close()
    app = FastAPI()
    problems.install(app)

    @app.get("/")
    def answer() -> None:
        raise refused.value

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as web:
        said = await web.get("/")
    assert (said.status_code, said.json()["error"]["type"]) == (503, "newer_database")
    assert f"error: {said.json()['error']['message']}\n" == REFUSED
    assert "Retry-After" in said.headers
