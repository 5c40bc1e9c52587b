"""Has on a node what a job needs while it waits for its turn there: code, packages, data."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from longshore.activities.node.artifact_cache import ArtifactCache, HeldSnapshot
from longshore.activities.node.code_folder import WORK, MissingObjectError, unpack
from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_sets import bring_sets
from longshore.activities.node.environments import Environments
from longshore.activities.node.preparing import NotReadyError, in_thread, unless_unwanted
from longshore.activities.node.removal import remove_what_can_be
from longshore.models.errors import DamagedError, StoreError
from longshore.models.job import JobSpec
from longshore.models.node_messages import Prepared, PrepareRequest
from longshore.scheduling.staging import Wanted

Told = Callable[[Prepared], None]


class Preparation:
    """Brings what jobs need that wait, into the caches that the start of a process asks first."""

    def __init__(
        self,
        folder: Path,
        artifacts: ArtifactCache,
        environments: Environments,
        data: DataCache,
        image_folders: Sequence[Path] = (),
    ) -> None:
        """`folder`, which is emptied, is for what is needed meanwhile; `image_folders` what of
        this node a job in an image may see."""
        remove_what_can_be(folder)  # of an agent that was killed
        self._folder, self._image_folders = folder, image_folders
        self._artifacts, self._environments, self._data = artifacts, environments, data

    async def bring(
        self, request: PrepareRequest, unwanted: threading.Event, told: Told
    ) -> Prepared:
        """Bring code, environment and data of a job; `told` hears how far its data is.

        What cannot be had is told in the answer: the start of the process tries again, and says
        what lacks. Raises GivenUp as soon as nobody wants it, OSError where the disk refuses.
        """
        spec, missing = request.spec, list[str]()
        wanted = Wanted("", 0, start=request.expected_start, deficit=request.deficit)
        answer = Prepared(job_id=request.job_id, node_id=request.node_id)

        def sizes(here: int, total: int) -> None:
            told(answer.model_copy(update={"bytes": here, "total": total}))

        data = asyncio.create_task(
            bring_sets(self._data, spec, wanted, unwanted, sizes, self._image_folders)
        )
        try:
            try:
                await self._bring_environment(spec, unwanted)
            except (NotReadyError, StoreError, DamagedError, MissingObjectError) as error:
                missing.append(str(error))
            here, total, lacking = await data
        finally:
            data.cancel()
            await asyncio.wait({data})
        return answer.model_copy(
            update={"bytes": here, "total": total, "missing": tuple([*missing, *lacking][:50])}
        )

    async def _bring_environment(self, spec: JobSpec, unwanted: threading.Event) -> None:
        """Have the code of a job in the cache, and its environment built from it."""
        digest = spec.code.snapshot if spec.code else None
        if digest is None and spec.environment is None:
            return
        held = None
        folder = self._folder / uuid.uuid4().hex
        try:
            if digest is not None:
                fetch = partial(self._artifacts.hold, spec.tenant, digest, unwanted)
                held = await unless_unwanted(unwanted, fetch, HeldSnapshot.release)
            if spec.environment is None:
                return
            (folder / WORK).mkdir(parents=True)
            if held is not None:
                path_of = partial(self._artifacts.path_of, spec.tenant)
                await in_thread(partial(unpack, held.snapshot, path_of, folder, unwanted))
            environment = await self._environments.take(
                spec, folder, unwanted, lambda what: None, lambda data: None
            )
            if environment is not None:
                environment.release()
        finally:
            if held is not None:
                held.release()
            await in_thread(partial(remove_what_can_be, folder))
