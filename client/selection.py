"""Which jobs a command is about, by what they have in common: the flags, and what they say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from longshore.models.errors import SpecError
from longshore.models.job_status import JobState
from longshore.models.labels import NAME_FORM, Selector, parse_selector
from longshore.models.visible import brief

_PANEL = "Which jobs"

POOL = Annotated[str | None, typer.Option(help="Only this pool's.", rich_help_panel=_PANEL)]
TENANT = Annotated[str | None, typer.Option(help="Only this tenant's.", rich_help_panel=_PANEL)]
STATES = Annotated[
    list[JobState] | None,
    typer.Option(
        "--state",
        help="Only in this state. Repeatable.",
        case_sensitive=False,
        rich_help_panel=_PANEL,
    ),
]
LABELS = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="LABEL=VALUE",
        help="Only with these labels: sweep=7, sweep!=7, 'team in (a, b)', team, '!team'. "
        "Repeatable: all have to hold.",
        rich_help_panel=_PANEL,
    ),
]
NAME = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Only jobs of this name or pattern, e.g. 'a-*'.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class Selection:
    """Jobs by what they have in common; where nothing is said, all."""

    pool: str | None = None
    tenant: str | None = None
    states: frozenset[JobState] = frozenset()
    labels: Selector = ()
    named: str | None = None

    @property
    def given(self) -> bool:
        """Whether anything is said."""
        return self != Selection()

    @property
    def filters(self) -> dict[str, Any]:
        """What `Longshore.list` takes of it."""
        return {
            "pool": self.pool, "tenant": self.tenant, "states": self.states,
            "labels": self.labels, "named": self.named,
        }  # fmt: skip


def read(
    pool: str | None,
    tenant: str | None,
    states: Sequence[JobState] | None,
    labels: Sequence[str] | None,
    name: str | None,
) -> Selection:
    """Return what the flags select. Raises SpecError."""
    problems = list[str]()
    selector: Selector = ()
    try:
        selector = parse_selector(labels or ())
    except ValueError as error:
        problems.append(f"--label: {error}")
    if name is not None and not re.fullmatch(NAME_FORM, name, re.ASCII):
        problems.append(
            f"--name {brief(name)}: no job has such a name: give lower-case letters, digits, dot, "
            "dash and underscore, with * for any characters and ? for one"
        )
    if problems:
        raise SpecError("selection", tuple(problems))
    return Selection(pool, tenant, frozenset(states or ()), selector, name)
