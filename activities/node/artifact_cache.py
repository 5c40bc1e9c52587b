"""What a node keeps of the artifact store: objects and snapshots, each fetched once.

    cache/objects/TENANT/ab/abcdef....01234567    as in the store, verified
    cache/objects/TENANT/ab/....part              being fetched, by whoever has it locked
    cache/snapshots/TENANT/DIGEST.json            locked while a job is given its files

Jobs have copies of their own, so an object that goes from here harms none that runs.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.failpoints import blocking_failpoint
from longshore.activities.node.file_locks import Held, lock, try_lock
from longshore.activities.storage import GivenUp, put_local
from longshore.models.snapshot import Snapshot
from longshore.scheduling.node_caches import Cached

AT_ONCE = 4
"""Objects of one snapshot that are on their way at a time."""
_PART = ".part"
_STALE_AFTER = 3600.0
"""Seconds after which what somebody began to fetch, and has not locked, is left for good."""


class HeldSnapshot:
    """A snapshot whose objects stay in the cache until `release`."""

    def __init__(self, snapshot: Snapshot, held: Held) -> None:
        self.snapshot = snapshot
        self._held = held

    def release(self) -> None:
        self._held.release()


class ArtifactCache:
    """The cache below one folder, which agents of one machine may share. Its methods block."""

    def __init__(self, folder: Path, store: ArtifactStore) -> None:
        self._objects = folder / "objects"
        self._snapshots = folder / "snapshots"
        self._store = store

    @property
    def store_url(self) -> str:
        return self._store.url

    def hold(
        self,
        tenant: str,
        digest: str,
        given_up: threading.Event,
        say: Callable[[int, int], None] = lambda done, all_of_it: None,
    ) -> HeldSnapshot:
        """Have a snapshot here with all its objects; `say` hears bytes fetched, of how many.

        Raises StoreError where the store is away, DamagedError where what it has cannot be used,
        GivenUp, and OSError where the disk refuses.
        """
        while True:
            snapshot = self._snapshot(tenant, digest, given_up)
            held = try_lock(self._file_of(tenant, digest), shared=True)
            if held is None:  # it is being removed
                _require(given_up)
                time.sleep(0.02)
                continue
            try:
                if os.fstat(held.fd).st_size == 0:  # it was removed, and the lock has made it
                    held.path.unlink(missing_ok=True)
                    held.release()
                    continue
                os.utime(held.fd)
                self._fetch_all(tenant, snapshot, given_up, say)
            except BaseException:
                held.release()
                raise
            return HeldSnapshot(snapshot, held)

    def path_of(self, tenant: str, name: str) -> Path:
        """Return where an object is, once it is here."""
        return self._objects / tenant / name[:2] / name

    def forget(self, tenant: str, digest: str) -> None:
        """Forget a snapshot, some of whose objects are not to be had: it may be stored anew."""
        self._file_of(tenant, digest).unlink(missing_ok=True)

    def drop(self, tenant: str, name: str) -> None:
        """Remove an object that is not as it was stored: it is fetched anew."""
        self.path_of(tenant, name).unlink(missing_ok=True)

    # --- eviction -----------------------------------------------------------------------

    def entries(self) -> list[Cached]:
        """Return each object with its bytes, when a job last used it, and whether one does now."""
        used_at: dict[tuple[str, str], float] = {}
        busy: set[tuple[str, str]] = set()
        for path in self._snapshots.glob("*/*.json"):
            held = try_lock(path)
            with held or contextlib.nullcontext():
                for name in _objects_in(path):
                    key = (path.parent.name, name)
                    used_at[key] = max(_time(path), used_at.get(key, 0.0))
                    if held is None:
                        busy.add(key)
        found: list[Cached] = []
        for path in self._objects.glob("*/*/*"):
            if path.name.endswith(_PART):
                continue
            key = (path.parts[-3], path.name)
            with contextlib.suppress(FileNotFoundError):
                its = path.stat()
                # One that belongs to no snapshot yet is on its way to one.
                at = max(used_at.get(key, 0.0), its.st_mtime)
                found.append(Cached(str(path), its.st_blocks * 512, at, in_use=key in busy))
        return found

    def evict(self, keys: Iterable[str]) -> None:
        """Remove objects, and the snapshots that had them and are not in use."""
        gone = set[str]()
        for key in keys:
            Path(key).unlink(missing_ok=True)
            gone.add(Path(key).name)
        for path in self._snapshots.glob("*/*.json"):
            held = try_lock(path)
            if held is None:
                continue
            with held:
                if not gone.isdisjoint(_objects_in(path)):
                    path.unlink(missing_ok=True)

    def tidy(self, now: float) -> None:
        """Remove what was left half fetched by those that were killed."""
        for path in (
            *self._objects.glob(f"*/*/*{_PART}"),
            *self._snapshots.glob(f"*/*{_PART}"),
            *self._snapshots.glob("*/.*"),
        ):
            if now - _time(path) > _STALE_AFTER and (held := try_lock(path)):
                with held:
                    path.unlink(missing_ok=True)

    # --- fetching -----------------------------------------------------------------------

    def _file_of(self, tenant: str, digest: str) -> Path:
        return self._snapshots / tenant / f"{digest}.json"

    def _snapshot(self, tenant: str, digest: str, given_up: threading.Event) -> Snapshot:
        path = self._file_of(tenant, digest)
        if found := _read(path, digest):
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(path.with_name(f"{digest}{_PART}"), given_up) as part:
            if read := _read(path, digest):  # another has fetched it meanwhile
                found = read
            else:
                found = self._store.snapshot(tenant, digest)
                put_local(path, found.model_dump_json(exclude_defaults=True).encode())
                blocking_failpoint("bring_code.after-snapshot")
            part.path.unlink(missing_ok=True)
        return found

    def _fetch_all(
        self,
        tenant: str,
        snapshot: Snapshot,
        given_up: threading.Event,
        say: Callable[[int, int], None],
    ) -> None:
        missing = [name for name in sorted(snapshot.objects)
                   if not self.path_of(tenant, name).exists()]  # fmt: skip
        if not missing:
            return
        sizes = dict.fromkeys(missing, 0)
        for file in snapshot.files:
            for part in file.parts:
                if part.object in sizes:
                    end = part.offset + part.size
                    sizes[part.object] = max(sizes[part.object], end)
        done, total = 0, sum(sizes.values())
        over = threading.Event()

        def fetch(name: str) -> int:
            if not over.is_set():
                self._fetch(tenant, name, given_up)
            return sizes[name]

        say(0, total)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="objects") as threads:
            try:
                for size in threads.map(fetch, missing):
                    done += size
                    say(done, total)
            finally:
                over.set()

    def _fetch(self, tenant: str, name: str, given_up: threading.Event) -> None:
        path = self.path_of(tenant, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{name}{_PART}")
        while not path.exists():
            _require(given_up)
            with lock(part, given_up) as held:
                if path.exists():  # another has fetched it meanwhile
                    part.unlink(missing_ok=True)
                    return
                try:
                    self._fill(held, tenant, name, given_up)
                except BaseException:
                    part.unlink(missing_ok=True)
                    raise
                blocking_failpoint("bring_code.before-object")
                part.rename(path)
                path.chmod(0o400)
                blocking_failpoint("bring_code.after-object")

    def _fill(self, held: Held, tenant: str, name: str, given_up: threading.Event) -> None:
        data = self._store.get(tenant, name)
        _require(given_up)
        os.ftruncate(held.fd, 0)
        left, at = memoryview(data), 0
        while at < len(left):
            at += os.pwrite(held.fd, left[at:], at)
        os.fsync(held.fd)


def _read(path: Path, digest: str) -> Snapshot | None:
    """Return a cached snapshot; None where it is not there, or something else."""
    with contextlib.suppress(OSError, ValidationError):
        found = Snapshot.model_validate_json(path.read_bytes())
        if found.digest == digest:
            return found
    return None


def _require(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise GivenUp


def _objects_in(path: Path) -> set[str]:
    """Return the names of the objects of a snapshot, without a look at whether it is valid."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        files = json.loads(path.read_bytes())["files"]
        return {part["object"] for file in files for part in file.get("parts", ())}
    return set()


def _time(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
