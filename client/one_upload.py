"""Of equal submits at the same time one uploads, and the others find it stored."""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from longshore.activities.node.file_locks import Held, try_lock

_BETWEEN_LOOKS = 0.1
"""Seconds between two looks whether another submit has sent the same."""
_SAID_AFTER = 2.0
"""Seconds after which a submit says that it waits for another one."""
_STUCK_AFTER = 60.0
"""Seconds in which another submit has sent nothing, after which it is waited for no more."""
_now = time.monotonic

Say = Callable[[str], None]


@contextlib.asynccontextmanager
async def alone(
    locks: Path | None, what: str, say: Say = lambda words: None
) -> AsyncIterator[Callable[[], None]]:
    """Let one submit of this machine at a time send `what`; all at once where the folder `locks`
    cannot be written, and where the one that sends is stuck. `say` hears of a wait.

    Yields what tells the others that some of it was sent.
    """
    held = None
    if locks is not None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(locks.mkdir, parents=True, exist_ok=True)
            held = await _lock(locks / hashlib.sha256(what.encode()).hexdigest(), say)

    def moved() -> None:
        if held is not None:
            with contextlib.suppress(OSError):
                os.utime(held.fd)

    try:
        yield moved
    finally:
        if held is not None:
            with contextlib.suppress(OSError), held:
                held.path.unlink(missing_ok=True)


async def _lock(path: Path, say: Say) -> Held | None:
    """Return the lock once it can be had; None where who has it is suspended, or its store hangs.
    Raises OSError."""
    began = moved_at = _now()
    seen, said = _look(path), False
    while (held := try_lock(path)) is None:
        now = _now()
        if (look := _look(path)) != seen:
            seen, moved_at = look, now
        if now - moved_at >= _STUCK_AFTER:
            say("The other submit has sent nothing for a minute: it is waited for no more")
            return None
        if not said and now - began >= _SAID_AFTER:
            said = True
            say("Waiting for another submit, which sends the same code")
        await asyncio.sleep(_BETWEEN_LOOKS)
    return held


def _look(path: Path) -> tuple[int, int] | None:
    """Return what changes whenever who has a lock has sent something, or another has it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
