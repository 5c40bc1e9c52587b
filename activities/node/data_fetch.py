"""A data set on its way to a node: who wants it, how one file of it comes, how it ends."""

import contextlib
import hashlib
import json
import os
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshore.activities.failpoints import blocking_failpoint
from longshore.activities.node.data_source import Listing, Source, SourceFile
from longshore.activities.node.file_locks import Held, lock
from longshore.activities.node.system import boot_clock
from longshore.activities.node.write_share import WriteShare
from longshore.activities.storage import GivenUp, put_local
from longshore.models.data import SEPARATOR
from longshore.models.errors import DamagedError
from longshore.models.text import count
from longshore.scheduling.staging import Wanted

STATE = ".set"
"""At the end of the name of the folder that is beside the files of a data set."""
ROOM = 65_536
"""Bytes that are kept to say what lacks where the disk has filled up."""
_LONGEST_FAILED = 300
"""Files that are named as those that could not be had; a last line stands for all others."""


class Fetch:
    """A data set of this node, and who wants it. All of it is guarded by its cache."""

    def __init__(self, tenant: str, source: Source, listing: Listing, folder: Path) -> None:
        self.tenant, self.source, self.listing = tenant, source, listing
        self.folder = folder
        """Of its files."""
        self.state = folder.with_name(folder.name + STATE)
        """Of what is known of it."""
        self.key = f"{tenant}/{folder.name}"
        self.wants: dict[object, Wanted] = {}
        self.pending = deque[SourceFile]()
        self.under_way = 0
        self.retry_at = 0.0
        self.heard_at = boot_clock()
        """When something of it came last, or was asked for."""
        self.has_own_thread = False
        self.tries: dict[str, int] = {}
        self.retried: dict[str, str] = {}
        """Files that have failed and are tried again, with why."""
        self.failed: dict[str, str] = {}
        """Those that could not be had after the tries."""
        self.damaged = False
        """Whether one of these was not as it was listed: the source may have changed."""
        self.files_here = 0
        self.bytes_here = 0
        self.given_up = threading.Event()
        self.done = threading.Event()
        self.disk_error: OSError | None = None
        self.held: Held | None = None

    @property
    def part(self) -> float:
        """What is here of it: by bytes where the source says all sizes, else by files."""
        if any(file.size is None for file in self.listing.files) or not self.listing.total:
            return self.files_here / len(self.listing.files)
        return self.bytes_here / self.listing.total

    @property
    def is_of_use(self) -> bool:
        """Whether another job may join it; one that lacks something is tried anew for that."""
        return not (self.done.is_set() and (self.failed or self.disk_error))

    def release(self) -> None:
        """Let it be removed, once nobody wants it and nothing is on its way."""
        if self.held is not None and not self.wants and not self.under_way:
            self.held.release()


def bring(fetch: Fetch, file: SourceFile, share: WriteShare) -> int:
    """Have one file here, whole, and return its size.

    Raises StoreError, SourceError, DamagedError, GivenUp, and OSError where the disk refuses.
    """
    target = fetch.folder / file.path
    name = hashlib.sha256(file.path.encode(errors="surrogateescape")).hexdigest()[:32]
    with lock(fetch.state / "parts" / name, fetch.given_up) as held:
        if target.is_file():  # another agent has fetched it meanwhile
            held.path.unlink(missing_ok=True)
            return target.stat().st_size
        try:
            _fill(held, fetch, file, share)
            os.fchmod(held.fd, 0o555 if file.executable else 0o444)
            blocking_failpoint("fetch_data.before-file")
            target.parent.mkdir(parents=True, exist_ok=True)
        except BaseException:
            held.path.unlink(missing_ok=True)
            raise
        held.path.rename(target)
        blocking_failpoint("fetch_data.after-file")
    return target.stat().st_size


def _fill(held: Held, fetch: Fetch, file: SourceFile, share: WriteShare) -> None:
    os.ftruncate(held.fd, 0)
    at, sha = 0, hashlib.sha256()
    for piece in fetch.source.read(file):
        fetch.heard_at = boot_clock()
        if file.size is not None and at + len(piece) > file.size:
            raise DamagedError(f"more bytes come than {file.size:,}")
        share.write(held.fd, piece, at, fetch.given_up)
        if fetch.given_up.is_set():
            raise GivenUp
        at += len(piece)
        if file.sha256:
            sha.update(piece)
    if file.size is not None and at != file.size:
        raise DamagedError(f"{at:,} bytes came of {file.size:,}")
    if file.sha256 and sha.hexdigest() != file.sha256:
        raise DamagedError("its content does not have the digest that is on record for it")
    if not fetch.source.is_as_listed(file):
        raise DamagedError("it was changed at its source since that was listed")


def finish(fetch: Fetch) -> None:
    """Say beside a data set that it is whole, or what lacks."""
    with contextlib.suppress(OSError):  # those who wait ask `failed` and `disk_error` too
        (fetch.state / "room").unlink(missing_ok=True)
        if fetch.failed or fetch.disk_error:
            said = [f"{path}{SEPARATOR}{why}" for path, why in fetch.failed.items()]
            if fetch.disk_error is not None:
                said.insert(0, f"{SEPARATOR}the disk of the node refuses: {fetch.disk_error}")
            if (more := len(said) - _LONGEST_FAILED) > 0:
                files = count(more, "more file")
                why = f"it is, or holds, one of {files} that could not be fetched"
                said[_LONGEST_FAILED:] = [f"{SEPARATOR}{why}"]
            text = "\n".join(line.replace("\n", " ") for line in said)
            put_local(fetch.state / "failed", f"{text}\n".encode(errors="surrogateescape"))
        else:
            close_folder(fetch.folder)
            blocking_failpoint("fetch_data.before-complete")
            put_local(fetch.state / "complete", b"")
    fetch.done.set()


def link_equal(old: Fetch, new: Fetch) -> None:
    """Have in a set what an older one of its source has of the same files, as hard links: files
    that were fetched are never written again, and each set can go without the other.

    What nothing but its size tells from another file is fetched, and what cannot be linked.
    """
    same = {replace(file, location="") for file in old.listing.files if file.tag or file.sha256}
    for file in new.listing.files:
        if replace(file, location="") in same and is_there(old.folder / file.path):
            target = new.folder / file.path
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(old.folder / file.path, target)


def is_there(path: Path) -> bool:
    """Whether there is a file of this name, which may be none that the disk can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def close_folder(folder: Path) -> None:
    """Let nobody make a file below a folder, but for root."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o555)


def open_folder(folder: Path) -> None:
    """Let files be made below a folder, and removed."""
    with contextlib.suppress(FileNotFoundError):
        for path, _, _ in os.walk(folder):
            Path(path).chmod(0o755)


def bytes_of(folder: Path, *, own: bool = False) -> int:
    """Return the bytes of the files below a folder that are there; with `own` the part of this
    folder in those that lie in others too."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(f"{path}/{name}")  # noqa: PTH116 (of many files: a Path is slow)
                size += found.st_size // (max(found.st_nlink, 1) if own else 1)
    return size


def read_set(path: Path) -> dict[str, Any]:
    """Return a `set.json`; nothing where there is none, or where it is damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) and "name" in found else {}
    return {}
