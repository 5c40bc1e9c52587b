"""The embedded local stack: Temporal and PostgreSQL, as one thing that starts and stops.

Everything lives in one state folder::

    stack.json     where the servers are (StackInfo), written when all are healthy
    agent-token    the join token of node agents
    nodes.json     the agents that the stack started, so that it can start them again
    temporal.db    what Temporal keeps
    postgres/      what PostgreSQL keeps
    run/           a record and a log of each process (workers.processes)
    lock           held while somebody starts or stops the stack

A server that the settings name, by TEMPORAL_ADDRESS or LONGSHORE_DATABASE_URL, is used and not
started, stopped or removed.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import IO

from pydantic import TypeAdapter
from temporalio.envconfig import ClientConfig

from longshore.activities.node.system import close_to_others
from longshore.models.base import Wire
from longshore.models.errors import StackError
from longshore.models.settings import Settings, StackInfo
from longshore.models.settings_file import FILE_VARIABLE, find_settings_file
from longshore.workers import postgres, temporal_server
from longshore.workers.postgres import LocalPostgres
from longshore.workers.processes import Processes, listens, wait_until, write_atomically
from longshore.workers.temporal_server import LocalTemporal, TemporalCLI

LOCK_TIMEOUT = 180.0
SERVERS = (temporal_server.NAME, postgres.NAME)
"""In the order in which they stop; all other processes stop before them."""
_PRIVATE = (
    "agents", "checkpoints", "console-token", "lock", "logs", "market", "nodes.json", "nodes.lock",
    "run", "temporal.db", "temporal.db-shm", "temporal.db-wal",
)  # fmt: skip
"""What earlier versions made in the state folder, and others may have been able to read."""

Progress = Callable[[str], None]
_NODES = TypeAdapter(dict[str, tuple[str, ...]])


class PartState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    EXTERNAL = "external"
    """Named by the settings: not the stack's to start or stop."""


class Part(Wire):
    """One process of the stack, as people ask for it."""

    name: str
    state: PartState
    pid: int | None = None
    address: str = ""
    log: str = ""


