"""A stack with nodes, whose processes a test kills and starts again one by one."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.rows import dict_row

from longshore.activities.failpoints import (
    VARIABLE,
    ArrayPoint,
    BlockEndPoint,
    BuyingPoint,
    DagPoint,
    FundingPoint,
    HoldingPoint,
    Point,
    ServicePoint,
)
from longshore.activities.migrations import upgrade
from longshore.client.api import Longshore
from longshore.models.errors import UnavailableError
from longshore.models.node import NodeState
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.workers.postgres import DATABASE, SUPERUSER
from longshore.workers.processes import wait_until
from longshore.workers.programs import program
from longshore.workers.stack import Stack, agent_process
from tests.faults.journal import Journal
from tests.support.agent import end_engines, supervisors_of
from tests.support.local_stack import ROOT, running_stack, settings_in
from tests.support.relay import Relay, relay_to
from tests.support.waiting import eventually

AnyPoint = (
    Point
    | BuyingPoint
    | BlockEndPoint
    | DagPoint
    | ArrayPoint
    | FundingPoint
    | HoldingPoint
    | ServicePoint
)
CONTROL, TEMPORAL, POSTGRES = "control", "temporal", "postgres"
NODE_LOST_AFTER = timedelta(seconds=6)
UNCORDON_AFTER = timedelta(seconds=3)
GPUS_PER_NODE = 4
PATIENCE = 90.0
"""Seconds within which all must be well again; far more than it takes."""


class Fleet:
    """A running stack with `nodes` agents and `controls` control workers, and the client of it."""

    def __init__(
        self,
        stack: Stack,
        nodes: int,
        lost_after: timedelta = NODE_LOST_AFTER,
        controls: int = 1,
    ) -> None:
        self.stack = stack
        self.controls = (CONTROL, *(f"{CONTROL}-{number}" for number in range(2, controls + 1)))
        self.lost_after = lost_after
        self.nodes = node_names(nodes)
        self.relays: dict[str, Relay] = {}
        """What lies between an agent and the server; empty where they talk directly."""
        self.journal = Journal(stack.folder / "journal")
        self.longshore: Longshore
        self._points = stack.folder / "failpoints"
        self._points.mkdir()

    # --- kill and start -----------------------------------------------------------------

    def pid(self, name: str) -> int:
        running = self.stack.processes.running(name)
        assert running, f"{name} does not run"
        return running.pid

    def kill(self, name: str) -> None:
        """Kill -9 a process of the fleet, and wait until it has gone."""
        running = self.stack.processes.running(name)
        if running and (process := running.find()):
            process.kill()
            assert wait_until(lambda: running.find() is None, 60), f"{name} outlived kill -9"

    def signal(self, name: str, number: signal.Signals) -> None:
        psutil.Process(self.pid(name)).send_signal(number)

    def start(self, name: str) -> None:
        """Start a process of the fleet that does not run; the servers until they answer."""
        if name == TEMPORAL:
            self.stack.temporal.start(_quietly, SEARCH_ATTRIBUTES)
        elif name == POSTGRES:
            self.stack.postgres.start(_quietly)
        elif name in self.controls:
            self._spawn(name, (sys.executable, "-P", "-m", "tests.faults.impatient_control"))
        else:
            self._spawn(name, (program("longshore"), "agent", *self._flags(name)))

    def start_what_is_missing(self) -> None:
        for name in (TEMPORAL, POSTGRES, *self.controls, *map(agent_process, self.nodes)):
            if not self.stack.processes.running(name):
                self.start(name)

    def supervisors(self) -> list[psutil.Process]:
        """Return the supervisors of all agents that run."""
        found: list[psutil.Process] = []
        for node in self.nodes:
            with contextlib.suppress(AssertionError, psutil.Error):
                found += supervisors_of(self.pid(agent_process(node)))
        return found

    def backends(self) -> list[psutil.Process]:
        """Return the processes of PostgreSQL that serve a client; the server outlives theirs."""
        found: list[psutil.Process] = []
        for process in psutil.Process(self.pid(POSTGRES)).children():
            with contextlib.suppress(psutil.Error):
                if f"{SUPERUSER} {DATABASE}" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    # --- failpoints ---------------------------------------------------------------------

    def arm(self, point: AnyPoint) -> None:
        """Have the next process that comes to this point stop there."""
        (self._points / point).touch()

    async def reached(self, point: AnyPoint) -> int:
        """Wait until a process has stopped at an armed point; return its process id."""
        file = self._points / f"{point}.reached"
        await eventually(file.exists, timeout=PATIENCE)
        return int(file.read_text())

    def let_go(self, point: AnyPoint) -> None:
        """Let what stopped at the point go on, and nothing more stop there."""
        for name in (point, f"{point}.reached"):
            (self._points / name).unlink(missing_ok=True)

    def stops_at_points(self) -> dict[str, str]:
        """Return the environment of a program that stops at armed points, too."""
        return self.stack.child_env() | {VARIABLE: str(self._points), "PYTHONPATH": str(ROOT)}

    def set_clock(self, name: str, seconds: float) -> None:
        """Have the clock of a process jump so far from the machine's, for as long as it lives."""
        self.set_clock_of(self.pid(name), seconds)

    def set_clock_of(self, pid: int, seconds: float) -> None:
        """Like `set_clock`, also where the process may have gone."""
        file = self.clock_of(pid)
        part = file.with_suffix(".part")
        part.write_text(str(seconds))
        part.rename(file)

    def clock_of(self, pid: int) -> Path:
        """Return the file in which a process looks how far its clock has jumped."""
        return self._points / f"clock.{pid}"

    def process_of(self, pid: int) -> str:
        """Return the name of a process of the fleet by its id."""
        return next(e.name for e in self.stack.processes.recorded() if e.pid == pid)

    # --- looking ------------------------------------------------------------------------

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Return what a query finds, once the server has recovered from what was done to it."""
        found: list[list[dict[str, Any]]] = []

        def answers() -> bool:
            try:
                found.append(self._ask(statement, values))
            except psycopg.OperationalError:
                return False
            return True

        assert wait_until(answers, PATIENCE), "PostgreSQL does not answer"
        return found[0]

    def describe(self) -> str:
        """Return which processes run and what each printed last, for a test that has failed."""
        return "\n".join(
            f"{part.name}: {part.state}.{self.stack.processes.last_words(part.name)}"
            for part in self.stack.status()
        )

    def live_placements(self) -> list[str]:
        """Return the node of each live placement, the newest last."""
        live = "SELECT node_id FROM placements WHERE ended_at IS NULL ORDER BY placed_at"
        return [row["node_id"] for row in self.rows(live)]

    def folder_of(self, node: str) -> Path:
        """Return the work folder of a node's agent."""
        return self.stack.folder / "agents" / node

    def node_row(self, node: str) -> dict[str, Any]:
        return self.rows("SELECT state, epoch FROM nodes WHERE id = %s", node)[0]

    def epoch(self, node: str) -> int:
        return self.node_row(node)["epoch"]

    async def registered_after(self, node: str, epoch: int) -> None:
        """Wait until a node has a newer registration than `epoch`."""
        await eventually(lambda: self.epoch(node) > epoch, timeout=PATIENCE, interval=0.1)

    async def all_ready(self) -> None:
        """Wait until every agent is registered, after whatever happened to it."""
        await eventually(self._nodes_are_ready, timeout=PATIENCE, interval=0.1)

    async def _nodes_are_ready(self) -> bool:
        try:
            nodes = {node.id: node.state for node in await self.longshore.nodes()}
        except UnavailableError as error:
            raise AssertionError(str(error)) from error
        states = {node: nodes.get(node) for node in self.nodes}
        assert states == dict.fromkeys(self.nodes, NodeState.READY)
        return True

    def _ask(self, statement: str, values: Sequence[object]) -> list[dict[str, Any]]:
        url = self.stack.postgres.url()
        with psycopg.connect(url) as connection, connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement, values).fetchall()  # pyright: ignore[reportArgumentType]

    def _spawn(self, name: str, argv: Sequence[str]) -> None:
        env = self.stops_at_points() | {
            "LONGSHORE_HEALTH_ADDRESS": "off",
            "LONGSHORE_NODE_LOST_AFTER": f"{self.lost_after.total_seconds():g}s",
            "LONGSHORE_UNCORDON_AFTER": f"{UNCORDON_AFTER.total_seconds():g}s",
        }
        if len(self.controls) > 1:
            env["TESTS_SPREAD"] = "yes"
        if relay := self.relays.get(name.removeprefix("agent-")):
            env["TEMPORAL_ADDRESS"] = relay.address
        self.stack.processes.spawn(name, argv, env, cwd=ROOT)

    def _flags(self, name: str) -> tuple[str, ...]:
        node = name.removeprefix("agent-")
        return ("--node-id", node, "--simulate", f"{GPUS_PER_NODE}xH100-80GB")


