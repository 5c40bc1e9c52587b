"""The checkpoint store: checkpoints of jobs under an fsspec URL, whole or not at all.

    JOB/manifests/000002-000005-s400-0000of0001.manifest    attempt, number, step, rank of ranks
    JOB/files/000002-000005-s400-0000of0001-UNIQUE/000000   the files, in the manifest's order

The manifest comes last, with the size and checksum of every file, and of itself: what has none,
or does not agree with it, is no checkpoint.
"""

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from longshore.activities.failpoints import blocking_failpoint, wall_clock
from longshore.activities.node.checkpoint_files import files_of, new_folder, remove, replace
from longshore.activities.storage import (
    GivenUp,
    connect,
    is_local,
    make_folder,
    put_whole,
    speaking,
)
from longshore.models.base import JOB_ID, Frozen
from longshore.models.checkpoint import Manifest, ManifestName, StoredFile
from longshore.models.errors import DamagedError, StoreError
from longshore.scheduling.checkpoints import WholeCheckpoint, surplus, whole

AT_ONCE = 4
"""Files of one checkpoint that are on their way at a time."""
CHUNK = 4 * 2**20


class Restored(Frozen):
    """What a folder was restored from."""

    checkpoint: WholeCheckpoint
    manifests: tuple[Manifest, ...]
    """By rank."""
    origins: dict[str, int]
    """The rank whose file it is, by path."""
    damaged: tuple[str, ...] = ()
    """What was wrong with newer ones."""
    unusable: tuple[ManifestName, ...] = ()
    """Those newer ones, of all ranks."""


class NoneUsableError(DamagedError):
    """What is stored is damaged, all of it."""

    def __init__(self, why: str, names: Sequence[ManifestName]) -> None:
        super().__init__(why)
        self.names = names


