"""Whether a control worker is well: an agent imports none of this, and so starts faster."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime

from sqlalchemy import text
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.database import Database
from longshore.activities.node.system import boot_clock
from longshore.activities.pollers import POLL_SEEN_WITHIN, last_polls
from longshore.models.errors import LongshoreError
from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.workers.health import OK, Parts

CHECK_EVERY = 2.0
ANSWER_WITHIN = 3.0
STALE_AFTER = 15.0
"""Seconds after which a check that has not ended counts as failed."""


class ControlHealth:
    """Whether a control worker polls, and its servers answer."""

    def __init__(self, temporal: Client, database: Database) -> None:
        self._temporal = temporal
        self._database = database
        self._parts: dict[str, str] = dict.fromkeys(
            ("server", "worker", "database"), "not looked at yet"
        )
        self._checked_at = asyncio.get_running_loop().time()
        self._last_poll: datetime | None = None
        self._last_poll_seen_at = 0.0

    def parts(self) -> Parts:
        """Return what the last check found."""
        age = asyncio.get_running_loop().time() - self._checked_at
        if age > STALE_AFTER:
            return {**self._parts, "checks": f"the last one ended {age:.0f} s ago"}
        return self._parts

    async def keep_checking(self) -> None:
        """Check again and again, until cancelled."""
        while True:
            server, database = await asyncio.gather(
                _within(self._look_at_server()), _within(self._look_at_database())
            )
            polls = self._polls_seen if server == OK else "unknown, as the server does not answer"
            self._parts = {"server": server, "worker": polls, "database": database}
            self._checked_at = asyncio.get_running_loop().time()
            await asyncio.sleep(CHECK_EVERY)

    _polls_seen = ""

    async def _look_at_server(self) -> str:
        seen = await last_polls(self._temporal, CONTROL_TASK_QUEUE, workflows=True)
        polls = self._is_recent(seen.get(self._temporal.identity))
        self._polls_seen = OK if polls else f"does not poll task queue {CONTROL_TASK_QUEUE}"
        return OK

    def _is_recent(self, poll: datetime | None) -> bool:
        """Return whether the last poll, by the server's clock, is not the one of long ago.

        By how long it has been the last: this machine's clock may differ from the server's.
        """
        now = boot_clock()
        if poll != self._last_poll:
            self._last_poll, self._last_poll_seen_at = poll, now
        return (
            poll is not None and now - self._last_poll_seen_at < POLL_SEEN_WITHIN.total_seconds()
        )

    async def _look_at_database(self) -> str:
        async with self._database.transaction() as connection:
            await connection.execute(text("SELECT 1"))
        return OK


async def _within(check: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            return await check
    except TimeoutError:
        return f"no answer within {ANSWER_WITHIN:g} s"
    except LongshoreError as error:
        return str(error)
    except RPCError as error:
        return f"does not answer: {error.message}"
