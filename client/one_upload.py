"""Of equal submits at the same time one uploads, and the others find it stored."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from longshore.activities.node.file_locks import try_lock

_BETWEEN_LOOKS = 0.1
"""Seconds between two looks whether another submit has sent the same."""


@contextlib.asynccontextmanager
async def alone(locks: Path | None, what: str) -> AsyncIterator[None]:
    """Let one submit of this machine at a time send `what`; all at once where the folder `locks`
    cannot be written."""
    held = None
    if locks is not None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(locks.mkdir, parents=True, exist_ok=True)
            path = locks / hashlib.sha256(what.encode()).hexdigest()
            while (held := try_lock(path)) is None:  # noqa: ASYNC110 (another process has it)
                await asyncio.sleep(_BETWEEN_LOOKS)
    try:
        yield
    finally:
        if held is not None:
            with contextlib.suppress(OSError), held:
                held.path.unlink(missing_ok=True)
