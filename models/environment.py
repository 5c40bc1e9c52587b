"""The Python environment of a job: what its user asks for, built once on a node."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from longshore.models.base import Frozen
from longshore.models.bounds import Most
from longshore.models.mistakes import Mistake, refuse
from longshore.models.text import listed
from longshore.models.visible import brief, shown

PROJECT = "pyproject.toml"
"""It lies beside a uv.lock."""
CURRENT = "current"
CURRENT_FOLDER = ".longshore/current"
"""Of the code: what comes along in place of the Python that submits."""
FileOfCode = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""A file in the code that the job brings, by its path below the folder."""
Requirement = Annotated[
    str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")
]
RequirementList = Annotated[tuple[Requirement, ...], Most(1000)]
Requirements = FileOfCode | RequirementList
Files = Annotated[tuple[FileOfCode, ...], Most(100)]
EnvironmentDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$", max_length=32)]
PythonVersion = Annotated[
    str, StringConstraints(pattern=r"^3\.\d{1,3}(\.\d{1,3})?$", max_length=20)
]


class JobEnvironment(Frozen):
    """Where the packages of a job come from. Files are seen from the folder of its code."""

    requirements: Requirements | None = None
    """A requirements file, or a list such as `[numpy==2.1, torch]`."""
    lock: FileOfCode | None = None
    """A uv.lock, with its pyproject.toml beside it."""
    conda: FileOfCode | None = None
    """An environment.yml of conda. It brings its own Python, and a `pip` section."""
    script: FileOfCode | None = None
    """A shell script that sets up the rest, run once with the environment on its PATH."""
    files: Files = ()
    """What else the script reads: with each change of one the environment is another."""
    python: PythonVersion | None = None
    """Version of Python, such as "3.11"; the `python3` of the node when left out."""
    current: bool = Field(default=False, exclude_if=lambda current: not current)
    """The packages of the Python that submits: the virtual environment that is active, else the
    one that runs `longshore`. The submit puts a requirements file in its place."""
    digest: EnvironmentDigest | None = Field(
        default=None, exclude_if=lambda digest: digest is None
    )
    """Of all files that it is made from. The submit fills it in: a node that has built it already
    is known by it."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it names."""
        named = (self.lock, self.conda, self.script, *self.files)
        given = [path for path in named if path is not None]
        if isinstance(self.requirements, str):
            given.append(self.requirements)
        return tuple(given)

    @property
    def text(self) -> str:
        """Which files or packages, in a few words."""
        if self.current:
            return CURRENT
        asked = self.requirements
        what = listed(asked, 3) if isinstance(asked, tuple) else self.lock or self.conda or asked
        return " and ".join(part for part in (what, self.script) if part)

    @property
    def as_asked(self) -> "JobEnvironment":
        """Without what the submit has filled in, which follows from the rest."""
        return self if self.digest is None else self.model_copy(update={"digest": None})

    @property
    def needs(self) -> tuple[str, ...]:
        """The files that the code has to have: those, and the project of a lock."""
        beside = [] if self.lock is None else [str(PurePosixPath(self.lock).parent / PROJECT)]
        return (*self.paths, *beside)


_NOT_WITH_CONDA = {
    "requirements": "belong into the `pip` section",
    "lock": "is another environment: name one, or the packages in the `pip` section",
    "python": "is a package of conda: name it in `dependencies`",
}


def _of_one_kind(environment: JobEnvironment) -> JobEnvironment:
    refuse(list(_mistakes(environment)))
    return environment


def _mistakes(environment: JobEnvironment) -> Iterator[Mistake]:
    others = environment.model_dump(exclude_defaults=True).keys() - {CURRENT, "digest"}
    if environment.current and others:
        why = "has all packages already, and its own Python: leave out the rest"
        yield Mistake((CURRENT,), why, tuple((name,) for name in sorted(others)))
    if environment.current:
        return
    kinds = (environment.requirements, environment.lock, environment.conda, environment.script)
    if all(kind is None for kind in kinds):
        yield Mistake((), "give `requirements`, a `lock`, `conda`, a `script` or `current`")
    if environment.requirements == ():
        yield Mistake(("requirements",), "names no package: leave `environment` out for none")
    if environment.conda is not None:
        for name, why in _NOT_WITH_CONDA.items():
            if getattr(environment, name) is not None:
                yield Mistake((name,), f"{why} of {brief(environment.conda)}", (("conda",),))
        if not re.fullmatch(r".*\.ya?ml", environment.conda):
            yield Mistake(("conda",), "has to be a .yml or .yaml file")
    if environment.lock is not None and environment.requirements is not None:
        why = "has all packages already: leave out `requirements`"
        yield Mistake(("lock",), why, (("requirements",),))
    if environment.files and environment.script is None:
        yield Mistake(("files",), "are what a `script` reads: name that too", (("script",),))
    if environment.lock is not None and environment.lock.split("/")[-1] != "uv.lock":
        yield Mistake(("lock",), "has to be called uv.lock: other locks are not read yet")
    for path in environment.paths:
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            yield Mistake((), f"{brief(path)} is not below the folder of the code")


def _of_text(value: object) -> object:
    """Tell a file by its name, as a job file gives one alone."""
    if isinstance(value, list | tuple):
        return {"requirements": tuple(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):  # a document has lists
        given: dict[object, object] = {**value}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not isinstance(value, str):
        return value
    name = value.rpartition("/")[2]
    if value == CURRENT:
        return {CURRENT: True}
    if re.fullmatch(r".*\.ya?ml", name):
        return {"conda": value}
    if name == "uv.lock":
        return {"lock": value}
    if name.endswith(".txt"):
        return {"requirements": value}
    if name.endswith(".sh"):
        return {"script": value}
    raise ValueError(
        f"{shown(value)} is no kind that is known: give requirements.txt, uv.lock, "
        "environment.yml, {script: setup.sh}, current, or a list of packages"
    )


_Written = (
    JobEnvironment
    | Annotated[str, Field(min_length=1, max_length=1000)]
    | Annotated[list[Requirement], Field(max_length=1000)]
)
EnvironmentField = Annotated[
    JobEnvironment,
    BeforeValidator(_of_text, json_schema_input_type=_Written),
    AfterValidator(_of_one_kind),
]
"""A `JobEnvironment`, a file alone, or a list of packages."""