class CheckpointStore:
    """Checkpoints under one fsspec URL. Its methods block, and raise StoreError where the store
    cannot be read or written. Safe to use from threads."""

    def __init__(self, url: str) -> None:
        self.url = url

    def names(self, job_id: str) -> tuple[ManifestName, ...]:
        """Return what is stored of a job, whole or not."""
        with self._speaking("read"):
            found = map(ManifestName.parse, self._ls(self._manifests(job_id)))
            return tuple(name for name in found if name is not None)

    def newest(self, job_id: str) -> WholeCheckpoint | None:
        """Return the newest checkpoint that every rank has stored."""
        return next(iter(whole(self.names(job_id))), None)

    def manifest(self, job_id: str, name: ManifestName) -> Manifest:
        """Return one manifest. Raises DamagedError when it is not as it was written, or gone."""
        with self._speaking("read"):
            try:
                content: bytes = self._fs.cat_file(f"{self._manifests(job_id)}/{name}")
            except FileNotFoundError:
                raise DamagedError(f"the manifest {name} of {job_id} has gone") from None
        body, _, digest = content.rstrip(b"\n").rpartition(b"\n")
        if content != _sealed(body) or not digest:
            raise DamagedError(f"the manifest {name} of {job_id} is damaged")
        try:
            manifest = Manifest.model_validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"the manifest {name} of {job_id} cannot be read: {error}"
            ) from None
        if (manifest.job_id, manifest.name) != (job_id, name):
            raise DamagedError(f"the manifest {name} of {job_id} is of another checkpoint")
        return manifest

    def publish(
        self,
        folder: Path,
        draft: Manifest,
        given_up: threading.Event,
        wanted: Callable[[StoredFile], bool] = lambda file: True,
        files_in: Callable[[Path], list[StoredFile]] = files_of,
    ) -> Manifest:
        """Store what is in `folder` as a checkpoint; return its manifest. It has the files that
        are `wanted`, of those that `files_in` finds there.

        `draft` says what it is; its files, bytes, prefix and time of publishing are filled in.
        Nothing of it counts unless this returns. Raises GivenUp, and DamagedError where a file
        was changed meanwhile.
        """
        prefix = f"{draft.name.stem}-{uuid.uuid4().hex[:8]}"
        with self._speaking("written"):
            there = f"{self._files(draft.job_id)}/{prefix}"
            blocking_failpoint("publish.before-files")
            files = [file for file in files_in(folder) if wanted(file)]
            make_folder(self._fs, there)
            try:
                stored = _in_parallel(
                    lambda index: self._put_file(
                        folder, files[index], f"{there}/{index:06}", given_up
                    ),
                    len(files),
                )
            except BaseException:
                with contextlib.suppress(Exception):  # removed with the checkpoint's, later
                    self._fs.rm(there, recursive=True)
                raise
            manifest = draft.model_copy(
                update={
                    "prefix": prefix, "files": tuple(stored),
                    "bytes": sum(file.size for file in stored),
                    "published_at": wall_clock(),
                }
            )  # fmt: skip
            blocking_failpoint("publish.before-manifest")
            content = _sealed(manifest.model_dump_json().encode())
            path = f"{self._manifests(draft.job_id)}/{manifest.name}"
            put_whole(self._fs, path, content, durable=True)
            blocking_failpoint("publish.after-manifest")
        return manifest

    def restore(
        self,
        job_id: str,
        rank: int,
        folder: Path,
        given_up: threading.Event,
        newer_than: tuple[int, int] = (-1, 0),
    ) -> Restored | None:
        """Put the newest whole checkpoint of a job that is not damaged in the place of `folder`.

        Every rank gets the files of all; of a name that several wrote, its own. Returns None
        where nothing is stored that is newer than this order. Raises NoneUsableError where all of
        that is damaged, GivenUp, and OSError when the folder cannot be written; `folder` is
        left as it was then.
        """
        damaged: list[str] = []
        unusable: list[ManifestName] = []
        for found in whole(self.names(job_id)):
            if found.order <= newer_than:
                break
            fresh = new_folder(folder)
            try:
                manifests = tuple(self.manifest(job_id, name) for name in found.manifests)
                origins = self._fetch_all(manifests, rank, fresh, given_up)
                replace(folder, fresh)
            except DamagedError as error:
                damaged.append(str(error))
                unusable.extend(found.manifests)
            else:
                return Restored(
                    checkpoint=found, manifests=manifests, origins=origins,
                    damaged=tuple(damaged), unusable=tuple(unusable),
                )  # fmt: skip
            finally:
                remove(fresh)
        if damaged:
            raise NoneUsableError("; ".join(damaged), unusable)
        return None

    def prune(
        self, job_id: str, name: ManifestName, keep: int, unusable: Sequence[ManifestName] = ()
    ) -> int:
        """Keep the newest `keep` whole checkpoints that are not known to be damaged; return how
        many manifests were removed.

        To be called by the rank that has published `name`, while it publishes nothing else:
        what it once began and did not finish goes too.
        """
        names = self.names(job_id)
        old = surplus(names, keep, name.rank, name.ranks, unusable)
        for each in names:
            if str(each) in old:
                self._remove(job_id, each)
        left = {each.stem for each in names if str(each) not in old}
        with self._speaking("written"):
            for prefix in self._ls(self._files(job_id)):
                its = ManifestName.parse(f"{prefix.rpartition('-')[0]}.manifest")
                if (
                    its
                    and its.rank == name.rank
                    and its.order <= name.order
                    and its.stem not in left
                ):
                    self._fs.rm(f"{self._files(job_id)}/{prefix}", recursive=True)
        blocking_failpoint("publish.after-prune")
        return len(old)

    def delete(self, job_id: str) -> None:
        """Remove all that is stored of a job, manifests first. Nothing there is no error."""
        with self._speaking("written"):
            for folder in (self._manifests(job_id), self._files(job_id), self._folder(job_id)):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm(folder, recursive=True)

    def jobs(self) -> tuple[str, ...]:
        """Return the jobs of which something is stored."""
        with self._speaking("read"):
            return tuple(sorted(filter(JOB_ID.fullmatch, self._ls(self._root))))

    # --- files --------------------------------------------------------------------------

    def _put_file(
        self, folder: Path, file: StoredFile, path: str, given_up: threading.Event
    ) -> StoredFile:
        if file.link is not None:
            return file
        digest, size = hashlib.sha256(), 0
        with (folder / file.path).open("rb") as source, self._fs.open(path, "wb") as target:
            while chunk := source.read(CHUNK):
                _require(given_up)
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
            its = os.fstat(source.fileno())
            if is_local(self._fs):
                target.flush()
                os.fsync(target.fileno())
        if (size, its.st_mtime_ns) != (file.size, file.modified_ns):
            raise DamagedError(
                f"{file.path} was changed while it was read: write another file and rename it"
            )
        blocking_failpoint("publish.after-first-file")
        return file.model_copy(update={"sha256": digest.hexdigest()})

    def _fetch_all(
        self,
        manifests: Sequence[Manifest],
        rank: int,
        folder: Path,
        given_up: threading.Event,
    ) -> dict[str, int]:
        """Fetch every file into `folder`; return the rank that each is from."""
        wanted: dict[str, tuple[Manifest, int]] = {}
        own_first = sorted(manifests, key=lambda manifest: (manifest.rank != rank, manifest.rank))
        for manifest in own_first:
            for index, file in enumerate(manifest.files):
                wanted.setdefault(file.path, (manifest, index))
        sources = list(wanted.values())
        _in_parallel(lambda place: self._fetch(*sources[place], folder, given_up), len(sources))
        for manifest, index in sources:  # last: nothing is to be written through a link
            file = manifest.files[index]
            if file.link is not None:
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                (folder / file.path).symlink_to(file.link)
        return {path: manifest.rank for path, (manifest, _) in wanted.items()}

    def _fetch(
        self, manifest: Manifest, index: int, folder: Path, given_up: threading.Event
    ) -> None:
        file = manifest.files[index]
        if file.link is not None:
            return
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with target.open("xb") as out:
            for chunk in self._chunks(manifest, index):
                _require(given_up)
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
        if (size, digest.hexdigest()) != (file.size, file.sha256):
            raise DamagedError(
                f"{file.path} of the checkpoint {manifest.name.stem} of {manifest.job_id} is "
                "damaged"
            )
        # No program of a job runs as whoever fetches it (setuid), be it another user.
        target.chmod(file.mode & 0o777)
        os.utime(target, ns=(file.modified_ns, file.modified_ns))

    def _chunks(self, manifest: Manifest, index: int) -> Iterator[bytes]:
        path = f"{self._files(manifest.job_id)}/{manifest.prefix}/{index:06}"
        with self._speaking("read"):
            try:
                with self._fs.open(path, "rb") as source:
                    while chunk := source.read(CHUNK):
                        yield chunk
            except FileNotFoundError:
                raise DamagedError(
                    f"{manifest.files[index].path} of the checkpoint {manifest.name.stem} of "
                    f"{manifest.job_id} has gone"
                ) from None

    def _remove(self, job_id: str, name: ManifestName) -> None:
        with self._speaking("written"):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._manifests(job_id)}/{name}")
            for prefix in self._ls(self._files(job_id)):
                if prefix.startswith(f"{name.stem}-"):
                    self._fs.rm(f"{self._files(job_id)}/{prefix}", recursive=True)

    # --- the store ----------------------------------------------------------------------

    @cached_property
    def _place(self) -> tuple[Any, str]:
        return connect(self.url)

    @property
    def _fs(self) -> Any:
        return self._place[0]

    @property
    def _root(self) -> str:
        return self._place[1]

    def _folder(self, job_id: str) -> str:
        if not JOB_ID.fullmatch(job_id):
            raise StoreError(f"the job id {job_id!r} cannot name a folder")
        return f"{self._root}/{job_id}"

    def _manifests(self, job_id: str) -> str:
        return f"{self._folder(job_id)}/manifests"

    def _files(self, job_id: str) -> str:
        return f"{self._folder(job_id)}/files"

    def _ls(self, folder: str) -> list[str]:
        try:
            entries = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries)

    def _speaking(self, done: str) -> contextlib.AbstractContextManager[None]:
        return speaking("checkpoint store", self.url, done)


def _sealed(body: bytes) -> bytes:
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _in_parallel(do: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results for 0 to count - 1; raises the first error when no call runs any more."""
    if count < 2:
        return [do(index) for index in range(count)]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        futures = [threads.submit(do, index) for index in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _require(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise GivenUp