class Stack:
    """The local stack in the state folder of the settings."""

    def __init__(
        self,
        settings: Settings,
        *,
        search_attributes: Mapping[str, str] | None = None,
        migrate: Callable[[str], object] | None = None,
        time_skipping: bool = False,
    ) -> None:
        """Describe the stack; nothing starts yet.

        `search_attributes` are names and types for Temporal; `migrate` gets the URL of the
        database and brings its schema up to date; `time_skipping` is for tests.
        """
        self.settings = settings
        self.folder = settings.state_dir.expanduser().absolute()
        self.processes = Processes(self.folder / "run")
        self._search_attributes = dict(search_attributes or {})
        self._migrate = migrate
        self._lock_depth = 0
        config = ClientConfig.load_client_connect_config()
        self.temporal = LocalTemporal(
            self.folder / "temporal.db",
            self.processes,
            port=settings.temporal_port,
            ui_port=settings.temporal_ui_port,
            namespace=config.get("namespace") or "default",
            time_skipping=time_skipping,
        )
        self.postgres = LocalPostgres(self.folder / "postgres", self.processes)
        self._temporal_address = config.get("target_host")

    def start(self, progress: Progress = print) -> StackInfo:
        """Start what does not run, wait until all is healthy, and return where it is.

        A second start finds the first. After everything was killed, a start recovers what the
        servers had stored. Raises StackError with a sentence that says what to do.
        """
        with self.exclusive(progress):
            if not self._external_temporal:
                self.temporal.start(progress, self._search_attributes)
            else:
                self.temporal_cli().ensure_search_attributes(self._search_attributes)
            url = self._database_url(progress)
            if self._migrate:
                self._migrate(url)
            self._ensure_token()
            close_to_others(self.folder / name for name in _PRIVATE)
            info = StackInfo(
                temporal_address=self._external_temporal or self.temporal.address,
                temporal_ui="" if self._external_temporal else self.temporal.ui,
                database_url=url,
            )
            write_atomically(self.folder / "stack.json", info.model_dump_json(indent=2))
            return info

    @property
    def _external_temporal(self) -> str | None:
        """The address of a server that is not this stack's; None where there is no such server."""
        # Other SDKs are told of this server by TEMPORAL_ADDRESS: it is no other one for that. So
        # is the one that would start there, where no other listens.
        address = self._temporal_address
        if address is None or address != self.temporal.address:
            return address
        return None if self.temporal.runs or not listens(address) else address

    def status(self) -> tuple[Part, ...]:
        """Return every part: the servers first, then the processes started beside them."""
        found = {entry.name: entry for entry in self.processes.recorded()}
        external = {
            temporal_server.NAME: self._external_temporal,
            postgres.NAME: "LONGSHORE_DATABASE_URL" if self.settings.database_url else None,
        }
        parts: list[Part] = []
        for name in (*SERVERS, *sorted(set(found) - set(SERVERS))):
            if address := external.get(name):
                parts.append(Part(name=name, state=PartState.EXTERNAL, address=address))
                continue
            entry = found.get(name)
            running = entry if entry and entry.find() else None
            parts.append(
                Part(
                    name=name,
                    state=PartState.RUNNING if running else PartState.STOPPED,
                    pid=running.pid if running else None,
                    address=running.address if running else "",
                    log=str(self.processes.log(name)),
                )
            )
        return tuple(parts)

    def stop(self, progress: Progress = print, *, keep_servers: bool = False) -> tuple[str, ...]:
        """Stop our processes, agents first and servers last; return those that were running.

        Raises StackError when a process belongs to another user.
        """
        if not self.folder.is_dir():
            return ()
        with self.exclusive(progress):
            stopped = self._stop_all(progress, SERVERS if not keep_servers else ())
            if not keep_servers:
                (self.folder / "stack.json").unlink(missing_ok=True)
            return stopped

    def purge(self) -> None:
        """Remove the state folder with all that was stored. The stack must be stopped."""
        if running := [part.name for part in self.status() if part.state is PartState.RUNNING]:
            raise StackError(f"{', '.join(running)} still runs: stop the stack first.")
        if not self.folder.exists():
            return
        if not (self.folder / "lock").exists():
            raise StackError(f"{self.folder} is not a state folder of Longshore: not removed.")
        if self.postgres.socket_folder() != self.postgres.data:
            shutil.rmtree(self.postgres.socket_folder(), ignore_errors=True)
        shutil.rmtree(self.folder)

    def temporal_cli(self) -> TemporalCLI:
        """Return the `temporal` program, pointed at the server that this stack uses."""
        return TemporalCLI() if self._external_temporal else self.temporal.cli()

    def child_env(self) -> dict[str, str]:
        """Return the environment that makes a process of ours use this stack."""
        file = find_settings_file()
        return {
            # Wherever it is started again from, it has the settings that it began with.
            **({FILE_VARIABLE: str(file.absolute())} if file else {}),
            "LONGSHORE_STATE_DIR": str(self.folder),
        }

    # --- agents that the stack started ------------------------------------------------------

    def remember_node(self, node_id: str, flags: Sequence[str]) -> None:
        """Have later starts run an agent for this node, with these flags."""
        with self._locked("nodes.lock"):
            self._write_nodes({**self.remembered_nodes(), node_id: tuple(flags)})

    def forget_node(self, node_id: str) -> None:
        """Have later starts run no agent for this node."""
        with self._locked("nodes.lock"):
            nodes = self.remembered_nodes()
            nodes.pop(node_id, None)
            self._write_nodes(nodes)

    def remembered_nodes(self) -> dict[str, tuple[str, ...]]:
        """Return the flags of each remembered agent by its node id."""
        try:
            return _NODES.validate_json((self.folder / "nodes.json").read_bytes())
        except FileNotFoundError:
            return {}

    # --- the rest ---------------------------------------------------------------------------

    @contextmanager
    def exclusive(self, progress: Progress = print) -> Iterator[None]:
        """Hold the stack for one starter or stopper at a time; nests within one Stack."""
        if self._lock_depth:
            self._lock_depth += 1
            try:
                yield
            finally:
                self._lock_depth -= 1
            return
        with self._locked("lock", lambda: progress("waiting for another start or stop to end")):
            self._lock_depth = 1
            try:
                yield
            finally:
                self._lock_depth = 0

    @contextmanager
    def _locked(self, name: str, when_busy: Callable[[], None] | None = None) -> Iterator[None]:
        with self._open(name) as file:
            if not _try_lock(file):
                if when_busy:
                    when_busy()
                if not wait_until(lambda: _try_lock(file), LOCK_TIMEOUT):
                    raise StackError(
                        f"another process has held {self.folder / name} for "
                        f"{LOCK_TIMEOUT:.0f} seconds. End it, then try again."
                    )
            yield

    def _open(self, name: str) -> IO[str]:
        try:
            # As root the PostgreSQL account must pass through, but it may not list.
            mode = 0o711 if os.geteuid() == 0 else 0o700
            self.folder.mkdir(parents=True, exist_ok=True, mode=mode)
            return (self.folder / name).open("a")
        except OSError as error:
            raise StackError(
                f"cannot write in the state folder {self.folder} ({error.strerror}). "
                "Choose another with LONGSHORE_STATE_DIR."
            ) from None

    def _database_url(self, progress: Progress) -> str:
        if self.settings.database_url:
            return self.settings.database_url.get_secret_value()
        return self.postgres.start(progress)

    def _ensure_token(self) -> None:
        token = self.folder / "agent-token"
        if not self.settings.agent_token and not token.exists():
            write_atomically(token, secrets.token_urlsafe(32) + "\n")

    def _stop_all(self, progress: Progress, servers: Sequence[str]) -> tuple[str, ...]:
        self.postgres.running()  # records a server whose record was lost, so that it stops too
        others = [entry.name for entry in self.processes.recorded() if entry.name not in SERVERS]
        agents = [name for name in others if name.startswith(AGENT_PREFIX)]
        workers = [name for name in others if name not in agents]
        stopped: list[str] = []
        # An agent gives its jobs time to save.
        for names, grace in (
            (agents, 60.0),
            (workers, 20.0),
            *(([name], 30.0) for name in servers),
        ):
            for name in (done := self.processes.stop(*names, grace=grace)):
                progress(f"stopped {name}")
            stopped.extend(done)
        return tuple(stopped)

    def _write_nodes(self, nodes: Mapping[str, Sequence[str]]) -> None:
        write_atomically(self.folder / "nodes.json", json.dumps(nodes, indent=2))


AGENT_PREFIX = "agent-"
"""Names of agents' processes begin with it: they stop first."""


def agent_process(node_id: str) -> str:
    """Return the name of the process of a node's agent."""
    return f"{AGENT_PREFIX}{node_id}"


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
