"""The environments that a node holds.

    cache/environments/ID.json        which folder is the environment; written when it is whole
    cache/environments/ID-ab12        the environment, where it was built and stays
    cache/environments/ID-ab12.lock   locked by the jobs that use it, and by who builds it
    cache/environments/ID-ab12.same   looked at since its last job: it is as it was built
    cache/environments/ID.build       locked by who builds: one at a time
    cache/environments/ID.failed      why the last build failed

An environment cannot be moved, so it is built where it stays, and counts once its marker does.
What has no marker was left by a build that was killed, and goes.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.activities.node.file_locks import Held, try_lock
from longshore.activities.node.preparing import in_background
from longshore.activities.node.removal import remove_what_can_be
from longshore.activities.storage import put_local
from longshore.models.data import HeldData, name_of_environment
from longshore.models.text import span
from longshore.scheduling.node_caches import Cached

FAILED_FOR = timedelta(minutes=10)
"""How long a build that failed is not tried again on its node."""


class HeldEnvironment:
    """An environment that stays as long as it is held."""

    def __init__(self, folder: Path, held: Held, afterwards: Callable[[], None]) -> None:
        self.folder = folder
        self._held = held
        self._afterwards = afterwards

    def release(self) -> None:
        """Release it, and look in the background whether it is as it was."""
        self._held.release()
        in_background(self._afterwards)


class EnvironmentStore:
    """The environments below one folder, which agents of one machine may share. Its methods block
    for as long as a look at the files of an environment takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, identity: str) -> HeldEnvironment | None:
        """Return an environment that is here as it was built; None where it has to be built."""
        marker = self._marker(identity)
        for _ in range(3000):
            found = _json(marker)
            folder = self.folder / str(found.get("folder") or "-")
            if not found or not folder.is_dir():
                return None
            held = try_lock(_lock_of(folder), shared=True)
            if held is None or _json(marker) != found:  # it is looked at or removed, or was
                if held:
                    held.release()
                time.sleep(0.02)
                continue
            if not _unlink(_same_of(folder)) and found.get("stamp") != stamp_of(folder):
                # A job has changed it: those that use it go on, others get a new one.
                held.release()
                marker.unlink(missing_ok=True)
                return None
            os.utime(marker)
            return HeldEnvironment(folder, held, partial(self.look, identity))
        return None

    def look(self, identity: str) -> None:
        """Look whether an environment that no job uses is as it was built: the next one to take it
        need not. 5 us a file, 0.2 s where it holds PyTorch."""
        marker = self._marker(identity)
        found = _json(marker)
        folder = self.folder / str(found.get("folder") or "-")
        if found and folder.is_dir() and (held := try_lock(_lock_of(folder))):
            with held:
                if found.get("stamp") == stamp_of(folder):
                    _same_of(folder).touch()

    def failure(self, identity: str) -> str:
        """Return why the last build failed and until when it counts, where that was a short while
        ago; else nothing."""
        found = _json(self._failed(identity))
        age = timedelta(seconds=time.time() - found.get("at", 0.0))
        if not timedelta(0) <= age < FAILED_FOR:
            return ""
        return (
            f"{found.get('message', '')} (so it was {span(age, units=1)} ago; this node builds it "
            f"again in {span(FAILED_FOR - age, units=1)}, and at once where a version, file or "
            "index is another)"
        )

    def try_building(self, identity: str) -> Held | None:
        """Return the right to build an environment; None where somebody else builds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return try_lock(self.folder / f"{identity}.build")

    def begin(self, identity: str) -> tuple[Path, Held]:
        """Return a new folder to build in, and its lock."""
        while True:
            folder = self.folder / f"{identity}-{uuid.uuid4().hex[:8]}"
            if held := try_lock(_lock_of(folder)):
                return folder, held

    def succeeded(self, identity: str, folder: Path, seconds: float, digest: str) -> None:
        """Have a folder be the environment from now on: it is read-only, and on the disk. `digest`
        is that of what jobs bring for it."""
        _close(folder)
        content = {"folder": folder.name, "stamp": stamp_of(folder), "seconds": seconds,
                   "bytes": _bytes_of(folder), "digest": digest}  # fmt: skip
        put_local(self._marker(identity), json.dumps(content).encode(), durable=True)
        self._failed(identity).unlink(missing_ok=True)

    def leave(self, identity: str, folder: Path) -> None:
        """Remove what a build used, and what it made where that is no environment: it may have
        filled the disk. What it wrote is still read by those that waited for it."""
        if _json(self._marker(identity)).get("folder") != folder.name:
            _remove_folder(folder)
        remove_what_can_be(source_of(folder))

    def failed(self, identity: str, message: str) -> None:
        """Note why a build failed."""
        content = json.dumps({"at": time.time(), "message": message}).encode()
        put_local(self._failed(identity), content)

    def entries(self) -> list[Cached]:
        """Return each environment with its bytes, its last use, and whether a job uses it."""
        found: list[Cached] = []
        for marker in self.folder.glob("*.json"):
            content = _json(marker)
            if content:
                free = try_lock(_lock_of(self.folder / str(content["folder"])))
                if free:
                    free.release()
                with contextlib.suppress(FileNotFoundError):
                    size, at = int(content["bytes"]), marker.stat().st_mtime
                    found.append(Cached(str(marker), size, at, in_use=free is None))
        return found

    def held(self) -> list[HeldData]:
        """Return the environments by the names under which the control plane knows them: one that
        an older version built by its identity, of which no job knows."""
        return [
            HeldData(
                name=name_of_environment(str(_json(marker).get("digest") or marker.stem)),
                bytes=entry.bytes, total=entry.bytes,
                used_at=datetime.fromtimestamp(entry.used_at, UTC),
            )
            for entry in self.entries()
            for marker in (Path(entry.key),)
        ]  # fmt: skip

    def evict(self, keys: Iterable[str]) -> None:
        """Remove environments that no job uses."""
        for key in keys:
            marker = Path(key)
            folder = self.folder / str(_json(marker).get("folder") or "-")
            if held := try_lock(_lock_of(folder)):
                with held:
                    marker.unlink(missing_ok=True)
                    _remove(folder)

    def tidy(self) -> None:
        """Remove what no marker names and nobody uses or builds."""
        for lock in self.folder.glob("*-*.lock"):
            folder = lock.with_suffix("")
            if held := try_lock(lock):
                with held:
                    marker = self._marker(folder.name.partition("-")[0])
                    if _json(marker).get("folder") != folder.name:
                        _remove(folder)
                    else:  # of a build that was killed at its end
                        remove_what_can_be(source_of(folder))

    def _marker(self, identity: str) -> Path:
        return self.folder / f"{identity}.json"

    def _failed(self, identity: str) -> Path:
        return self.folder / f"{identity}.failed"


def source_of(folder: Path) -> Path:
    """Return where the files are that an environment is built from."""
    return folder.with_name(f"{folder.name}.source")


def stamp_of(folder: Path) -> str:
    """Return a digest of sizes, times and inodes of the files of an environment.

    Not of compiled code: Python may add that for a job whose user may write there.
    """
    digest = hashlib.sha256()
    for path, folders, names, here in os.fwalk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            its = os.stat(name, dir_fd=here, follow_symlinks=False)
            digest.update(
                f"{path}/{name} {its.st_size} {its.st_ino} {its.st_mtime_ns} {its.st_ctime_ns}\n"
                .encode(errors="surrogateescape")
            )  # fmt: skip
    return digest.hexdigest()


def _bytes_of(folder: Path) -> int:
    size = 0
    for _, _, names, here in os.fwalk(folder):
        for name in names:
            size += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
    return size


def _close(folder: Path) -> None:
    """Let nobody write to what is below a folder, and everybody of the node's jobs read it."""
    for _, folders, names, here in os.fwalk(folder, topdown=False):
        for name in (*names, *folders):
            mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
            if mode & 0o170000 != 0o120000:  # no link
                readable = mode | ((mode & 0o500) >> 3) | ((mode & 0o500) >> 6)
                os.chmod(name, readable & 0o777 & ~0o222, dir_fd=here)
    folder.chmod(0o555)


def _remove_folder(folder: Path) -> None:
    """Remove a folder that is closed to writing."""
    # The first thousand levels: those below, which a script of its own made, were never closed.
    with contextlib.suppress(FileNotFoundError, RecursionError):
        for path, _, _ in os.walk(folder):
            Path(path).chmod(0o700)
    remove_what_can_be(folder)


def _remove(folder: Path) -> None:
    """Remove an environment with all that belongs to it; its lock last."""
    _remove_folder(folder)
    remove_what_can_be(source_of(folder))
    folder.with_name(f"{folder.name}.log").unlink(missing_ok=True)
    _same_of(folder).unlink(missing_ok=True)
    _lock_of(folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _same_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.same")


def _unlink(path: Path) -> bool:
    """Remove a file; return whether it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
