"""What an agent remembers of the processes that it ran: a folder for each attempt.

    runs/JOB-ATTEMPT/record.json    written before the start, and again with the report
                     started.json   by the supervisor, before the command runs
                     end.json       by the supervisor, when nothing of the job is left
                     stdout stderr  the spool of the logs
                     times          by the supervisor: when these grew (`output_times`)
                     public/        what the job itself writes: its progress file
                     request.json   of an engine: what it was started with, for the next agent
                     orders         by the supervisor of an engine: a FIFO for the next agent

Renaming a prepared folder to its name is the claim. It succeeds once, so a process is started at
most once for an attempt, whatever is delivered twice and whoever crashes.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from longshore.activities.node.removal import let_owner_in, remove_tree, remove_what_can_be
from longshore.models.base import JOB_ID, Instant, Wire
from longshore.models.bounds import TAKEN
from longshore.models.errors import StaleError
from longshore.models.node_messages import ProcessReport, RunProcessRequest
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass

_REQUEST = "request.json"


class RunRecord(Wire):
    """One attempt on this node."""

    job_id: str
    attempt: int
    epoch: int
    """The registration that it belongs to; 0 where it was stopped before it ever came."""
    claimed_at: Instant
    indirect: bool = False
    """True where a shell or a container runtime looks for the command, and says 126 or 127."""
    in_image: bool = False
    """True where a container runtime does, and says 125 where there is no container."""
    batch: bool = False
    """True where it is a batch of elements of an array."""
    folder: str | None = None
    """Name of its folder below `jobs`, where that is not the id of the job: a slot of an array has
    one for all its batches."""
    code: bool = False
    """True where it has brought its code."""
    checkpoints: bool = True
    """False where its job is known to keep no checkpoints in its private folder."""
    stop_reason: str | None = None
    """Why it was asked to stop, where it was."""
    stopped_as: FailureClass | None = None
    """The failure that the agent itself stopped it for."""
    report: ProcessReport | None = None
    """How it ended, once it has."""

    @property
    def owner(self) -> str:
        """Name of its folder below `jobs`."""
        return self.folder or self.job_id

    @property
    def key(self) -> PlacementKey:
        return PlacementKey(job_id=self.job_id, attempt=self.attempt)


class RunStore:
    """The run folders of one agent. Every write is whole.

    A report is on the disk before it is sent. A claim need not be: a machine that crashes comes
    back with another registration, under which nothing of an older one starts.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()  # no link is followed below it

    def folder(self, key: PlacementKey) -> Path:
        """Return the folder of an attempt. Raises ValueError for an id that cannot name one."""
        if not JOB_ID.fullmatch(key.job_id):
            raise ValueError(f"the job id {key.job_id!r} cannot name a folder")
        return self._folder / f"{key.job_id}-{key.attempt}"

    def find(self, key: PlacementKey) -> RunRecord | None:
        return _read(self.folder(key) / "record.json")

    def claim(self, record: RunRecord, request: RunProcessRequest | None = None) -> Path:
        """Store a new record and return its folder; with the request of what may outlive its
        agent.

        Raises StaleError when the attempt, or a newer one of its job, was here before.
        """
        self.refuse_older(record.key)
        folder = self.folder(record.key)
        prepared = self._folder / f".{folder.name}"
        shutil.rmtree(prepared, ignore_errors=True)
        (prepared / "public").mkdir(parents=True)
        (prepared / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
        if request is not None:
            (prepared / _REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
        try:
            prepared.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise StaleError(
                f"attempt {record.attempt} of {record.job_id} was claimed before."
            ) from None
        return folder

    def refuse_older(self, key: PlacementKey) -> None:
        """Raise StaleError where a newer attempt of a job was here."""
        newest = self.newest_attempt(key.job_id)
        if newest > key.attempt:
            raise StaleError(
                f"attempt {key.attempt} of {key.job_id} is over: attempt {newest} was here."
            )

    def save(self, record: RunRecord) -> None:
        """Replace the record of a claimed attempt, and wait for the disk."""
        _write(self.folder(record.key) / "record.json", record)

    def all(self) -> Iterator[RunRecord]:
        """Yield every readable record, in no order. What else lies there is none of ours."""
        for folder in self._folder.iterdir():
            if _names_run(folder.name) and (record := _read(folder / "record.json")):
                yield record

    def remove_drafts(self) -> None:
        """Remove what was claimed in part as an earlier life of the agent ended: nothing of that
        has started. Before anything starts."""
        for folder in self._folder.glob(".*-*"):
            if _names_run(folder.name.removeprefix(".")):
                remove_what_can_be(folder)

    def started(self, key: PlacementKey) -> dict[str, Any] | None:
        """Return what the supervisor wrote at the start; None when it never came so far."""
        return _read_json(self.folder(key) / "started.json")

    def request(self, key: PlacementKey) -> RunProcessRequest | None:
        """Return what an attempt was started with; None where that was not stored."""
        content = _read_json(self.folder(key) / _REQUEST)
        with contextlib.suppress(ValidationError):
            if content is not None:
                return RunProcessRequest.model_validate(content, context=TAKEN)
        return None

    def end(self, key: PlacementKey) -> dict[str, Any] | None:
        """Return what the supervisor wrote at the end; None when it did not see it."""
        return _read_json(self.folder(key) / "end.json")

    def newest_attempt(self, job_id: str) -> int:
        """Return the newest attempt of a job that was here; 0 where none was."""
        prefix = f"{job_id}-"
        names = os.listdir(self._folder)  # noqa: PTH208 (a Path for each of thousands is slow)
        suffixes = (name[len(prefix) :] for name in names if name.startswith(prefix))
        return max((int(suffix) for suffix in suffixes if suffix.isdigit()), default=0)

    def is_last(self, record: RunRecord) -> bool:
        """Return whether no other run is here of a job, or of a batch of its slot."""
        own = self.folder(record.key).name
        in_batches = record.folder is not None
        prefix = f"{record.owner}.b" if in_batches else f"{record.owner}-"
        names = os.listdir(self._folder)  # noqa: PTH208 (as above)
        return not any(
            name.startswith(prefix) and (in_batches or name[len(prefix) :].isdigit())
            for name in names
            if name != own
        )

    def remove(self, key: PlacementKey) -> None:
        """Remove a run folder, its record last: what is interrupted can be found again."""
        folder = self.folder(key)
        folder.chmod(0o700)  # a job may have closed it
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            elif path.name != "record.json":
                path.unlink()
        (folder / "record.json").unlink()
        folder.rmdir()


def _write(path: Path, record: RunRecord) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(record.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def _read(path: Path) -> RunRecord | None:
    content = _read_json(path)
    with contextlib.suppress(ValidationError):
        return RunRecord.model_validate(content) if content is not None else None
    return None


def _names_run(name: str) -> bool:
    job_id, _, attempt = name.rpartition("-")
    return bool(JOB_ID.fullmatch(job_id)) and attempt.isdigit()


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return what a file of a run holds; None where that is nothing, or it cannot be read."""
    try:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except PermissionError:
            if not let_owner_in(path.parent):  # a job may have closed it
                return None
            return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, ValueError):
        return None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
