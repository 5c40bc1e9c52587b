"""Waiting for a condition with a deadline, in place of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError

from longshore.client.errors import as_ours
from longshore.models.errors import UnavailableError

T = TypeVar("T")


async def eventually(
    ask: Callable[[], T | Awaitable[T]], timeout: float = 120.0, interval: float = 0.02
) -> T:
    """Call `ask` until it returns something true, and return that.

    At first each `interval` seconds, then ever less often: what takes long may be seen a tenth
    later, and the machine does not spend itself on asking.

    An AssertionError inside `ask` counts as "not yet", and so does a server that did not answer in
    its time, be it asked directly, or closed the connection: some do where nothing has come for
    some seconds, which a loaded machine may take to send a question. After `timeout` seconds (many
    times what a loaded machine takes) it is raised, or one that shows the last value.
    """
    began = time.monotonic()
    while True:
        last_error: Exception | None = None
        value: T | None = None
        try:
            answer = ask()
            value = await answer if inspect.isawaitable(answer) else answer
        except (AssertionError, UnavailableError, ConnectionResetError) as error:
            last_error = error
        except RPCError as error:
            if not isinstance(as_ours(error, "what is waited for"), UnavailableError):
                raise
            last_error = error
        if value:
            return value
        waited = time.monotonic() - began
        if waited > timeout:
            raise last_error or AssertionError(f"still {value!r} after {timeout} seconds")
        await asyncio.sleep(max(interval, min(waited / 10, 0.5)))
