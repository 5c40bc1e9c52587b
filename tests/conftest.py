"""Fixtures that everybody uses: a real local stack, a client of it, a database per test."""

import os
import signal
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.database import upgrade
from client.process import leave
from models.settings import Settings
from tests.support.local_stack import running_stack, settings_in, temporary_folder
from workers.stack import Stack

TEMPLATE = "longshore_template"

_seed = os.environ.get("LONGSHORE_SEED")
for _name in [name for name in os.environ if name.startswith(("LONGSHORE_", "TEMPORAL_"))]:
    del os.environ[_name]  # what the developer's shell points at is not for tests
if _seed:
    os.environ["LONGSHORE_SEED"] = _seed  # tests/faults/test_random.py
os.environ["TEMPORAL_CONFIG_FILE"] = os.environ["LONGSHORE_CONFIG"] = os.devnull
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it puts into the background; what is started here would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A running stack with Temporal (time skipping allowed) and PostgreSQL (migrated)."""
    with (
        temporary_folder() as folder,
        running_stack(settings_in(folder), migrate=upgrade) as running,
    ):
        _administer(running, "CREATE DATABASE {} TEMPLATE longshore", TEMPLATE)
        yield running


@pytest.fixture(scope="session")
def settings(stack: Stack) -> Settings:
    """Settings of the running stack, with the stack's own database."""
    return stack.settings


@pytest.fixture(scope="session")
async def temporal(stack: Stack) -> Client:
    """A client of the stack's Temporal, in the namespace `default`."""
    return await Client.connect(stack.temporal.address, data_converter=pydantic_data_converter)


@pytest.fixture
def database_url(stack: Stack) -> Iterator[str]:
    """The URL of a database of this test's own: migrated, empty, gone afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    _administer(stack, f"CREATE DATABASE {{}} TEMPLATE {TEMPLATE}", name)
    yield stack.postgres.url(name)
    _administer(stack, "DROP DATABASE {} WITH (FORCE)", name)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave with the tests' own exit code (see client.process.leave)."""
    if (status := config.stash.get(_EXIT_STATUS, None)) is not None:
        leave(status)


_EXIT_STATUS = pytest.StashKey[int]()


def _administer(stack: Stack, statement: str, database: str) -> None:
    with psycopg.connect(stack.postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(database)))  # pyright: ignore[reportArgumentType]
