"""What an attempt goes on from: its stored checkpoint, put into its folder, or that as it is."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longshore.activities.checkpoints.store import CheckpointStore, NoneUsableError, Restored
from longshore.activities.node.checkpoint_files import set_aside
from longshore.activities.node.publisher import FIRST_WAIT, LONGEST_WAIT, in_thread
from longshore.activities.node.system import boot_clock
from longshore.activities.storage import GivenUp
from longshore.models.checkpoint import LocalCheckpoint, ManifestName
from longshore.models.errors import StoreError
from longshore.scheduling.checkpoints import resume, uses_folder

RESTORE_PATIENCE = 60.0
"""Seconds that a start waits for a store that is away, where work would be lost without."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What an attempt goes on from."""

    restored: Restored | None = None
    """None where the folder stays as it is."""
    ahead: bool = False
    """Whether the folder is known to hold more than the store."""
    error: str = ""
    """What was damaged of what is stored, or why it begins anew."""
    unusable: Sequence[ManifestName] = ()
    """The manifests of that."""
    anew: bool = False
    """Whether the folder was emptied: there is nothing to go on from."""

    @property
    def replaced(self) -> bool:
        """Whether another folder is in its place: what lay there before is gone from it."""
        return self.anew or self.restored is not None


@dataclass(frozen=True)
class Restoring:
    """Restores the folder of one process."""

    store: CheckpointStore
    job_id: str
    folder: Path
    unwanted: threading.Event
    say: Callable[[str], None]
    """Hears why the store cannot be read, and "" once it can."""

    async def patiently(
        self, local: LocalCheckpoint | None, rank: int, ranks: int, *, needs_no_store: bool
    ) -> Found:
        """Restore, and wait for a store that is away, but where that is not needed.

        Raises StoreError when it stays away, or all of it is damaged and the attempt could only
        begin anew; OSError, and GivenUp when the job is not wanted any more.
        """
        deadline, wait = boot_clock() + RESTORE_PATIENCE, FIRST_WAIT
        while True:
            try:
                found = await in_thread(lambda: self._once(local, rank, ranks))
                self.say("")
                return found
            except NoneUsableError as error:
                raise StoreError(f"none of what is stored can be used: {error}") from None
            except StoreError as error:
                self.say(str(error))
                if needs_no_store:
                    return Found()
                if boot_clock() >= deadline:
                    raise
            if await asyncio.to_thread(self.unwanted.wait, wait):
                raise GivenUp
            wait = min(wait * 2, LONGEST_WAIT)

    def _once(self, local: LocalCheckpoint | None, rank: int, ranks: int) -> Found:
        stored = self.store.newest(self.job_id)
        plan = resume(local, stored, ranks)
        if plan.anew:
            aside = set_aside(self.folder)
            # Without a save that may be code alone, or what earlier code has left.
            what = "what this rank had saved alone" if local else "what lay in its folder"
            kept = f"; {what} is in {aside}" if aside else ""
            return Found(error=f"{plan.reason}{kept}" if local or aside else "", anew=True)
        if plan.keep_local:
            ahead = local is not None and (stored is None or local.order > stored.order)
            return Found(ahead=ahead and uses_folder(local, ranks))
        bound = (-1, 0)
        if local is not None and uses_folder(local, ranks):
            bound = local.order
        _log.info("%s: restoring its checkpoint: %s", self.job_id, plan.reason)
        try:
            restored = self.store.restore(self.job_id, rank, self.folder, self.unwanted, bound)
        except NoneUsableError as error:
            if not uses_folder(local, ranks):
                raise
            why = f"it goes on from what its folder on this node holds: {error}"
            return Found(error=why, unusable=error.names)
        if restored is None or not restored.damaged:
            return Found(restored)
        why = f"it goes on from an older checkpoint: {'; '.join(restored.damaged)}"
        return Found(restored, error=why, unusable=restored.unusable)
