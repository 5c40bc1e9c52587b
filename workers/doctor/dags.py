"""Check of DAGs: whether a workflow follows each that has not ended."""

import asyncio

from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.observation import DAGS, describe
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import NOT_FOLLOWED, mend_of_unfollowed
from longshore.models.reconcile_seen import WorkflowState
from longshore.models.text import listed
from longshore.workers.doctor.findings import Finding, ok, warn

_CHECK = "dags"
_MOST, _SHOWN = 100, 5


async def dags(temporal: Client, database: Database) -> list[Finding]:
    """Return the DAGs that nobody follows; of the first hundred that have not ended."""
    found = await _look(temporal, database)
    if found:
        await asyncio.sleep(2.0)  # one that ends at this moment looks the same
        still = await _look(temporal, database)
        found = [each for each in found if each in still]
    if not found:
        return [ok(_CHECK, f"of the first {_MOST} that have not ended each is followed")]
    first = found[0]
    return [
        warn(
            _CHECK,
            f"no workflow follows {listed(found, _SHOWN)}: {NOT_FOLLOWED}",
            f"{mend_of_unfollowed(first)}. Was its workflow terminated? `longshore dag cancel` is "
            "the way to end a DAG.",
        )
    ]


async def _look(temporal: Client, database: Database) -> list[str]:
    """Return the DAGs whose workflow does not run, the oldest first."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(DAGS))).all()
    return [
        row.id
        for row in rows[:_MOST]
        if (await describe(temporal, dag_workflow_id(row.id), ask=False)).state
        is not WorkflowState.RUNNING
    ]
