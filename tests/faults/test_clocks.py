"""The clock of a node jumps by an hour: the node is not lost for good."""

import signal

import pytest

from tests.faults.fleet import NODE_LOST_AFTER, PATIENCE, Fleet
from tests.support.waiting import eventually
from workers.stack import agent_process

pytestmark = pytest.mark.timeout(240)
HOUR = 3600.0


async def test_a_cut_node_whose_clock_jumped_waits_to_be_set_right(fleet: Fleet) -> None:
    agent = agent_process(fleet.nodes[0])
    epoch = fleet.epoch(fleet.nodes[0])
    fleet.set_clock(agent, HOUR)
    fleet.signal(agent, signal.SIGSTOP)
    state = "SELECT state FROM nodes WHERE id = %s"
    await eventually(
        lambda: fleet.rows(state, fleet.nodes[0])[0]["state"] == "LOST",
        timeout=PATIENCE + NODE_LOST_AFTER.total_seconds(),
    )
    fleet.signal(agent, signal.SIGCONT)
    log = fleet.stack.processes.last_words
    await eventually(lambda: "the clocks of agent and control" in log(agent), timeout=PATIENCE)
    assert fleet.epoch(fleet.nodes[0]) == epoch
    fleet.set_clock(agent, 0)
    await fleet.registered_after(fleet.nodes[0], epoch)
    await fleet.all_ready()