def node_names(count: int) -> tuple[str, ...]:
    """Return the nodes of a fleet of that size."""
    return tuple(f"node-{number}" for number in range(1, count + 1))


@asynccontextmanager
async def running_fleet(
    folder: Path,
    nodes: int,
    *,
    relayed: bool = False,
    lost_after: timedelta = NODE_LOST_AFTER,
    controls: int = 1,
) -> AsyncIterator[Fleet]:
    """Yield a fleet whose nodes are ready, each behind a relay if wanted; gone at the end."""
    settings = settings_in(folder).model_copy(update={"node_lost_after": lost_after})
    with running_stack(settings, migrate=upgrade) as stack:
        fleet = Fleet(stack, nodes, lost_after, controls)
        async with AsyncExitStack() as relays:
            for node in fleet.nodes if relayed else ():
                relay = relay_to(stack.temporal.address)
                fleet.relays[node] = await relays.enter_async_context(relay)
            await asyncio.to_thread(fleet.start_what_is_missing)
            fleet.longshore = await Longshore.connect(settings)
            try:
                await fleet.all_ready()
                yield fleet
            finally:
                await fleet.longshore.close()
                for name in (*map(agent_process, fleet.nodes), *fleet.controls):
                    fleet.kill(name)
                for node in fleet.nodes:
                    end_engines(fleet.folder_of(node))


def _quietly(line: str) -> None:
    """Say nothing of what starts."""
