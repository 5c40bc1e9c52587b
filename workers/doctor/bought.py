"""Checks of what was bought: whether a workflow follows each block to its end, and each purchase
that may order on, and gets on."""

import asyncio

from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.observation import BLOCKS, PURCHASES, describe
from longshore.models.block import block_workflow_id
from longshore.models.purchase import purchase_workflow_id
from longshore.models.reconcile_seen import BlockSeen, WorkflowState
from longshore.scheduling.reconcile_lost import nobody_follows, workflows_of
from longshore.workers.doctor.findings import Finding, fail, ok, warn

_CHECK = "blocks"
_SHOWN = 5
"""Blocks that are named."""
_MOST = 100
"""Blocks that are asked after: `longshore reconcile` looks at all."""
_MEANWHILE = (
    "Until then the block is neither renewed nor terminated, and what is billed as it runs "
    "goes on."
)


async def blocks(temporal: Client, database: Database) -> list[Finding]:
    """Return the blocks and purchases that nobody follows, and blocks whose workflow does not get
    on; of the first hundred of each that have not ended."""
    found, troubles = await _look(temporal, database)
    if found:
        # One whose account was closed at this moment looks the same.
        await asyncio.sleep(2.0)
        found &= (await _look(temporal, database))[0]
    told = [unfollowed(each) for each in sorted(found)[:_SHOWN]]
    told += [stuck(block, why) for block, why in sorted(troubles.items())[:_SHOWN]]
    return told or [ok(_CHECK, f"of the first {_MOST} that have not ended each is followed")]


def unfollowed(workflow_id: str) -> Finding:
    """Return what is wrong with a block or a purchase that has no workflow, by the id of that."""
    what, id = workflow_id.split("-", 1)
    is_block = what == "block"
    wrong = "has not ended" if is_block else "may order on, and what it may cost is committed"
    starts = "starts that again" if is_block else "ends what was ordered, and orders nothing more"
    return fail(
        _CHECK,
        f"{what} {id} {wrong}, and no workflow {workflow_id} runs",
        f"Run `longshore reconcile`, a minute after it ended: it {starts}, as it does by itself "
        f"every few minutes.{f' {_MEANWHILE}' if is_block else ''}",
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
    """Return the workflows of blocks and purchases that lack, and what keeps those of other
    blocks."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(BLOCKS))).mappings()
        live = [BlockSeen.model_validate(dict(row)) for row in rows]
        buying = [row.id for row in await connection.execute(text(PURCHASES))]
    found: set[str] = set()
    troubles: dict[str, str] = {}
    for block in live[:_MOST]:
        flows = {id: await describe(temporal, id, ask=False) for id in workflows_of(block)}
        if nobody_follows(block, flows):
            found.add(block_workflow_id(block.id))
        if trouble := flows[block_workflow_id(block.id)].trouble:
            troubles[block.id] = trouble
    for flow_id in map(purchase_workflow_id, buying[:_MOST]):
        flow = await describe(temporal, flow_id, ask=False)
        if flow.state is not WorkflowState.RUNNING:
            found.add(flow_id)
    return found, troubles
