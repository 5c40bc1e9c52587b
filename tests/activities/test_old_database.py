"""What an early version left in its database is there, whole and usable, after the upgrade."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.migrations import upgrade
from longshore.activities.observation import observe
from longshore.activities.views import Views
from longshore.models.job_status import JobState
from longshore.models.reconcile import ReconcileRequest
from longshore.workers.stack import Stack
from tests.support.databases import database_of

BEFORE = "0032"
LEFT = Path(__file__).with_name(f"database_{BEFORE}.sql")


@pytest.fixture
async def upgraded(stack: Stack) -> AsyncIterator[Database]:
    """A database that a version of 2026-11-21 used, upgraded to today's tables; 1 s."""
    with database_of(stack, BEFORE) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(LEFT.read_bytes())
        upgrade(url)
        database = Database(url)
        yield database
        await database.close()


async def test_jobs_and_nodes_of_before_are_read_and_their_sums_are_right(
    upgraded: Database, temporal: Client
):
    jobs = await Views(upgraded).jobs()
    assert {job.name: job.state for job in jobs} == {
        "true": JobState.SUCCEEDED,
        "fails": JobState.FAILED,
        "runs": JobState.RUNNING,
        "waits": JobState.QUEUED,
    }
    runs = next(job for job in jobs if job.name == "runs")
    assert (await Views(upgraded).spec(runs.id)).gpus == 4
    nodes = await Views(upgraded).nodes()
    held = {node.id: [gpu.index for gpu in node.gpus if gpu.job_id == runs.id] for node in nodes}
    assert held == {"local-1": [0, 1, 2, 3], "local-2": []}
    seen = await observe(upgraded, temporal, ReconcileRequest(), timedelta(seconds=12))
    assert seen.ledgers == ()
