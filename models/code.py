"""The code of a job: a folder or a commit as its user names it, a snapshot as it travels."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from longshore.models.base import Frozen, ShortText
from longshore.models.counts import Count
from longshore.models.mistakes import Mistake, refuse

Sha256 = Annotated[
    str, StringConstraints(to_lower=True, pattern=r"^[0-9A-Fa-f]{64}$", max_length=64)
]


class Code(Frozen):
    """What a job finds in its folder. In a job file a folder, seen from there, or a Git commit.

    `longshore submit` stores it and puts the snapshot in its place: nodes know that alone.
    """

    folder: ShortText | None = Field(default=None, min_length=1)
    """A folder on the machine of whoever submits."""
    git: ShortText | None = Field(default=None, min_length=1)
    """A repository, by URL or path."""
    ref: ShortText | None = Field(default=None, min_length=1)
    """A branch, tag or commit of `git`; its default branch when left out."""

    snapshot: Sha256 | None = None
    """What was stored of it. `longshore submit` fills in this and what follows."""
    files: Count = Field(default=0, ge=0, le=1_000_000_000)
    """How many it has."""
    bytes: Count = Field(default=0, ge=0, le=2**63 - 1)
    """How large they are together."""
    commit: ShortText | None = None
    """The Git commit that it was taken from."""
    changed: bool = False
    """Whether files differed from that commit."""


def _of_one_kind(code: Code) -> Code:
    if code.snapshot is None and (code.folder is None) == (code.git is None):
        refuse([Mistake((), "give a `folder`, or a repository as `git`", (("folder",), ("git",)))])
    if code.ref is not None and code.git is None:
        refuse([Mistake(("ref",), "is of a `git` repository: name that too")])
    return code


def _of_text(value: object) -> object:
    return {"folder": value} if isinstance(value, str) else value


CodeField = Annotated[
    Code,
    BeforeValidator(
        _of_text,
        json_schema_input_type=Code | Annotated[str, Field(min_length=1, max_length=4_095)],
    ),
    AfterValidator(_of_one_kind),
]
"""A `Code`, or the name of a folder alone."""
