"""What `doctor` says of pools and blocks that no workflow works on."""

import uuid
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.errors import RefusedError
from longshore.models.settings import Settings
from longshore.workers.doctor import bought, pools
from longshore.workers.doctor.findings import Level
from tests.support.waiting import eventually


@pytest.fixture
def database_url(settings: Settings) -> Iterator[str]:
    """The module's database, without blocks and queue afterwards; nothing is started."""
    url = settings.resolve_database_url()
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM blocks; DELETE FROM queue")


async def test_a_pool_whose_workflow_was_terminated_while_jobs_wait_is_named(
    settings: Settings, temporal: Client, database_url: str
) -> None:
    database = Database(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pools (name, spec) VALUES ('asleep', '{}'), ('idle', '{}')"
        )
        connection.execute(
            "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
            " VALUES ('waits', 'job', 'default', 'asleep', '{}', now(), '')"
        )
        connection.execute(
            "INSERT INTO queue (job_id, attempt, pool, held, priority, submitted_at, request)"
            " VALUES ('waits', 1, 'asleep', false, 5, now(), '{}')"
        )
    found = await pools.pools(temporal, database)
    assert [each.says for each in found] == [
        "pool asleep has work, and no workflow pool-asleep runs"
    ]
    await database.close()


async def test_a_block_that_nobody_follows_is_named(
    settings: Settings, temporal: Client, database_url: str
) -> None:
    database = Database(database_url)
    _insert(database_url, left="OPEN", over="ENDED")
    (found,) = await bought.blocks(temporal, database)
    assert found.says == "block left has not ended, and no workflow block-left runs"
    assert "longshore reconcile" in found.mend
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE blocks SET state = 'ENDED'")
    (found,) = await bought.blocks(temporal, database)
    assert (found.check, found.level) == ("blocks", Level.OK)
    await database.close()


@workflow.defn(name="BlockWorkflow", sandboxed=False)
class FailsAgainAndAgain:
    """A block whose first step fails, and is tried again much later."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            look_at_block,
            start_to_close_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=10), backoff_coefficient=60_000
            ),
        )


@activity.defn
async def look_at_block() -> None:
    raise ValueError("its row cannot be read")


async def test_a_block_whose_workflow_does_not_get_on_is_named(
    settings: Settings, temporal: Client, database_url: str
) -> None:
    database = Database(database_url)
    _insert(database_url, stuck="OPEN")
    queue = uuid.uuid4().hex
    async with Worker(
        temporal, task_queue=queue, workflows=[FailsAgainAndAgain], activities=[look_at_block]
    ):
        follows = await temporal.start_workflow(
            FailsAgainAndAgain.run, id="block-stuck", task_queue=queue
        )

        async def named() -> str:
            (found,) = await bought.blocks(temporal, database)
            assert found.level == Level.WARN, found
            return found.says

        said = await eventually(named)
        assert said.startswith(
            "the workflow of block stuck does not get on: look_at_block was tried"
        )
        await follows.terminate()
    with pytest.raises(RefusedError, match="longshore reconcile"):
        await Longshore(temporal, settings).let_go("stuck")
    await database.close()


def _insert(database_url: str, **blocks: str) -> None:
    """Store blocks, each in the state that is given by its name."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for block, state in blocks.items():
            connection.execute(
                "INSERT INTO blocks (id, provider, instance_type, tier, price_micro_per_gpu_hour,"
                " state, created_at)"
                " VALUES (%s, 'prime', '1xL40S', 'FAST', 1, %s, now() - interval '2 minutes')",
                (block, state),
            )
