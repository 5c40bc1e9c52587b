"""Commands while another session has tables of the capacity database locked, or it is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from longshore.activities import database
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.errors import NotFoundError, UnavailableError
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JOB_WORKFLOW, JobInput, job_workflow_id
from longshore.models.settings import Settings
from longshore.workers.doctor import database as doctor
from longshore.workers.stack import Stack
from tests.client.conftest import Command
from tests.support.control import a_spec, is_queued, reaches
from tests.support.database_away import database_away
from tests.support.waiting import eventually

LOCKED = (
    "error: the capacity database is locked: another session keeps a table or row that is needed "
    "here. `longshore doctor` names it.\n"
)
QUESTIONS = [
    "jobs", "jobs --json", "job {id}", "why {id}", "watch {id}", "nodes", "pools", "topology",
    "purchases", "blocks", "costs", "preempt --dry-run {id}", "cancel {name}", "hold {name}",
]  # fmt: skip


@asynccontextmanager
async def locked(url: str) -> AsyncIterator[int]:
    """Keep every table from all others until the block ends; yield the process of that session."""
    async with await psycopg.AsyncConnection.connect(url) as session:
        tables = await session.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        )
        names = [sql.Identifier(name) for (name,) in sorted(await tables.fetchall())]
        lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")
        while True:
            try:
                await session.execute(lock.format(sql.SQL(", ").join(names)))
                break
            except psycopg.errors.DeadlockDetected:  # with a cycle that takes them in its order
                await session.rollback()
        yield session.info.backend_pid
        await session.rollback()


@pytest.fixture
async def queued(
    temporal: Client, settings: Settings, control: object, pool: str
) -> tuple[str, str]:
    """The id and the name of a job that waits."""
    api = Longshore(temporal, settings)
    job_id = (await api.submit(a_spec(pool, gpus=64, name=f"n-{pool}"))).job_id
    await reaches(api, job_id, JobState.QUEUED)
    name = (await api.job(job_id)).name
    await api.close()
    return job_id, name


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_command_says_that_the_database_is_locked(
    longshore: Command,
    settings: Settings,
    queued: tuple[str, str],
    question: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "PATIENCE", timedelta(seconds=0.5))
    asked = question.format(id=queued[0], name=queued[1]).split()
    async with locked(settings.resolve_database_url()):
        ran = await asyncio.wait_for(longshore(*asked), 60)
    assert (ran.code, ran.out, ran.err) == (69, "", LOCKED)


async def test_a_job_is_submitted_and_it_is_said_what_was_not_looked_at(
    longshore: Command,
    settings: Settings,
    queued: tuple[str, str],
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "PATIENCE", timedelta(seconds=0.5))
    async with locked(settings.resolve_database_url()):
        asked = longshore("submit", "--pool", pool, "--name", "late", "--", "true")
        ran = await asyncio.wait_for(asked, 60)
    assert (ran.code, ran.out.startswith("late-")) == (0, True)
    assert "could not look at the nodes first" in ran.err
    await longshore("cancel", ran.out.strip())


async def test_doctor_names_the_session_that_locks_it_and_ends(
    longshore: Command, settings: Settings, control: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", timedelta(seconds=0.5))
    monkeypatch.setattr(doctor, "PATIENCE", timedelta(seconds=0.5))
    monkeypatch.setattr(doctor, "LOCKED_FOR", timedelta(0))
    async with locked(settings.resolve_database_url()) as pid:
        ran = await asyncio.wait_for(longshore("doctor", "--json"), 60)
    found = [each for each in json.loads(ran.out)["findings"] if each["level"] == "fail"]
    (named,) = (each for each in found if each["check"] == "database locks")
    assert named["says"].startswith(f"session {pid} (")
    assert "nodes" in named["says"]
    assert f"pg_terminate_backend({pid})" in named["mend"]
    others = [each for each in found if each is not named]
    assert "schema" in {each["check"] for each in others}
    assert not [
        each for each in others if "doctor" in each["says"] or "longshore up" in each["mend"]
    ]


def test_a_command_is_patient_for_less_than_a_check_of_doctor() -> None:
    assert timedelta(seconds=5) <= database.PATIENCE < timedelta(seconds=10)


@pytest.mark.exhaustive
async def test_a_job_is_cancelled_by_its_id_while_the_database_is_locked(
    longshore: Command,
    settings: Settings,
    queued: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whoever waited for the database would wait longer than a busy machine takes for a command.
    monkeypatch.setattr(database, "PATIENCE", timedelta(seconds=120))
    job_id = queued[0]
    async with locked(settings.resolve_database_url()):
        for verb in ("hold", "release", "cancel"):
            ran = await asyncio.wait_for(longshore(verb, job_id), 60)
            assert (ran.code, ran.err) == (0, "")
    ended = await asyncio.wait_for(longshore("watch", "--json", job_id), 60)
    assert '"CANCELLED"' in ended.out.splitlines()[-1]


async def test_so_is_one_whose_id_somebody_chose(
    longshore: Command, settings: Settings, control: Database, pool: str, temporal: Client
) -> None:
    """By another SDK, as the README says."""
    job_id = f"mine{pool.rpartition('-')[2]}"
    job = await temporal.start_workflow(
        JOB_WORKFLOW, JobInput(spec=a_spec(pool, gpus=64)), id=job_workflow_id(job_id),
        task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    await eventually(lambda: is_queued(control, job_id))
    async with locked(settings.resolve_database_url()):
        ran = await asyncio.wait_for(longshore("cancel", job_id), 60)
        assert (ran.code, ran.err) == (0, "")
    with pytest.raises(WorkflowFailureError) as ended:
        await asyncio.wait_for(job.result(), 60)
    assert isinstance(ended.value.cause, CancelledError)


async def test_and_while_it_is_away(
    temporal: Client, settings: Settings, stack: Stack, queued: tuple[str, str]
) -> None:
    api = Longshore(temporal, settings)
    with database_away(stack, settings.resolve_database_url()):
        assert await api.cancel(queued[0]) == queued[0]
        with pytest.raises(UnavailableError, match="the capacity database does not answer"):
            await api.cancel(queued[1])
    assert (await api.wait(queued[0])).state is JobState.CANCELLED
    await api.close()


async def test_a_name_that_looks_like_an_id_is_looked_for_in_the_database(
    temporal: Client, settings: Settings, control: object, pool: str
) -> None:
    api = Longshore(temporal, settings)
    job_id = (await api.submit(a_spec(pool, name="llama-pretrained", gpus=64))).job_id
    await reaches(api, job_id, JobState.QUEUED)
    with pytest.raises(NotFoundError, match="longshore jobs --all"):
        await api.cancel("llama-aaaaaaaaaa")
    fresh = Longshore(temporal, settings)
    assert await fresh.cancel("llama-pretrained") == job_id
    await fresh.close()
    await api.close()
