"""Check of what was bought: whether a workflow follows each block to its end."""

import asyncio
from shlex import quote

from sqlalchemy import text
from temporalio.client import Client

from activities.database import Database
from activities.observation import describe
from models.messages import CONTROL_TASK_QUEUE
from models.purchase import BLOCK_WORKFLOW, BlockInput, block_workflow_id
from models.reconcile import WorkflowState
from workers.doctor.findings import Finding, fail

_CHECK = "blocks"
_SHOWN = 5
"""Blocks that are named."""
_LIVE = """
    SELECT id FROM blocks
     WHERE state <> 'ENDED' AND created_at < clock_timestamp() - interval '1 minute'
     ORDER BY created_at DESC LIMIT 100
"""
"""The workflow of a new one may not have been started yet."""


async def blocks(temporal: Client, database: Database) -> list[Finding]:
    """Return the blocks that nobody follows; of the newest hundred that have not ended."""
    found = await _unfollowed(temporal, database)
    if found:
        # One whose account was closed at this moment looks the same.
        await asyncio.sleep(2.0)
        found &= await _unfollowed(temporal, database)
    return [unfollowed(block) for block in sorted(found)[:_SHOWN]]


def unfollowed(block: str) -> Finding:
    """Return what is wrong with a block that has not ended and has no workflow."""
    workflow_id = block_workflow_id(block)
    given = BlockInput(block_id=block).model_dump_json(include={"block_id"})
    return fail(
        _CHECK,
        f"block {block} has not ended, and no workflow {workflow_id} runs",
        f"Run `temporal workflow start --workflow-id {quote(workflow_id)} --type {BLOCK_WORKFLOW} "
        f"--task-queue {CONTROL_TASK_QUEUE} --input {quote(given)}`; until then it is neither "
        "renewed nor let go, and what is billed as it runs goes on.",
    )


async def _unfollowed(temporal: Client, database: Database) -> set[str]:
    async with database.transaction() as connection:
        live = list(await connection.scalars(text(_LIVE)))
    return {
        block
        for block in live
        if (await describe(temporal, block_workflow_id(block), ask=False)).state
        is not WorkflowState.RUNNING
    }
