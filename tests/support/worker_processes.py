"""Real control workers, each a process of its own, in a Temporal namespace of a test's own."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.client.late_answers import AskAgain
from longshore.client.payloads import data_converter
from longshore.models.deployment import BUILD_VARIABLE, DEPLOYMENT_VARIABLE
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.workers.stack import Stack
from longshore.workers.temporal_server import TemporalCLI
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually

PYTHON = (sys.executable, "-P", "-m")


class WorkerProcess:
    """One `python -m longshore.workers.control`, or another module, with its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended process, -number where a signal ended it."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def ends(self, within: float) -> int:
        """Wait until it has ended, and return its exit code."""
        await eventually(lambda: self.exit_code is not None, timeout=within)
        assert self.exit_code is not None
        return self.exit_code

    async def says(self, text: str, within: float = 60) -> None:
        """Wait until it has logged `text`."""

        def said() -> bool:
            assert self.exit_code is None or text in self.log, self.log
            return text in self.log

        await eventually(said, timeout=within)


class Place:
    """A namespace and a database, and the environment that points processes at them."""

    def __init__(self, stack: Stack, temporal: Client, database_url: str, folder: Path) -> None:
        self.temporal = temporal
        self.folder = folder
        self.env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "LONGSHORE_STATE_DIR": str(stack.folder),
            "LONGSHORE_DATABASE_URL": database_url,
            "TEMPORAL_NAMESPACE": temporal.namespace,
        }

    @contextmanager
    def worker(
        self, build_id: str | None = None, *argv: str, **env: str
    ) -> Iterator[WorkerProcess]:
        """Run a control worker, as version `build_id` of the deployment `test`, until the end of
        the block. `argv` is another command line for it."""
        if build_id:
            env |= {DEPLOYMENT_VARIABLE: "test", BUILD_VARIABLE: build_id}
        log = self.folder / f"worker-{uuid.uuid4().hex[:6]}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv or (*PYTHON, "longshore.workers.control"), env=self.env | env, stdout=file,
                stderr=file, stdin=subprocess.DEVNULL, cwd=self.folder,
            )  # fmt: skip
        worker = WorkerProcess(process, log)
        try:
            yield worker
        finally:
            worker.kill()

    async def run(self, *argv: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run `longshore` with these words, to its end."""
        return await asyncio.to_thread(
            subprocess.run, (*PYTHON, "longshore.client.cli", *argv), env=self.env | env,
            cwd=self.folder, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip


@asynccontextmanager
async def own_place(stack: Stack, database_url: str, folder: Path) -> AsyncIterator[Place]:
    """Yield a new namespace of the stack's server, with the search attributes of jobs."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    temporal = await Client.connect(
        stack.temporal.address,
        namespace=namespace,
        data_converter=data_converter,
        interceptors=[AskAgain()],
    )
    retention = Duration()
    retention.FromTimedelta(timedelta(days=1))
    await temporal.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=namespace, workflow_execution_retention_period=retention
        )
    )
    await eventually(lambda: is_known(temporal))
    cli = TemporalCLI("--address", stack.temporal.address, "--namespace", namespace)
    await asyncio.to_thread(cli.ensure_search_attributes, SEARCH_ATTRIBUTES)
    yield Place(stack, temporal, database_url, folder)


async def is_known(temporal: Client) -> bool:
    """Return whether the server knows the client's namespace: of a new one it learns after some
    seconds."""
    try:
        await temporal.count_workflows("WorkflowType = 'none'")
    except RPCError:
        return False
    return True
