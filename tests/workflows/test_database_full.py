"""The disk of the capacity database is full for a while."""

import psycopg
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.observation import describe
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.messages import pool_workflow_id
from longshore.models.settings import Settings
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

WHY = 'could not extend file "base/16384/2691": No space left on device'
FULL = f"""
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '{WHY}' USING ERRCODE = '53100', HINT = 'Check free disk space.';
        END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON cycles EXECUTE FUNCTION full_disk();
"""


async def test_a_cycle_that_finds_the_disk_full_says_so_and_is_tried_again(
    longshore: Longshore,
    settings: Settings,
    control: Database,
    temporal: Client,
    node: ScriptedNode,
    pool: str,
):
    """The server would replace a failure that carries every statement and stack below it."""
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        connection.execute(FULL)
        try:
            job_id = (await longshore.submit(a_spec(pool))).job_id

            async def trouble() -> str:
                return (await describe(temporal, pool_workflow_id(pool))).trouble

            said = await eventually(trouble)
            assert said.startswith("run_cycle was tried ")
            assert said.endswith(f"(the capacity database's disk is full: {WHY})")
        finally:
            connection.execute("DROP TRIGGER full_disk ON cycles; DROP FUNCTION full_disk")
    await reaches(longshore, job_id, JobState.RUNNING)
    await node.end(job_id)
    assert (await longshore.wait(job_id)).state is JobState.SUCCEEDED
