"""A PostgreSQL that is stopped, and keeps its connections: whoever looks is told."""

import asyncio
import os
import signal
import time
from datetime import timedelta

import pytest
from sqlalchemy import text

from longshore.activities import database
from longshore.activities.database import Database
from longshore.models.errors import UnavailableError


async def backend_of(reader: Database) -> int:
    """Return the process of the server that serves the reader's connection."""
    async with reader.transaction() as connection:
        return await connection.scalar(text("SELECT pg_backend_pid()"))


async def ask_while_it_stops(reader: Database, pid: int, *, in_the_middle: bool) -> None:
    if not in_the_middle:
        os.kill(pid, signal.SIGSTOP)
    async with reader.transaction() as connection:
        await connection.execute(text("SELECT 1"))
        os.kill(pid, signal.SIGSTOP)
        await connection.execute(text("SELECT 2"))


@pytest.mark.parametrize("in_the_middle", [False, True])
async def test_a_server_that_is_stopped_keeps_nobody_waiting(
    database_url: str, monkeypatch: pytest.MonkeyPatch, in_the_middle: bool
) -> None:
    reader = Database.for_people(database_url, pool_size=1)
    pid = await backend_of(reader)
    monkeypatch.setattr(database, "SILENCE", timedelta(seconds=1))
    try:
        async with asyncio.timeout(30):
            with pytest.raises(UnavailableError, match="has not answered for 1 s: its server is"):
                await ask_while_it_stops(reader, pid, in_the_middle=in_the_middle)
            monkeypatch.undo()
            assert await backend_of(reader) != pid
    finally:
        os.kill(pid, signal.SIGCONT)
        await reader.close()


async def test_a_connection_outlives_the_limit_of_each_transaction(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Database.for_people(database_url, pool_size=1)
    pid = await backend_of(reader)
    with monkeypatch.context() as patch:
        patch.setattr(database, "SILENCE", timedelta(seconds=1))
        assert await backend_of(reader) == pid
    # Those after it have more time: a busy machine may take a second for one.
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert await backend_of(reader) == pid
    await reader.close()
