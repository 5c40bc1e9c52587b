"""Labels that people give their jobs, by Kubernetes' rules, and the selection of jobs by them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from longshore.models.bounds import Most, is_taken
from longshore.models.constraints import Constraint, contradiction, parse_constraint
from longshore.models.visible import shown

MOST_LABELS = 64
NAME_FORM = r"^[a-z0-9._*?-]{1,63}$"
"""What selects jobs by their names: `*` is any characters, `?` is one."""
_LONGEST_PART = 63
_LONGEST_PREFIX = 253
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_RULE = (
    "letters, digits, dash, underscore and dot, with a letter or digit at both ends, at most "
    f"{_LONGEST_PART} characters"
)


def why_no_name(name: str) -> str:
    """Return why a text is no name of a label; empty where it is one.

    As in Kubernetes it may have a DNS name before a slash: ``example.com/team``.
    """
    prefix, slash, part = name.rpartition("/")
    wrong = slash and not (
        len(prefix) <= _LONGEST_PREFIX and re.fullmatch(_PREFIX, prefix, re.ASCII)
    )
    if wrong:
        return f"{shown(name)} is no name of a label: what is before the slash is no DNS name"
    if len(part) > _LONGEST_PART or not re.fullmatch(_PART, part, re.ASCII):
        return f"{shown(name)} is no name of a label: it has {_RULE}"
    return ""


def why_no_value(value: str) -> str:
    """Return why a text is no value of a label; empty where it is one. A value may be empty."""
    if len(value) <= _LONGEST_PART and re.fullmatch(f"(?:{_PART})?", value, re.ASCII):
        return ""
    return f"{shown(value)} is no value of a label: it has {_RULE}"


def _as_texts(given: object) -> object:
    """Return numbers as texts: they are natural in YAML, and unambiguous."""
    if not isinstance(given, dict):
        return given
    return {
        key: str(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
        for key, value in given.items()  # pyright: ignore[reportUnknownVariableType]
    }


def _name(name: str, info: ValidationInfo) -> str:
    if not is_taken(info) and (why := why_no_name(name)):
        raise ValueError(why)
    return name


def _value(value: str, info: ValidationInfo) -> str:
    if not is_taken(info) and (why := why_no_value(value)):
        raise ValueError(why)
    return value


JobLabels = Annotated[
    dict[
        Annotated[
            str,
            AfterValidator(_name),
            WithJsonSchema({"type": "string", "maxLength": _LONGEST_PREFIX + 1 + _LONGEST_PART}),
        ],
        Annotated[
            str,
            AfterValidator(_value),
            WithJsonSchema({"type": ["string", "number"], "maxLength": _LONGEST_PART}),
        ],
    ],
    BeforeValidator(_as_texts),
    Most(MOST_LABELS),
]
"""Names with values, such as ``{sweep: "7", team: vision}``."""

Selector = tuple[Constraint, ...]
"""All of them have to hold of a job's labels."""


def parse_label(text: str) -> tuple[str, str]:
    """Return name and value of ``sweep=7``. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=VALUE, such as sweep=7, not {shown(text)}")
    if why := why_no_name(name) or why_no_value(value):
        raise ValueError(why)
    return name, value


def parse_selector(texts: Sequence[str]) -> Selector:
    """Return what selects jobs by their labels, in the forms of constraints on nodes.

    Raises ValueError for a text that is none, and where no job could have such labels.
    """
    found = tuple(map(_parse_one, texts))
    if never := contradiction(found):
        raise ValueError(
            f"no job can satisfy {' and '.join(map(str, never))}: a label has one value; for one "
            "of several write team in (a, b)"
        )
    return found


def _parse_one(text: str) -> Constraint:
    try:
        return parse_constraint(text)
    except ValueError:
        raise ValueError(
            "expected a selector of labels such as sweep=7, sweep!=7, team in (a, b), "
            "team notin (a, b), team (the job has this label) or !team, not "
            f"{shown(text)}{_hint(text)}"
        ) from None


def _hint(text: str) -> str:
    """Return what was probably meant."""
    if text.count("(") != text.count(")"):
        return ": a bracket is missing"
    if "|" in text:
        return ": for one of several values write team in (a, b)"
    if "," in text or "&" in text:
        return ": give each by itself, as in --label sweep=7 --label team"
    return ": a value is missing" if re.fullmatch(r"\s*\S+\s*(==?|!=)\s*", text) else ""


def matches(labels: Mapping[str, str], selector: Selector) -> bool:
    """Return whether a job with these labels is selected; as in Kubernetes one without a label
    satisfies `!=` and `notin`."""
    return all(each.allows(labels.get(each.key)) for each in selector)


def format_labels(labels: Mapping[str, str]) -> str:
    """Return ``sweep=7, team=vision``."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
