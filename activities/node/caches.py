"""Keeps what a node has cached within the limits of its disk."""

import asyncio
import logging
import shutil
import time
from datetime import timedelta
from pathlib import Path

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.environment_store import EnvironmentStore
from longshore.activities.node.environments import remove_build_caches
from longshore.activities.node.retention import PRUNE_EVERY
from longshore.scheduling.node_caches import CacheLimits, Disk, Eviction, evict, is_too_full

_log = logging.getLogger(__name__)


class Caches:
    """The caches of one agent."""

    def __init__(
        self,
        folder: Path,
        artifacts: ArtifactCache,
        limits: CacheLimits,
        environments: EnvironmentStore | None = None,
        data: DataCache | None = None,
    ) -> None:
        self.data = data or DataCache(folder, outputs=OutputStore(artifacts.store_url))
        self._folder = folder
        self.artifacts = artifacts
        self._limits = limits
        self._environments = environments or EnvironmentStore(folder / "environments")

    async def keep_evicting(self, every: timedelta = PRUNE_EVERY) -> None:
        """Look again and again whether the disk is too full, until cancelled."""
        while True:
            try:
                done = await asyncio.to_thread(self.evict)
            except OSError as error:
                _log.warning("caches cannot be looked at now: %s", error)
            else:
                if done.keys:
                    _log.info("removed %.1f GB of caches: %s", done.bytes / 1e9, done.reason)
            await asyncio.sleep(every.total_seconds())

    def evict(self, disk: Disk | None = None) -> Eviction:
        """Remove what was left half made, and the least recently used where the disk is too full;
        return what that was. Raises OSError."""
        if not self._folder.exists():
            return Eviction()
        self.artifacts.tidy(time.time())
        self._environments.tidy()
        self.data.tidy()
        disk = disk or _disk_of(self._folder)
        if not is_too_full(disk, self._limits):
            return Eviction()
        kinds = (self.artifacts, self._environments, self.data)
        entries = [kind.entries() for kind in kinds]
        plan = evict(disk, self._limits, [entry for each in entries for entry in each])
        for kind, each in zip(kinds, entries, strict=True):
            kind.evict(plan.among(each))
        if plan.keys:  # what uv keeps for builds to come
            remove_build_caches(self._folder)
        return plan


def _disk_of(folder: Path) -> Disk:
    usage = shutil.disk_usage(folder)
    return Disk(usage.used + usage.free, usage.free)  # what is kept for root is nobody's
