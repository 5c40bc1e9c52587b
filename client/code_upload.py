"""Storing a folder as a snapshot: read what changed, send what is new, record it.

What was stored of an upload that was cut off is counted on by the next.
"""

# A Path costs time for each file.
# ruff: noqa: PTH123

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from longshore.activities.artifacts.rows import (
    announce_objects,
    lease_objects,
    lease_snapshot,
    store_snapshot,
)
from longshore.activities.artifacts.store import ArtifactStore, object_name
from longshore.activities.database import Database
from longshore.client.code_cache import (
    CodeCache,
    is_settled,
    look_of,
    sha256_if_there,
    sha256_of,
)
from longshore.client.code_files import FoundFile, FoundFiles
from longshore.client.one_upload import Say, alone
from longshore.client.uncollected import in_thread_uncollected, uncollected
from longshore.models.addresses import without_secrets
from longshore.models.code import Code
from longshore.models.errors import LockedError, SpecError, StaleError, UnavailableError
from longshore.models.snapshot import Part, Snapshot, SnapshotFile, digest_of
from longshore.models.text import count
from longshore.models.units import format_bytes
from longshore.models.visible import shown
from longshore.scheduling.code_packs import Chunk, PackPlan, Placed, plan_packs

IN_FLIGHT = 6
"""Objects that are sent at once: 16 MB of memory each."""
_TRIES = 60
_BETWEEN_TRIES = 1.0
"""Seconds between tries where a sweep is just removing what an upload would count on."""
_LOCKED_TRIES = 40
"""Waits, each as long as the database has patience, for another submit that stores the same, or
objects that both have: as long together as a snapshot of 50,000 files may take."""
_WAITS = "Waiting for another submit, which stores the same code or a part of it"

Told = Callable[[int, int], None]
"""Hears how many bytes were sent of how many."""


@dataclass(frozen=True)
class Uploaded:
    """A snapshot that is stored, and what of it was sent."""

    code: Code
    sent_files: int
    sent_bytes: int
    environment: str = ""
    """What of it stands for the packages of our Python, in words."""

    def __str__(self) -> str:
        what = f"{count(self.code.files, 'file')}, {format_bytes(self.code.bytes)}"
        if not self.sent_bytes:
            return f"{what}: nothing sent, all of it is stored"
        sent = f"{count(self.sent_files, 'file')}, {format_bytes(self.sent_bytes)}"
        return f"{what}: {sent} sent"


@dataclass(frozen=True)
class UploadTo:
    """Where a snapshot goes, and what is known here of it."""

    database: Database
    store: ArtifactStore
    tenant: str
    cache: CodeCache
    locks: Path | None = None
    """A folder where submits of this machine see what others are just sending."""

    @property
    def key(self) -> str:
        """Names the store and the tenant in the cache: another database knows other objects."""
        url = self.store.url
        shown = without_secrets(url)
        if shown != url:  # two stores may look alike, and no secret is to lie in the cache
            shown = f"{shown} {hashlib.sha256(url.encode()).hexdigest()}"
        return f"{shown} {self.tenant}"


async def upload(
    folder: Path,
    found: FoundFiles,
    to: UploadTo,
    told: Told = lambda sent, of: None,
    *,
    anew: bool = False,
    waits: Say = lambda words: None,
) -> Uploaded:
    """Store the files of a folder as a snapshot, and keep it for a submit (`LEASE`); with `anew`
    all of it is sent, and takes the place of what is stored. `waits` hears of another submit.

    Raises SpecError where files change while they are read, StoreError, UnavailableError.
    """
    contents = await in_thread_uncollected(_read, folder, found.files, to.cache)
    digest = await in_thread_uncollected(_digest, found, contents)
    async with alone(to.locks, f"{to.key} {digest}", waits) as moved:

        def hear(sent: int, of: int) -> None:
            moved()
            told(sent, of)

        return await _upload(folder, found, to, hear, contents, digest, anew=anew, waits=waits)


