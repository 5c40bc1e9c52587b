"""Tells the control plane what the node of this agent really holds."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.environment_recipe import python_of_jobs
from longshore.activities.node.environment_store import EnvironmentStore
from longshore.activities.node.launch import clean_env
from longshore.activities.node.system import boot_clock
from longshore.models.data import HeldData, HeldReport, name_of_python
from longshore.models.messages import node_workflow_id

EVERY = 60.0
"""Seconds between two reports at least."""
_POLL_EVERY = 1.0
_IMAGES_EVERY = 300.0
"""Seconds between two polls of the images: others may load and remove them."""
_MOST = 500
_LONGEST_IMAGE = 250
_LIST_IMAGES = ("images", "--format", "{{.Repository}}:{{.Tag}}")
_log = logging.getLogger(__name__)


class Holdings:
    """What one node holds, and what was last told of it."""

    def __init__(
        self, data: DataCache, environments: EnvironmentStore, runtime: str | None
    ) -> None:
        """`runtime` is the program that runs images, if any."""
        self._data, self._environments, self._runtime = data, environments, runtime
        self._changed = threading.Event()
        self._images: list[str] = []
        self._images_at = float("-inf")
        data.changed = self._changed.set

    async def keep_telling(self, client: Client, node_id: str, epoch: Callable[[], int]) -> None:
        """Send what is held at each registration, and when it has changed, until cancelled."""
        told: tuple[int, HeldReport] | None = None
        told_at = float("-inf")
        while True:
            now = epoch()
            new = now > 0 and (told is None or told[0] != now)
            stale = self._changed.is_set() or boot_clock() - self._images_at >= _IMAGES_EVERY
            if new or (now > 0 and stale and boot_clock() - told_at >= EVERY):
                self._changed.clear()
                try:
                    report = await self.report()
                    if told == (now, report) or await _tell(client, node_id, report):
                        told, told_at = (now, report), boot_clock()
                    else:
                        self._changed.set()
                except (OSError, ValueError) as error:
                    _log.warning("what the node holds cannot be told now: %r", error)
                    self._changed.set()
                    told_at = boot_clock()
            await asyncio.sleep(_POLL_EVERY)

    async def report(self) -> HeldReport:
        """Return what is here. Raises OSError."""
        if boot_clock() - self._images_at >= _IMAGES_EVERY:
            self._images, self._images_at = await self._listed(), boot_clock()
        sets = await asyncio.to_thread(self._data.held)
        built = await asyncio.to_thread(self._environments.held)
        python = await asyncio.to_thread(python_of_jobs)
        names = [] if python is None else [name_of_python(python.version, python.platform)]
        names += [f"image {name}" for name in self._images]
        held = [*sets, *(HeldData(name=name) for name in names), *built]
        return HeldReport(held=tuple(held[:_MOST]))

    async def _listed(self) -> list[str]:
        """Return the names of the images that are here, each as jobs may write it."""
        if not self._runtime:
            return []
        process = await asyncio.create_subprocess_exec(
            self._runtime, *_LIST_IMAGES, env=clean_env(os.environ),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(30):
                out, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return []
        names = [
            line for line in out.decode(errors="replace").split()
            if "<none>" not in line and len(line) <= _LONGEST_IMAGE
        ]  # fmt: skip
        return sorted({name for full in names for name in names_of_image(full)})


def names_of_image(full: str) -> list[str]:
    """Return the names that mean an image: docker.io/library/ubuntu:latest is ubuntu too."""
    short = [full]
    for prefix in ("docker.io/", "library/", "localhost/"):
        short += [name.removeprefix(prefix) for name in short if name.startswith(prefix)]
    untagged = [name.removesuffix(":latest") for name in short if name.endswith(":latest")]
    return [*short, *untagged]


async def _tell(client: Client, node_id: str, report: HeldReport) -> bool:
    handle = client.get_workflow_handle(node_workflow_id(node_id))
    try:
        await handle.signal("holds", report)
    except RPCError as error:
        _log.warning("node %s did not hear what it holds: %r", node_id, error)
        return False
    return True
