"""Check of what was bought: whether a workflow follows each block to its end."""

import asyncio

from sqlalchemy import text
from temporalio.client import Client

from activities.database import Database
from activities.observation import BLOCKS, describe
from models.purchase import block_workflow_id
from models.reconcile import BlockSeen
from scheduling.reconcile_blocks import nobody_follows, workflows_of
from workers.doctor.findings import Finding, fail, ok

_CHECK = "blocks"
_SHOWN = 5
"""Blocks that are named."""
_MOST = 100
"""Blocks that are asked after: `longshore reconcile` looks at all."""


async def blocks(temporal: Client, database: Database) -> list[Finding]:
    """Return the blocks that nobody follows; of the first hundred that have not ended."""
    found = await _unfollowed(temporal, database)
    if found:
        # One whose account was closed at this moment looks the same.
        await asyncio.sleep(2.0)
        found &= await _unfollowed(temporal, database)
    if not found:
        return [ok(_CHECK, f"the first {_MOST} blocks that have not ended have their workflow")]
    return [unfollowed(block) for block in sorted(found)[:_SHOWN]]


def unfollowed(block: str) -> Finding:
    """Return what is wrong with a block that has not ended and has no workflow."""
    return fail(
        _CHECK,
        f"block {block} has not ended, and no workflow {block_workflow_id(block)} runs",
        "Run `longshore reconcile`, a minute after it ended: it starts that again, as it does by "
        "itself every few minutes. Until then the block is neither renewed nor let go, and what "
        "is billed as it runs goes on.",
    )


async def _unfollowed(temporal: Client, database: Database) -> set[str]:
    async with database.transaction() as connection:
        rows = (await connection.execute(text(BLOCKS))).mappings()
        live = [BlockSeen.model_validate(dict(row)) for row in rows]
    found: set[str] = set()
    for block in live[:_MOST]:
        flows = {id: await describe(temporal, id, ask=False) for id in workflows_of(block)}
        if nobody_follows(block, flows):
            found.add(block.id)
    return found