async def _upload(
    folder: Path,
    found: FoundFiles,
    to: UploadTo,
    told: Told,
    contents: Mapping[str, str],
    digest: str,
    *,
    anew: bool,
    waits: Say,
) -> Uploaded:
    sent: set[str] = set()
    sent_bytes = locked = 0
    for _ in range(_TRIES):
        try:
            async with to.database.transaction() as connection:
                is_there = await lease_snapshot(connection, to.tenant, digest)
            if anew or not is_there:
                with uncollected():
                    sender = _Sender(found.files, contents, to, told, anew=anew)
                try:
                    parts = await sender.send()
                except SpecError:
                    await asyncio.to_thread(sender.forget, folder)
                    raise
                finally:
                    sent, sent_bytes = sent | sender.sent, sent_bytes + sender.sent_bytes
                snapshot = await in_thread_uncollected(_snapshot, found, contents, parts, digest)
                await store_snapshot(to.database, to.store, to.tenant, snapshot, anew=anew)
        except StaleError:
            await asyncio.sleep(_BETWEEN_TRIES)
            continue
        except LockedError:
            if (locked := locked + 1) >= _LOCKED_TRIES:
                raise
            if locked == 1:
                waits(_WAITS)
            continue
        files = sum(contents[file.path] in sent for file in found.files)
        code = Code(
            snapshot=digest, files=len(found.files),
            bytes=sum(file.size for file in found.files),
            commit=found.commit, changed=found.changed,
        )  # fmt: skip
        return Uploaded(code, files, sent_bytes)
    raise UnavailableError(
        f"an older copy of {folder} is being removed from the artifact store: submit again"
    )


def _read(folder: Path, files: Sequence[FoundFile], cache: CodeCache) -> dict[str, str]:
    """Return the SHA-256 of each file by its path. Blocks."""
    known = cache.contents(folder)
    contents: dict[str, str] = {}
    fresh: list[tuple[str, str, str]] = []
    changed: list[str] = []
    for file in files:
        look = look_of(file.stat)
        before = known.pop(file.path, None)
        if before is not None and before[0] == look:
            contents[file.path] = before[1]
            continue
        settled = is_settled(file.stat)
        try:
            contents[file.path] = sha256_of(file.source)
            now = look_of(os.lstat(file.source))
        except OSError as error:
            changed.append(f"{shown(file.path)} cannot be read: {error.strerror}")
            continue
        if now != look:
            changed.append(_changes(file.path))
        elif settled:
            fresh.append((file.path, look, contents[file.path]))
    if changed:
        raise SpecError(str(folder), tuple(changed))
    cache.keep_contents(folder, fresh, known)
    return contents


def _changes(path: str) -> str:
    return (
        f"{shown(path)} changed while it was read: submit again when nothing writes it, or leave "
        "it out by .gitignore or .longshoreignore"
    )


def _digest(found: FoundFiles, contents: Mapping[str, str]) -> str:
    files = ((file.path, contents[file.path], file.executable) for file in found.files)
    return digest_of(files, ((link.path, link.target) for link in found.links), found.folders)


def _snapshot(
    found: FoundFiles,
    contents: Mapping[str, str],
    parts: Mapping[str, Sequence[Part]],
    digest: str,
) -> Snapshot:
    """Return the snapshot. It is made of what was just read, and not validated: of 50,000 files
    that would take half a second."""
    make = SnapshotFile.model_construct
    files = tuple(
        make(
            path=file.path, size=file.size, sha256=contents[file.path],
            executable=file.executable,
            parts=tuple(parts[contents[file.path]]) if file.size else (),
        )
        for file in sorted(found.files, key=lambda each: each.path)
    )  # fmt: skip
    links = tuple(sorted(found.links, key=lambda each: each.path))
    snapshot = Snapshot.model_construct(
        version=1, files=files, links=links, folders=tuple(sorted(found.folders))
    )
    vars(snapshot)["digest"] = digest  # known already: it would be made of all files anew
    return snapshot


