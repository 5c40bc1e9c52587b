"""What jobs give back: files of their folders, stored after each attempt.

They lie beside the code, in the form of checkpoints: a manifest for each rank, stored last.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.node.checkpoint_files import files_of, is_unfinished
from longshore.activities.storage import GivenUp, speaking
from longshore.models.checkpoint import Manifest
from longshore.models.output_pattern import OutputPatterns


class OutputStore(CheckpointStore):
    """Outputs of jobs, in the folder `outputs` of the artifact store."""

    def __init__(self, artifact_store: str) -> None:
        super().__init__(f"{artifact_store.rstrip('/')}/outputs")

    def keep(
        self,
        folder: Path,
        patterns: OutputPatterns,
        draft: Manifest,
        given_up: threading.Event,
        left_out: Callable[[str, str], None] = lambda path, why: None,
    ) -> Manifest:
        """Store the files of a folder that match the patterns; return their manifest.

        `draft` says whose they are. `left_out` hears of files that match, and of folders, which
        cannot be read or stored, and why. Raises what `publish` raises.
        """

        def is_given_back(path: str) -> bool:
            if given_up.is_set():  # a job may have made millions of files
                raise GivenUp
            return patterns.matches(path)

        # Nobody writes any more: what is called as a draft of a checkpoint is a file as any other.
        # What the agent set aside is none of what the job gives back.
        found = partial(
            files_of, named=is_given_back, enters=lambda path: not is_unfinished(path),
            left_out=left_out,
        )  # fmt: skip
        return self.publish(folder, draft, given_up, files_in=found)

    def of_attempt(self, job_id: str, attempt: int | None = None) -> tuple[Manifest, ...]:
        """Return what an attempt gave back, by rank; without one the last that gave a file, or
        else the last that stored that there is none.

        Raises DamagedError where a manifest is not as it was stored.
        """
        names = sorted(self.names(job_id), key=lambda name: name.rank)
        attempts = {name.attempt for name in names} if attempt is None else {attempt}
        found: tuple[Manifest, ...] = ()
        for each in sorted(attempts, reverse=True):
            its = tuple(self.manifest(job_id, name) for name in names if name.attempt == each)
            if any(manifest.files for manifest in its):
                return its
            found = found or its
        return found

    def read(self, manifest: Manifest, index: int) -> Iterator[bytes]:
        """Read one file piece by piece. Raises DamagedError where it has gone."""
        return self._chunks(manifest, index)

    def fetch(self, manifest: Manifest, index: int, folder: Path) -> None:
        """Fetch one file into an empty folder. Raises DamagedError."""
        self._fetch(manifest, index, folder, threading.Event())

    def _speaking(self, done: str) -> contextlib.AbstractContextManager[None]:
        return speaking("artifact store", self.url, done)
