"""What the command line says of code: which folder is stored, or that none is."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from longshore.client.terminal import note, warn
from longshore.models.code import Code
from longshore.models.dag import DagSpec
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.text import count
from longshore.models.units import format_bytes
from longshore.models.visible import shown

if TYPE_CHECKING:
    from rich.progress import TaskID

    from longshore.client.api import Longshore
    from longshore.client.code_upload import Told, Uploaded
    from longshore.models.settings import Settings

Spec = TypeVar("Spec", bound=JobSpec)
Submitted = TypeVar("Submitted", JobSpec, DagSpec, JobSpec | DagSpec)

_LONG = 20_000_000
"""Bytes: how far a larger upload is, a terminal is told."""

UPLOAD = Annotated[
    str | None,
    typer.Option(
        "--upload", metavar="DIR",
        help="Upload this folder, except for what Git ignores, and run the job in a copy of it. "
        "The default for a relative `workdir` of a job file.",
    ),
]  # fmt: skip
NO_UPLOAD = Annotated[
    bool,
    typer.Option(
        "--no-upload",
        help="Upload nothing: all nodes see a relative `workdir` at the same path as here.",
    ),
]
ANEW = Annotated[
    bool,
    typer.Option(
        "--anew", help="Upload the whole folder again, if what is stored of it is damaged."
    ),
]
INCLUDE = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Also upload these files, even if ignored, or if they look like private keys; a "
        "pattern as in .gitignore. Repeatable.",
    ),
]


def absolute_path(path: str | Path, base: Path = Path()) -> Path:
    """Return where a path seen from a folder leads, by way of `~` and links. One that leads in a
    circle, or to the home of a user that there is not, stays: who opens it says what is wrong."""
    return Path(os.path.realpath(base / os.path.expanduser(path)))  # noqa: PTH111 (raises there)


def with_folder(
    spec: Spec, *, no_upload: bool, workdir_base: Path, code_base: Path, source: str
) -> Spec:
    """Return a job with absolute paths of what is ours: the folder or repository of its code, or
    else its working folder where nodes are to see that themselves.

    A relative `workdir` without `code` names a folder to store. Raises SpecError where `workdir`
    leads out of the code.
    """
    code, workdir = spec.code, spec.workdir
    is_relative = workdir is not None and not workdir.startswith(("~", "/"))
    if no_upload:
        if code is not None and code.snapshot is None:
            raise SpecError(source, ("code: is to be stored: leave out --no-upload",))
        if spec.environment is not None and (paths := spec.environment.paths):
            why = f"environment: {paths[0]} is looked for in the code: leave out --no-upload"
            raise SpecError(source, (why,))
        if spec.environment is not None and spec.environment.current:
            why = "environment: current comes along with the code: leave out --no-upload"
            raise SpecError(source, (why,))
        absolute = str(absolute_path(workdir or "", workdir_base))
        return spec.model_copy(update={"workdir": absolute}) if is_relative else spec
    if code is None and workdir is not None and is_relative:
        code = Code(folder=str(absolute_path(workdir, workdir_base)))
        return spec.model_copy(update={"code": code, "workdir": None})
    if code is not None and code.folder is not None:
        folder = absolute_path(code.folder, code_base)
        code = code.model_copy(update={"folder": str(folder)})
    elif code is not None and code.git is not None and (code_base / code.git).is_dir():
        code = code.model_copy(update={"git": str(absolute_path(code.git, code_base))})
    leads_out = not is_relative or ".." in PurePosixPath(workdir or "").parts
    if code is not None and workdir is not None and leads_out:
        why = f"workdir: {shown(workdir)} must be a folder of the code, such as src"
        raise SpecError(source, (why,))
    return spec.model_copy(update={"code": code})


async def with_code(
    api: "Longshore",
    spec: Submitted,
    include: Sequence[str],
    *,
    silent: bool,
    anew: bool = False,
    script: str | None = None,
) -> Submitted:
    """Return what is to be submitted with its code stored, and say what was sent of it.

    Raises SpecError where `script`, which the job runs, does not come along.
    """
    from longshore.client.code_submit import CodeStorer

    with progress(silent) as told:
        storer = CodeStorer(
            api.settings, api.database, include, _say(silent), told, anew=anew, script=script,
            waits=(lambda words: None) if silent else note,
        )  # fmt: skip
        stored = await storer.of(spec)
    if stored is not spec and not silent and stores_where_no_node_looks(api.settings):
        warn(
            "the code lies in a folder of this machine, as `artifact_store` is not set: set it, "
            "for agents and control workers too, to a store that all of them reach"
        )
    return stored


def stores_where_no_node_looks(settings: "Settings") -> bool:
    """Return whether code goes into our own state folder, with servers that are not ours."""
    return settings.artifact_store is None and settings.database_url is not None


async def say_code(
    api: "Longshore", spec: JobSpec, include: Sequence[str], script: str | None = None
) -> None:
    """Say what of the code would be stored, and send nothing. Raises SpecError."""
    from longshore.client.code_submit import CodeStorer

    found = await CodeStorer(api.settings, api.database, include, script=script).look(spec)
    if found is not None:
        size = format_bytes(sum(file.size for file in found.files))
        note(f"Code: {count(len(found.files), 'file')}, {size} would come along")


def _say(silent: bool) -> "Callable[[Uploaded], None]":
    def say(uploaded: "Uploaded") -> None:
        if uploaded.environment:
            note(f"Environment: {uploaded.environment}")
        note(f"Code: {uploaded}")

    return (lambda uploaded: None) if silent else say


@contextmanager
def progress(silent: bool, doing: str = "Sending code") -> "Iterator[Told]":
    """Yield what shows on a terminal how much of something long was sent, or read."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from longshore.client.terminal import PlainConsole

    console = PlainConsole(stderr=True)
    if silent or not console.is_terminal:
        yield lambda sent, of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as shown_on:
        task: TaskID | None = None

        def told(sent: int, of: int) -> None:
            nonlocal task
            if of < _LONG:
                return
            if task is None:
                task = shown_on.add_task(doing, total=of)
            shown_on.update(task, completed=sent, total=of)

        yield told
