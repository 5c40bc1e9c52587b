"""Brings the code of a job to its folder, before its process starts."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from longshore.activities.node.artifact_cache import ArtifactCache, HeldSnapshot
from longshore.activities.node.code_folder import WORK, MissingObjectError, unpack
from longshore.activities.node.preparing import NotReadyError, in_thread, unless_unwanted
from longshore.activities.node.publisher import FIRST_WAIT, LONGEST_WAIT
from longshore.activities.node.system import boot_clock
from longshore.activities.storage import GivenUp
from longshore.models.errors import DamagedError, StoreError
from longshore.models.node_messages import RunProcessRequest
from longshore.models.retry import FailureClass
from longshore.models.snapshot import Snapshot

PATIENCE = 60.0
"""Seconds that a start waits for a store that is away."""
_DAMAGED_TRIES = 3
"""How often an object is fetched that is not what was stored: it may have suffered on its way."""

_log = logging.getLogger(__name__)


async def bring_code(
    cache: ArtifactCache,
    request: RunProcessRequest,
    job_folder: Path,
    unwanted: threading.Event,
    say: Callable[[str], None] = lambda what: None,
) -> Snapshot | None:
    """Have a job's snapshot in its folder, as it was when it was submitted, and return it; None
    of a job without code.

    `say` hears how far that is. Raises NotReadyError where the store is away for too long or does
    not have the snapshot whole, GivenUp as soon as the job is unwanted, OSError where the disk of
    the node refuses.
    """
    code, tenant = request.spec.code, request.spec.tenant
    if code is None:
        return None
    if code.snapshot is None:
        raise NotReadyError(
            FailureClass.START,
            "its code was not stored: submit it with `longshore submit`, or with the Python "
            "client, which store the folder first",
        )
    digest = code.snapshot
    deadline, wait, tries = boot_clock() + PATIENCE, FIRST_WAIT, 0
    while True:
        try:
            held = await unless_unwanted(
                unwanted, partial(cache.hold, tenant, digest, unwanted, _told(say)),
                HeldSnapshot.release,
            )  # fmt: skip
            try:
                say("unpacking its code")
                await in_thread(partial(_unpack, cache, tenant, held, job_folder, unwanted))
            finally:
                held.release()
        except StoreError as error:
            why, failure = f"its code cannot be fetched: {error}", FailureClass.NODE
            over = boot_clock() >= deadline
        except DamagedError as error:
            tries += 1
            await in_thread(partial(cache.forget, tenant, digest))
            failure, over = FailureClass.START, tries >= _DAMAGED_TRIES
            why = (
                f"its code is not to be had: {error}. Submit the job with --anew, which stores "
                "it again, under the `artifact_store` that this node has"
            )
        except MissingObjectError as error:
            why, failure = f"its code left the cache: {error}", FailureClass.NODE
            over = boot_clock() >= deadline
        else:
            say("")
            return held.snapshot
        _log.warning("%s: %s", request.placement.job_id, why)
        if over:
            raise NotReadyError(failure, why)
        say(why)
        if await asyncio.to_thread(unwanted.wait, wait):
            raise GivenUp
        wait = min(wait * 2, LONGEST_WAIT)


def lies_in(snapshot: Snapshot | None, folder: Path, job_folder: Path) -> bool:
    """Return whether files of a snapshot lie in this folder of its job."""
    root = (job_folder / WORK).absolute()
    if snapshot is None or not folder.is_relative_to(root):
        return False
    below = folder.relative_to(root).parts
    return any(tuple(file.path.split("/"))[: len(below)] == below for file in snapshot.files)


def _unpack(
    cache: ArtifactCache,
    tenant: str,
    held: HeldSnapshot,
    job_folder: Path,
    unwanted: threading.Event,
) -> None:
    try:
        unpack(held.snapshot, partial(cache.path_of, tenant), job_folder, unwanted)
    except MissingObjectError as error:
        cache.drop(tenant, error.name)
        raise


def _told(say: Callable[[str], None]) -> Callable[[int, int], None]:
    def told(done: int, all_of_it: int) -> None:
        say(f"fetching its code: {done / 1e6:.0f} of {all_of_it / 1e6:.0f} MB")

    return told
