"""What a job gave back, as data of another one: the files of its last attempt that gave any."""

import posixpath
from collections.abc import Iterator

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node.data_source import (
    Listing,
    SourceFile,
    refuse_name,
)
from longshore.activities.node.source_links import with_linked
from longshore.activities.storage import SourceError
from longshore.models.checkpoint import Manifest, StoredFile
from longshore.models.data import OF_A_JOB
from longshore.models.errors import DamagedError


class OutputSource:
    """The outputs of one job. Files of rank 0 lie at the top, those of rank 3 in `rank-3`.

    A link to a file or a folder among them is what it leads to; another one is left out.
    """

    local = None
    """It is no path of this machine."""
    place = ""

    def __init__(self, store: OutputStore, job_id: str) -> None:
        self.url = f"{OF_A_JOB}{job_id}"
        self._store = store
        self._job_id = job_id
        self._manifests: dict[str, Manifest] = {}
        """By the rank, as text."""

    def overlaps(self, store: str) -> bool:
        """It has nothing of a store but what the job gave back."""
        return False

    def look(self) -> Listing:
        """Return what is stored. Raises SourceError where nothing is, StoreError otherwise."""
        try:
            manifests = self._store.of_attempt(self._job_id)
        except DamagedError as error:
            raise SourceError(str(error)) from None
        files: dict[str, SourceFile] = {}
        for manifest in manifests:
            below = "" if manifest.rank == 0 else f"rank-{manifest.rank}/"
            for path, index in _places(manifest).items():
                stored = manifest.files[index]
                file = SourceFile(
                    f"{below}{path}", f"{manifest.rank}/{index}", stored.size,
                    tag=f"{stored.sha256} {stored.mode & 0o111:o}", sha256=stored.sha256,
                    executable=bool(stored.mode & 0o100),
                )  # fmt: skip
                refuse_name(self.url, file.path)
                files.setdefault(file.path, file)
        if not files:
            raise SourceError(f"job {self._job_id} has stored no outputs, or not any more")
        self._manifests = {str(manifest.rank): manifest for manifest in manifests}
        return Listing(self.url, tuple(files[path] for path in sorted(files)))

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """Read a file piece by piece. Raises StoreError and DamagedError."""
        rank, _, index = file.location.partition("/")
        yield from self._store.read(self._manifests[rank], int(index))

    def is_as_listed(self, file: SourceFile) -> bool:
        """What is stored is never changed, and each file has its digest."""
        return True


def _places(manifest: Manifest) -> dict[str, int]:
    """Return by path the index of its content, also of what links lead to.

    Raises SourceError where that is too much.
    """
    stored = manifest.files
    regular = {file.path: index for index, file in enumerate(stored) if file.link is None}
    links = {file.path: _target(file) for file in stored if file.link is not None}
    return with_linked(regular, links)


def _target(link: StoredFile) -> str:
    """Return where a link leads, seen from the folder of the outputs."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.link or ""))
