"""Fixtures that everybody uses: a real local stack, a client of it, a database per module or test.

Parallel workers of a test run have a stack each. A module finds that of its worker as if it were
new: a database of its own, and no workflow or schedule of those before it."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import uvloop
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.migrations import upgrade
from longshore.client.api import Longshore
from longshore.client.connection import compression
from longshore.client.late_answers import AskAgain
from longshore.client.payloads import data_converter
from longshore.client.process import leave
from longshore.models.settings import Settings, StackInfo
from longshore.workers.stack import Stack
from longshore.workers.telemetry import start_runtime
from tests.support.clearing import end_everything
from tests.support.control import new_pool, serving_control
from tests.support.databases import make_template, own_database
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from tests.support.scripted_node import ScriptedNode

pytest_plugins = (
    "tests.support.always", "tests.support.warm", "tests.support.chromium",
    "tests.support.collecting", "tests.support.failures", "tests.support.leftovers",
    "tests.support.searches", "tests.support.share", "tests.support.slowest",
    "tests.support.spread", "tests.support.waits",
)  # fmt: skip

# It takes a fourteenth of the time of the processor of a test run, and finds next to nothing in
# what is imported and collected: that lives on.
gc.disable()
# As the programs do (client.process.run): it takes 5 % less of the processor.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
NOT_LOST_WITHIN = timedelta(minutes=1)
"""Nodes are asked whether they are there from when they registered on, and the scripted ones
answer from when the test serves them: by the product's 12 s, a machine that was busy for 6 s had
them LOST. A module that wants one LOST says so itself."""

_seed = os.environ.get("LONGSHORE_SEED")
for _name in [name for name in os.environ if name.startswith(("LONGSHORE_", "TEMPORAL_"))]:
    del os.environ[_name]  # what the developer's shell points at is not for tests
if _seed:
    os.environ["LONGSHORE_SEED"] = _seed  # tests/faults/test_random.py
os.environ["TEMPORAL_CONFIG_FILE"] = os.environ["LONGSHORE_CONFIG"] = os.devnull
# Several test servers share the cores: each takes an eighth less of them on one thread.
os.environ.setdefault("GOMAXPROCS", "1")
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)  # a parallel worker gets them from readline; commands obey them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it puts into the background; what is started here would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Look for garbage from here on, less often, and not among what was imported and collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A running stack with Temporal (time skipping allowed) and PostgreSQL (migrated); 2 s."""
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), migrate=upgrade) as running,
    ):
        make_template(running)
        yield running


@pytest.fixture(scope="module")
async def settings(stack: Stack, temporal: Client) -> AsyncIterator[Settings]:
    """Makes a database of the module's own and settings that lead there and to the servers; 1 s.

    In a state folder of its own. Nothing that began before is open at the stack's Temporal.
    """
    await end_everything(temporal)
    with own_database(stack) as url, temporary_folder() as folder:
        info = StackInfo(
            temporal_address=stack.temporal.address,
            temporal_ui=stack.temporal.ui,
            database_url=url,
        )
        (folder / "stack.json").write_text(info.model_dump_json())
        (folder / "agent-token").write_text((stack.folder / "agent-token").read_text())
        yield stack.settings.model_copy(
            update={"state_dir": folder, "node_lost_after": NOT_LOST_WITHIN}
        )


@pytest.fixture(scope="session")
async def temporal(stack: Stack) -> Client:
    """A client of the stack's Temporal, in the namespace `default`.

    The SDK's own logs go to Python's: on the standard output a command in this process writes.
    """
    return await Client.connect(
        stack.temporal.address,
        grpc_compression=compression(stack.temporal.address),
        runtime=start_runtime(stack.settings),
        data_converter=data_converter,
        interceptors=[AskAgain()],
    )


@pytest.fixture
def database_url(stack: Stack) -> Iterator[str]:
    """Makes a database of this test's own: migrated, empty, gone afterwards; its URL; 0.1 s."""
    with own_database(stack) as url:
        yield url


@pytest.fixture(scope="module")  # one worker at a time may take from the task queue
async def control(
    temporal: Client, settings: Settings, request: pytest.FixtureRequest
) -> AsyncIterator[Database]:
    """The database of a control worker that runs for this module; 0.3 s."""
    strict = "workflows" in request.path.parts  # as the replay of every workflow's histories
    async with serving_control(temporal, settings, strict=strict) as database:
        yield database


@pytest.fixture
async def longshore(temporal: Client, settings: Settings) -> AsyncIterator[Longshore]:
    """A client of the module's stack and database; starts nothing."""
    client = Longshore(temporal, settings)
    yield client
    await client.close()


@pytest.fixture
def pool() -> str:
    """The name of a pool that no other test uses."""
    return new_pool()


@pytest.fixture
async def node(
    temporal: Client, settings: Settings, control: Database, pool: str
) -> AsyncIterator[ScriptedNode]:
    """A registered node of 8 GPUs in the test's pool; 0.1 s."""
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    async with node.serving():
        await node.register()
        yield node


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave with the tests' own exit code (see client.process.leave)."""
    if (status := config.stash.get(_EXIT_STATUS, None)) is not None:
        leave(status)


_EXIT_STATUS = pytest.StashKey[int]()
