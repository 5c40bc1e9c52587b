"""A disk of a node that refuses: the node takes no more jobs, and again once there is room.

Where it was full, the agent lifts that itself. A disk that is broken or read-only stays with a
person: that it can be written once more does not mean that it is well.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from temporalio.client import (
    Client,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError

from longshore.activities.node.system import boot_clock
from longshore.models.departures import FULL_DISK, disk_refuses, is_full
from longshore.models.messages import CommandReason, node_workflow_id

_REFUSES = (*FULL_DISK, errno.EROFS, errno.EIO)
"""Faults of a disk that another start would meet as well."""
_ROOM = 1 << 20
"""Bytes that have to fit: far more than a start writes."""
_LOOKS = 6
"""How often the folder is looked at in the time after which it counts as well."""
_ANSWER_WITHIN = timedelta(seconds=5)
_log = logging.getLogger(__name__)


class FullDisk:
    """Has a node take no jobs while the disk of its agent's work folder refuses."""

    def __init__(self, client: Client, node_id: str, folder: Path, well_after: timedelta) -> None:
        """`well_after`: how long the folder must have been writable before a full disk is over."""
        self._client = client
        self._node_id = node_id
        self._folder = folder
        self._well_after = well_after.total_seconds()
        self._why = ""
        self._full = asyncio.Event()

    async def refused(self, error: OSError) -> str:
        """Return why nothing could be started; cordon the node where its disk is why."""
        why = why_refused(error)
        if why is None:
            return str(error)
        await self._tell("cordon", why)
        self.closed_for(why)  # also where no answer came: it may have been heard
        return why

    def closed_for(self, why: str | None) -> None:
        """Note why the node takes no jobs: `keep_lifting` ends that where it is a full disk."""
        if why and is_full(why):
            self._why = why
            self._full.set()

    async def keep_lifting(self) -> None:
        """Have the node take jobs again once its full disk has had room for long enough, until
        cancelled. A node that takes none for another reason stays as it is."""
        while True:
            await self._full.wait()
            await self._until_well()
            self._full.clear()  # first: it may be full again before the answer
            if await self._tell("lift", self._why):
                _log.info("node %s: its work folder has room again", self._node_id)
            else:
                self._full.set()

    async def _until_well(self) -> None:
        since = None
        while since is None or boot_clock() - since < self._well_after:
            await asyncio.sleep(self._well_after / _LOOKS)
            if not await asyncio.to_thread(has_room, self._folder):
                since = None
            elif since is None:
                since = boot_clock()

    async def _tell(self, update: str, why: str) -> bool:
        handle = self._client.get_workflow_handle(node_workflow_id(self._node_id))
        try:
            await handle.execute_update(
                update, CommandReason(reason=why), rpc_timeout=_ANSWER_WITHIN
            )
        except (
            RPCError,
            WorkflowUpdateFailedError,
            WorkflowUpdateRPCTimeoutOrCancelledError,
        ) as error:
            task = asyncio.current_task()
            if task and task.cancelling():  # the client makes a timeout of it
                raise asyncio.CancelledError from error
            _log.warning("node %s did not hear the update %s: %r", self._node_id, update, error)
            return False
        return True


def has_room(folder: Path) -> bool:
    """Return whether the folder takes a new file of 1 MiB, which is removed again."""
    file = folder / "room"
    try:
        try:
            with file.open("wb") as trying:
                trying.write(bytes(_ROOM))
                trying.flush()
                os.fsync(trying.fileno())
        finally:
            file.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def why_refused(error: Exception) -> str | None:
    """Return what to say of a disk of the agent that refused; None of any other error."""
    if isinstance(error, OSError) and error.errno in _REFUSES:
        return disk_refuses(error.errno)
    return None


def is_full_disk(lines: Iterable[str]) -> bool:
    """Return whether a program says that a disk is full."""
    return any(os.strerror(code) in line for line in lines for code in FULL_DISK)
