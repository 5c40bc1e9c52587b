"""A node is cut off from the server: its jobs run elsewhere, none twice, and it comes back."""

import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.models.job import JobSpec
from tests.faults import scenes
from tests.faults.fleet import PATIENCE, TEMPORAL, Fleet, running_fleet
from tests.faults.invariants import check
from tests.support.agent import AgentProcess
from tests.support.control import new_pool
from tests.support.local_stack import temporary_folder
from tests.support.relay import Relay, relay_to
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)
LOST_AFTER = timedelta(seconds=16)
"""A short cut is 4 s of it; what is left is for a busy machine to connect again."""


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker, and without nodes; 5 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=0, lost_after=LOST_AFTER) as running:
            yield running


@pytest.fixture
async def relay(fleet: Fleet) -> AsyncIterator[Relay]:
    """Starts a relay to Temporal, which can fall silent; 0.01 s."""
    async with relay_to(fleet.stack.temporal.address) as relay:
        yield relay


@pytest.fixture
def pool() -> str:
    return new_pool()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Where a file lets the jobs of a test end: they run for as long as it takes to look."""
    return tmp_path / "go"


@pytest.fixture
def far(fleet: Fleet, relay: Relay, pool: str, tmp_path: Path) -> Iterator[AgentProcess]:
    """Starts an agent that reaches the server through the relay; 1 s."""
    agent = AgentProcess(fleet.stack.settings, tmp_path / "far", pool)
    agent.start(TEMPORAL_ADDRESS=relay.address)
    yield agent
    agent.end()


@pytest.fixture
def near(fleet: Fleet, pool: str, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that reaches the server directly, which the test starts; 1 s."""
    agent = AgentProcess(fleet.stack.settings, tmp_path / "near", pool)
    yield agent
    agent.end()


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param({}, id="both"),
        pytest.param({"to_client": False}, id="to-server", marks=pytest.mark.exhaustive),
        pytest.param({"to_server": False}, id="to-agent", marks=pytest.mark.exhaustive),
    ],
)
async def test_jobs_of_a_node_that_is_cut_off_run_elsewhere_and_it_comes_back(
    fleet: Fleet,
    relay: Relay,
    far: AgentProcess,
    near: AgentProcess,
    pool: str,
    go: Path,
    silent: dict[str, bool],
) -> None:
    jobs = await _run_four(fleet, pool, go)
    near.start()
    await _registered(near, 1)
    relay.fall_silent(**silent)
    await eventually(lambda: far.says("all processes end"), timeout=PATIENCE)
    await eventually(lambda: _all_run_on(fleet, jobs, near.node_id), timeout=PATIENCE)
    relay.heal()
    await fleet.registered_after(far.node_id, 1)
    await _fill_both_after(fleet, jobs, pool, go, far, near)
    for job_id in jobs:
        *lost, last = _lease_ends(fleet, job_id)
        # More than one where only the server hears: it admits the node that cannot hear of it.
        assert (set(lost), last) == ({"node-lost"}, "finished")


async def test_a_short_cut_costs_nothing(
    fleet: Fleet, relay: Relay, far: AgentProcess, pool: str, go: Path
) -> None:
    jobs = await _run_four(fleet, pool, go)
    relay.fall_silent()
    await eventually(lambda: far.says("heartbeat not acknowledged"), timeout=PATIENCE)
    relay.heal()
    _let_end(go)
    await check(fleet, jobs)
    assert [_lease_ends(fleet, job_id) for job_id in jobs] == [["finished"]] * 4


@pytest.mark.exhaustive
async def test_what_ended_while_the_server_was_away_does_not_run_again(
    fleet: Fleet, near: AgentProcess, pool: str, go: Path
) -> None:
    near.start()
    await _registered(near, 1)
    jobs = await _run_four(fleet, pool, go)
    fleet.signal(TEMPORAL, signal.SIGSTOP)
    try:
        _let_end(go)
        await eventually(lambda: not any(map(fleet.journal.running, jobs)), timeout=PATIENCE)
        await eventually(lambda: near.says("all processes end"), timeout=PATIENCE)
    finally:
        fleet.signal(TEMPORAL, signal.SIGCONT)
    await check(fleet, jobs)
    await fleet.registered_after(near.node_id, 1)
    assert [len(_lease_ends(fleet, job_id)) for job_id in jobs] == [1] * 4


async def _run_four(fleet: Fleet, pool: str, go: Path) -> list[str]:
    """Submit four jobs of a GPU to a pool of one node, and wait until they run there."""
    specs = [_job(fleet, f"cut-{number}", go, pool=pool) for number in range(4)]
    jobs = [await scenes.submit(fleet, spec) for spec in specs]
    await eventually(lambda: all(map(fleet.journal.running, jobs)), timeout=PATIENCE)
    return jobs


async def _fill_both_after(
    fleet: Fleet, jobs: list[str], pool: str, go: Path, *agents: AgentProcess
) -> None:
    """Let the jobs end; then have a job as wide as a node run on each at one time."""
    _let_end(go)
    await check(fleet, jobs)
    again = go.with_name("again")
    specs = [_job(fleet, "wide", again, pool=pool, gpus=4) for _ in agents]
    wide = [await scenes.submit(fleet, spec) for spec in specs]
    nodes = sorted(agent.node_id for agent in agents)
    await eventually(lambda: sorted(_runs_on(fleet, job) for job in wide) == nodes, PATIENCE)
    _let_end(again)
    await check(fleet, wide)


def _job(fleet: Fleet, name: str, go: Path, **fields: Any) -> JobSpec:
    """Return a job that runs until a file lets it end."""
    work = 'until [ -e "$GO" ]; do sleep 0.1; done'
    return fleet.journal.job(name, work=work, env={"GO": str(go)}, **fields)


def _let_end(go: Path) -> None:
    go.touch()


async def _registered(agent: AgentProcess, epoch: int) -> None:
    await eventually(lambda: agent.says(f"epoch {epoch}"), timeout=PATIENCE)


def _all_run_on(fleet: Fleet, jobs: list[str], node: str) -> bool:
    return all(_runs_on(fleet, job_id) == node for job_id in jobs)


def _runs_on(fleet: Fleet, job_id: str) -> str:
    """Return the node on which a process of the job runs now, or nothing."""
    live = "SELECT node_id FROM placements WHERE job_id = %s AND ended_at IS NULL"
    placed = fleet.rows(live, job_id)
    return placed[0]["node_id"] if placed and fleet.journal.running(job_id) else ""


def _lease_ends(fleet: Fleet, job_id: str) -> list[str]:
    ends = "SELECT end_reason FROM leases WHERE job_id = %s ORDER BY id"
    return [row["end_reason"] for row in fleet.rows(ends, job_id)]
