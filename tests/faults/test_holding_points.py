"""The control worker and the servers are killed as a node's holdings are recorded: all or nothing.

One case runs always, the others with `make faults`.
"""

import asyncio
from datetime import UTC, datetime
from typing import get_args

import pytest
from temporalio.client import Client

from longshore.activities.failpoints import HoldingPoint
from longshore.client.payloads import data_converter
from longshore.models.data import HeldData, HeldReport
from longshore.models.messages import node_workflow_id
from longshore.workflows.node import NodeWorkflow
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

ALWAYS = {("store_holdings.before-commit", POSTGRES)}
SETS = tuple(
    HeldData(name=f"of-the-test-{number}", tenant="default", source=f"s3://sets/{number}/",
             bytes=number, total=100)
    for number in (1, 2)
)  # fmt: skip
_HELD = """
    SELECT name, bytes FROM node_data
     WHERE node_id = %s AND held AND name LIKE 'of-the-test%%'"""
_OWN = """
    SELECT name FROM node_data
     WHERE node_id = %s AND held AND name LIKE 'python3 %%' AND used_at > %s"""


def _cases() -> list[object]:
    victims = (CONTROL, TEMPORAL, POSTGRES)
    return cases_of(
        [(point, each) for point in get_args(HoldingPoint) for each in victims], ALWAYS
    )


@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_what_a_node_holds_is_recorded_whole(
    fleet: Fleet, point: HoldingPoint, victim: str
) -> None:
    node = fleet.nodes[0]
    await fleet.all_ready()
    fleet.arm(point)
    try:
        temporal = await Client.connect(
            fleet.stack.temporal.address, data_converter=data_converter
        )
        workflow = temporal.get_workflow_handle_for(NodeWorkflow.run, node_workflow_id(node))
        await workflow.signal(NodeWorkflow.holds, HeldReport(held=SETS))
        await fleet.reached(point)
        since = datetime.now(UTC)
        await asyncio.to_thread(fleet.kill, victim)
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)

        async def recorded() -> bool:
            held = {row["name"]: row["bytes"] for row in fleet.rows(_HELD, node)}
            assert len(held) in (0, len(SETS)), "a part of it is recorded"
            # The agent's own report is recorded after it, in its place.
            replaced = bool(fleet.rows(_OWN, node, since))
            return replaced or held == {each.name: each.bytes for each in SETS}

        await eventually(recorded, timeout=PATIENCE)
        await fleet.all_ready()
    finally:
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)
