"""Starting machines on paid time: by the purchase that bought it, later by its block."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from longshore.models.purchase import AgentsRequest, MachineStart
    from longshore.workflows import purchase_steps as steps


@dataclass(frozen=True)
class Started:
    """What became of starts that were asked for."""

    refused: list[int]
    """Numbers of the machines that are to be tried again."""
    pause: timedelta | None
    """After which pause they are."""
    reason: str
    """Why they were refused; empty where none was."""


async def start_machines(block_id: str, numbers: Sequence[int]) -> Started:
    """Ask for machines of a block, at once."""
    refusals = await asyncio.gather(
        *(steps.start_machine(MachineStart(block_id=block_id, number=n)) for n in numbers)
    )
    refused = [(n, each) for n, each in zip(numbers, refusals, strict=True) if each.again]
    return Started(
        refused=[n for n, _ in refused],
        pause=min((each.again for _, each in refused if each.again), default=None),
        reason="; ".join(dict.fromkeys(each.reason for _, each in refused)),
    )


async def start_again(block_id: str, numbers: Sequence[int], within: timedelta) -> None:
    """Start machines in place of those that have ended, and wait for the agents of all that start.

    What comes of it is in the database: the next look at the block goes on from there.
    """
    await start_machines(block_id, numbers)
    await steps.await_agents(AgentsRequest(block_id=block_id, within=within))
