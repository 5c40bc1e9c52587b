"""The folders that a job names: where it runs and where it saves, and what an image may see."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from longshore.activities.node.code_folder import WORK
from longshore.models.job import JobSpec
from longshore.models.node_messages import RunProcessRequest
from longshore.models.visible import brief

_OF_A_PATH = frozenset(
    (
        errno.EACCES, errno.EEXIST, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
        errno.ENOTDIR, errno.EPERM,
    )
)  # fmt: skip
"""Faults of a path that a job names. Others, as of a disk that is full, lie with the node."""


class LaunchError(Exception):
    """The command cannot be run here; `exit_code` is what a shell would say."""

    def __init__(self, exit_code: int, message: str) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def refuse_folders(
    request: RunProcessRequest, job_folder: Path, image_folders: Sequence[Path]
) -> None:
    """Raise LaunchError where a job in an image names folders that it may not see.

    Of the node it sees its own folder, and what is below `image_folders`. To be asked before
    anything is done in those that it names.
    """
    if request.spec.image:
        allowed = [job_folder, *image_folders]
        seen(work_folder(request.spec, job_folder), allowed)
        if folder := checkpoint_folder(request, job_folder):
            seen(folder, allowed)


def checkpoint_folder(request: RunProcessRequest, job_folder: Path) -> Path | None:
    """Return where the job saves; None without a contract.

    One that is published is the job's own: what is restored takes the place of all of it.
    Raises LaunchError when the working folder is not there.
    """
    spec = request.spec
    if spec.checkpoint is None:
        return None
    given = _of_user(spec.checkpoint.folder)
    folder = Path(os.path.normpath(work_folder(spec, job_folder).absolute() / given))
    own = spec.workdir is None or spec.code is not None
    private = own and folder.is_relative_to(job_folder.absolute())
    if private or not spec.checkpoint.store:
        return folder
    return folder / request.placement.job_id


@contextlib.contextmanager
def making_checkpoints(
    request: RunProcessRequest, folder: Path, job_folder: Path
) -> Iterator[None]:
    """Raise LaunchError in place of an OSError where the path that the job names is at fault."""
    try:
        yield
    except OSError as error:
        # A disk of the node may be read-only for a fault of its own; elsewhere the job chose it.
        chosen = error.errno == errno.EROFS and not folder.is_relative_to(job_folder.absolute())
        if request.spec.checkpoint is None or not (chosen or error.errno in _OF_A_PATH):
            raise
        taken = "its path is no folder" if error.errno == errno.EEXIST else error.strerror
        given = brief(request.spec.checkpoint.folder)
        raise LaunchError(
            127, f"the checkpoint folder {given} cannot be made on this node: {taken}"
        ) from None


def seen(folder: Path, allowed: Sequence[Path]) -> Path:
    """Return a folder without links. Raises LaunchError where a container may not see it."""
    real = Path(os.path.realpath(folder))
    if not any(real.is_relative_to(os.path.realpath(each)) for each in allowed):
        raise LaunchError(
            126,
            f"a job in an image may not see {brief(str(real))}: of this node it sees its own "
            "folder, and what is below the folders that the agent's setting image_folders names",
        )
    if ":" in f"{real}{folder}":
        raise LaunchError(126, f"a container cannot be given {folder}: its path has a colon")
    return real


def _of_user(path: str) -> Path:
    """Return a path without `~`. Raises LaunchError where the node has no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise LaunchError(127, f"{brief(path)} is no path on this node: {error}") from None


def work_folder(spec: JobSpec, job_folder: Path) -> Path:
    if spec.code is not None:
        return _folder_of_code(spec.workdir, job_folder / WORK)
    if spec.workdir is None:
        folder = job_folder / WORK
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder, given = _of_user(spec.workdir), brief(spec.workdir)
    try:
        if not folder.is_dir():
            is_so = "is a file and not a folder" if folder.exists() else "does not exist"
            raise LaunchError(127, f"the working folder {given} {is_so} on this node")
    except OSError as error:
        if error.errno not in _OF_A_PATH:
            raise
        raise LaunchError(
            127, f"the working folder {given} cannot be used on this node: {error.strerror}"
        ) from None
    return folder.absolute()


def _folder_of_code(workdir: str | None, root: Path) -> Path:
    """Return where a job with code runs. Raises LaunchError where its code has no such folder."""
    if workdir is None:
        return root
    folder = root / workdir
    if not folder.is_dir():
        raise LaunchError(
            127,
            f"its code has no folder {brief(workdir)}: with `code`, `workdir` names one below it",
        )
    if not folder.resolve().is_relative_to(root.resolve()):
        raise LaunchError(127, f"the working folder {brief(workdir)} leads out of its code")
    return folder
