"""Machines that are all started with one command: each has a name of its own, and keeps it."""

import signal
from pathlib import Path

import pytest

from longshore.client.api import Longshore
from longshore.models.node import NodeState
from longshore.models.settings import Settings
from longshore.workers.agent_options import keep_name
from tests.support.agent import AgentProcess
from tests.support.waiting import eventually


async def test_each_agent_has_the_first_name_that_is_free_and_keeps_it(
    longshore: Longshore, settings: Settings, tmp_path: Path, pool: str
) -> None:
    first, second = f"{pool}.m1", f"{pool}.m2"
    agents = [
        AgentProcess(settings, tmp_path / str(n), pool, "--node-id", second, node_id=first)
        for n in (1, 2)
    ]
    try:
        for agent in agents:
            agent.start()
        for agent in agents:
            await eventually(lambda agent=agent: agent.says("registered as node"))
        of_first, of_second = sorted(agents, key=lambda each: each.says(f"as node {second}"))
        assert of_first.says(f"registered as node {first}")
        assert of_second.says(f"registered as node {second}")
        there = [node for node in await longshore.nodes() if node.pool == pool]
        states = {node.id: node.state for node in there}
        assert states == {first: NodeState.READY, second: NodeState.READY}

        # With the first name free, the second machine still has its own.
        for agent in agents:
            agent.send(signal.SIGTERM)
            await eventually(lambda agent=agent: agent.process.poll() is not None)
        before = of_second.log.read_text()
        of_second.start()
        await eventually(
            lambda: of_second.log.read_text()[len(before) :].count("registered as node") == 1
        )
        assert f"registered as node {second}" in of_second.log.read_text()[len(before) :]
    finally:
        for agent in agents:
            agent.end()


@pytest.mark.exhaustive
async def test_an_agent_waits_for_a_name_when_all_are_taken(
    longshore: Longshore, settings: Settings, tmp_path: Path, pool: str
) -> None:
    first, second = f"{pool}.m1", f"{pool}.m2"
    agents = [
        AgentProcess(settings, tmp_path / str(n), pool, "--node-id", second, node_id=first)
        for n in (1, 2, 3)
    ]
    try:
        for agent in agents[:2]:
            agent.start()
        for agent in agents[:2]:
            await eventually(lambda agent=agent: agent.says("registered as node"))
        third = agents[2]
        third.start()
        await eventually(lambda: third.says(f"node {second} has a live agent"))
        agents[0].send(signal.SIGTERM)
        await eventually(lambda: agents[0].process.poll() is not None)
        await eventually(lambda: third.says("registered as node"), timeout=90)
    finally:
        for agent in agents:
            agent.end()


def test_a_name_that_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    """An agent that is started again on a full disk begins all the same."""
    keep_name(tmp_path, "m1")
    (tmp_path / "node-name.new").mkdir()  # it could not be written now
    keep_name(tmp_path, "m1")
    assert (tmp_path / "node-name").read_text() == "m1"