class _Sender:
    """Sends what a store lacks of some contents."""

    def __init__(
        self,
        files: Sequence[FoundFile],
        contents: Mapping[str, str],
        to: UploadTo,
        told: Told,
        *,
        anew: bool = False,
    ) -> None:
        self._anew = anew
        self._to = to
        self._told = told
        self._sizes: dict[str, int] = {}
        self._files: dict[str, FoundFile] = {}
        for file in sorted(files, key=lambda each: each.path):
            self._sizes.setdefault(contents[file.path], file.size)
            self._files.setdefault(contents[file.path], file)
        self.sent: frozenset[str] = frozenset()
        """Contents of which something was sent."""
        self.sent_bytes = 0
        self._wrong = ""
        """The content that a file was taken for and does not have."""

    def forget(self, folder: Path) -> None:
        """Forget what is known of a file that has another content than it was taken for: that may
        be seen neither by its times (who writes through mmap) nor by its size. Blocks."""
        if file := self._files.get(self._wrong):
            self._to.cache.keep_contents(folder, (), [file.path])
            self._to.cache.forget_contents(self._to.key, [self._wrong])

    async def send(self) -> dict[str, list[Part]]:
        """Return where each content lies, in order, once all of it is there."""
        known = await self._known()
        plan = await in_thread_uncollected(plan_packs, self._sizes, known)
        self.sent = plan.anew
        total = sum(self._sizes[sha256] for pack in plan.packs for sha256 in pack)
        total += sum(chunk.size for chunk in plan.chunks)
        placed: dict[str, dict[int, Part]] = {sha256: {} for sha256 in plan.anew}
        for sha256 in plan.anew:
            placed[sha256].update(plan.kept[sha256])
        gate = asyncio.Semaphore(IN_FLIGHT)
        objects = self._objects(plan)

        async def put(data: bytes, holds: Sequence[tuple[str, int, int, int]]) -> None:
            try:
                name = await asyncio.to_thread(object_name, data)
                async with self._to.database.transaction() as connection:
                    await announce_objects(connection, self._to.tenant, {name: len(data)})
                await asyncio.to_thread(self._to.store.put, self._to.tenant, name, data)
            finally:
                gate.release()
            new: dict[str, dict[int, Part]] = {}
            for sha256, position, offset, size in holds:
                part = Part(object=name, offset=offset, size=size)
                new.setdefault(sha256, {})[position] = part
                placed[sha256][position] = part
            self._to.cache.keep_parts(self._to.key, new)
            self.sent_bytes += len(data)
            self._told(self.sent_bytes, total)

        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await gate.acquire()
                    made = await asyncio.to_thread(next, objects, None)
                    if made is None:
                        break
                    tasks.create_task(put(*made))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        with uncollected():
            found = {**plan.kept, **placed}
            return {
                sha256: [at[each] for each in sorted(at)] if len(at) > 1 else [*at.values()]
                for sha256, at in found.items()
            }

    async def _known(self) -> Mapping[str, Placed]:
        """Return where contents lie in objects that are there, and stay for this upload."""
        if self._anew:
            return {}
        cache, key = self._to.cache, self._to.key
        noted = await in_thread_uncollected(cache.parts, key, sorted(self._sizes))
        with uncollected():
            names = {part.object for placed in noted.values() for part in placed.values()}
        async with self._to.database.transaction() as connection:
            there = await lease_objects(connection, self._to.tenant, names)
        if gone := names - there:
            await asyncio.to_thread(cache.forget_objects, key, gone)
            noted = {
                sha256: {at: part for at, part in placed.items() if part.object in there}
                for sha256, placed in noted.items()
            }
        return noted

    def _objects(
        self, plan: PackPlan
    ) -> Iterator[tuple[bytes, Sequence[tuple[str, int, int, int]]]]:
        """Yield the bytes of each object, and what lies in it: content, position in the content,
        offset in the object, size. Blocks. Raises SpecError where a file is not as it was."""
        for pack in plan.packs:
            data, holds = bytearray(), list[tuple[str, int, int, int]]()
            for sha256 in pack:
                content = self._content(sha256)
                holds.append((sha256, 0, len(data), len(content)))
                data += content
            yield bytes(data), holds
        for sha256, chunks in groupby(plan.chunks, key=attrgetter("sha256")):
            yield from self._chunks(sha256, list(chunks))

    def _chunks(
        self, sha256: str, chunks: Sequence[Chunk]
    ) -> Iterator[tuple[bytes, Sequence[tuple[str, int, int, int]]]]:
        """Yield the chunks of a large content, the last one only where the whole has its checksum.

        Where some are stored already, the file is read once more for that.
        """
        file, whole = self._files[sha256], sum(chunk.size for chunk in chunks)
        digest = hashlib.sha256() if whole == self._sizes[sha256] else None
        for chunk in chunks:
            data = self._range(sha256, chunk.at, chunk.size)
            if digest is not None:
                digest.update(data)
            if chunk is chunks[-1]:
                found = sha256_if_there(file.source) if digest is None else digest.hexdigest()
                if found != sha256:
                    raise self._refused(sha256)
            yield data, [(sha256, chunk.at, 0, chunk.size)]

    def _refused(self, sha256: str) -> SpecError:
        self._wrong = sha256
        return SpecError("upload", (_changes(self._files[sha256].path),))

    def _content(self, sha256: str) -> bytes:
        file = self._files[sha256]
        try:
            content = Path(file.source).read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self._refused(sha256)
        return content

    def _range(self, sha256: str, at: int, size: int) -> bytes:
        file = self._files[sha256]
        try:
            with open(file.source, "rb") as opened:
                opened.seek(at)
                content = opened.read(size)
            same = look_of(os.lstat(file.source)) == look_of(file.stat)
        except OSError:
            content, same = b"", False
        if not same or len(content) != size:
            raise self._refused(sha256)
        return content
