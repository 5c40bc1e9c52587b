"""Check of what was bought: whether a workflow follows each block to its end, and gets on."""

import asyncio

from sqlalchemy import text
from temporalio.client import Client

from activities.database import Database
from activities.observation import BLOCKS, describe
from models.purchase import block_workflow_id
from models.reconcile import BlockSeen
from scheduling.reconcile_lost import nobody_follows, workflows_of
from workers.doctor.findings import Finding, fail, ok, warn

_CHECK = "blocks"
_SHOWN = 5
"""Blocks that are named."""
_MOST = 100
"""Blocks that are asked after: `longshore reconcile` looks at all."""
_MEANWHILE = (
    "Until then the block is neither renewed nor let go, and what is billed as it runs goes on."
)


async def blocks(temporal: Client, database: Database) -> list[Finding]:
    """Return the blocks that nobody follows, and those whose workflow does not get on; of the
    first hundred that have not ended."""
    found, troubles = await _look(temporal, database)
    if found:
        # One whose account was closed at this moment looks the same.
        await asyncio.sleep(2.0)
        found &= (await _look(temporal, database))[0]
    told = [unfollowed(block) for block in sorted(found)[:_SHOWN]]
    told += [stuck(block, why) for block, why in sorted(troubles.items())[:_SHOWN]]
    return told or [ok(_CHECK, f"of the first {_MOST} that have not ended each is followed")]


def unfollowed(block: str) -> Finding:
    """Return what is wrong with a block that has not ended and has no workflow."""
    return fail(
        _CHECK,
        f"block {block} has not ended, and no workflow {block_workflow_id(block)} runs",
        "Run `longshore reconcile`, a minute after it ended: it starts that again, as it does by "
        f"itself every few minutes. {_MEANWHILE}",
    )


def stuck(block: str, why: str) -> Finding:
    """Return what is wrong with a block whose workflow does not get on."""
    return warn(
        _CHECK,
        f"the workflow of block {block} does not get on: {why}",
        "It is tried again by itself. Where its market is away, wait for that; else correct what "
        f"it names. {_MEANWHILE}",
    )


async def _look(temporal: Client, database: Database) -> tuple[set[str], dict[str, str]]:
    """Return the blocks that nobody follows, and what keeps the workflows of others."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(BLOCKS))).mappings()
        live = [BlockSeen.model_validate(dict(row)) for row in rows]
    found: set[str] = set()
    troubles: dict[str, str] = {}
    for block in live[:_MOST]:
        flows = {id: await describe(temporal, id, ask=False) for id in workflows_of(block)}
        if nobody_follows(block, flows):
            found.add(block.id)
        if trouble := flows[block_workflow_id(block.id)].trouble:
            troubles[block.id] = trouble
    return found, troubles
