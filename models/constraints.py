"""What a job may ask of the labels of a node, as Kubernetes' label selectors do."""

import hashlib
import re
from collections.abc import Collection
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from longshore.models.bounds import Most, is_taken
from longshore.models.visible import shown

MOST_CONSTRAINTS = 64
LONGEST_CONSTRAINT = 1_000
"""Characters of one as it is written."""


class OnNodes(str):
    """The key of what is no label, and what no user can write: that a job starts on these nodes
    alone. Who plans sets it."""

    nodes: frozenset[str]
    why: str

    def __new__(cls, nodes: Collection[str], why: str) -> Self:
        # Answers are kept by the text: other nodes have another.
        of = hashlib.sha256("\0".join(sorted(nodes)).encode()).hexdigest()
        made = super().__new__(cls, f"on nodes {of}: {why}")
        made.nodes, made.why = frozenset(nodes), why
        return made

    def __reduce__(self) -> tuple[Any, ...]:  # for copies
        return OnNodes, (self.nodes, self.why)


_OUT = r"(){}|&,\x00-\x1f\x7f\ud800-\udfff"
"""Characters that neither a name nor a value has here."""
_KEY = rf"(?P<key>[^{_OUT}\s=!<>]{{1,200}})"
_VALUE = rf"[^{_OUT}\s=](?:[^{_OUT}]*[^{_OUT}\s])?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_KEY}\s*(?P<is>==?|!=)\s*(?P<value>{_VALUE})",
        rf"{_KEY}\s+(?P<in>in|notin)\s*\((?P<values>[^()]*)\)",
        rf"(?P<not>!\s*)?{_KEY}",
    )
)
_WRITTEN = (
    "zone=a, zone!=b, zone in (a, b), zone notin (a, b), ib (the node has this label) or !ib"
)


class Constraint(NamedTuple):
    """One constraint on one label of a node.

    As in Kubernetes a node without the label satisfies `!=` and `notin`.
    """

    key: str
    values: tuple[str, ...] = ()
    """The label has one of these, in order; any when empty."""
    negated: bool = False
    """The contrary holds: it has none of these, or the node has no such label."""

    def allows(self, value: str | None) -> bool:
        """Return whether a node whose label has this value may serve; None: it has no label."""
        found = value is not None and (not self.values or value in self.values)
        return found is not self.negated

    @property
    def why_on_nodes(self) -> str:
        """Why a job starts on some nodes alone, where it says that (`OnNodes`); else empty."""
        return self.key.why if isinstance(self.key, OnNodes) else ""

    def __str__(self) -> str:
        """Return ``zone=a``, ``zone!=a``, ``zone in (a, b)``, ``zone notin (a, b)``, ``ib`` or
        ``!ib``."""
        if not self.values:
            return f"!{self.key}" if self.negated else self.key
        if len(self.values) == 1:
            return f"{self.key}{'!=' if self.negated else '='}{self.values[0]}"
        return f"{self.key} {'notin' if self.negated else 'in'} ({', '.join(self.values)})"


def parse_constraint(value: object) -> Constraint:
    """Return the constraint that a text says. Raises ValueError with the accepted forms."""
    if isinstance(value, Constraint):
        return value
    if isinstance(value, str) and len(value) <= LONGEST_CONSTRAINT:
        text = value.strip()
        for form in _FORMS:
            if match := form.fullmatch(text):
                return _fitting(_constraint(match.groupdict(), text))
    raise ValueError(
        f"expected a constraint on a label such as {_WRITTEN}, not {shown(value)}{_hint(value)}"
    )


def _fitting(found: Constraint) -> Constraint:
    """Return a constraint that can be read again as it is written out."""
    if (length := len(str(found))) > LONGEST_CONSTRAINT:
        raise ValueError(
            f"{shown(found.key)} with {len(found.values)} values has {length:,} characters as it "
            f"is written out; {LONGEST_CONSTRAINT:,} is the most: use another label"
        )
    return found


def _constraint(said: dict[str, str | None], text: str) -> Constraint:
    key, negated = said["key"] or "", bool(said.get("not"))
    if (one := said.get("value")) is not None:
        return Constraint(key, (one,), said["is"] == "!=")
    if (several := said.get("values")) is None:
        return Constraint(key, (), negated)
    values = sorted({each.strip() for each in several.split(",")})
    if wrong := [each for each in values if not re.fullmatch(_VALUE, each)]:
        raise ValueError(f"{shown(text)}: {shown(wrong[0])} is no value; write {key} in (a, b)")
    return Constraint(key, tuple(values), said["in"] == "notin")


def _hint(value: object) -> str:
    """Return what was probably meant."""
    if isinstance(value, dict):
        return ": write zone=a, not zone: a"
    if not isinstance(value, str):
        return ""
    if len(value) > LONGEST_CONSTRAINT:
        return f": {LONGEST_CONSTRAINT:,} characters is the most"
    if value.count("(") != value.count(")"):
        return ': within [...] put it in quotes, as in ["zone in (a, b)"]'
    if "|" in value:
        return ": for one of several values write zone in (a, b)"
    if "," in value or "&" in value:
        return ": give each constraint by itself, as in [zone=a, ib=true]"
    if re.fullmatch(r"\s*\S+\s*(==?|!=)\s*", value):
        return ": a value is missing"
    return ""


def contradiction(constraints: tuple[Constraint, ...]) -> tuple[Constraint, ...] | None:
    """Return those on the first label that can have no value, nor be missing, with all of them."""
    for key in dict.fromkeys(each.key for each in constraints):
        of_key = tuple(each for each in constraints if each.key == key)
        named = (value for each in of_key for value in each.values)
        if not any(all(each.allows(value) for each in of_key) for value in (None, *named, _OTHER)):
            return of_key
    return None


_OTHER = "\n"
"""Stands for every value that none of them names."""


def _checked(given: tuple[Constraint, ...], info: ValidationInfo) -> tuple[Constraint, ...]:
    if not is_taken(info) and (found := contradiction(given)):
        raise ValueError(
            f"no node can satisfy {' and '.join(map(str, found))}: a label has one value; "
            "for one of several write zone in (a, b)"
        )
    return given


def _written(value: Any) -> str:
    return str(value)


Constraints = Annotated[
    tuple[
        Annotated[
            Constraint,
            PlainValidator(parse_constraint),
            PlainSerializer(_written),
            WithJsonSchema({"type": "string", "maxLength": LONGEST_CONSTRAINT}),
        ],
        ...,
    ],
    Field(fail_fast=True),
    Most(MOST_CONSTRAINTS),
    AfterValidator(_checked),
]
"""As people write them, ``[zone=a, ib=true]``; so they travel, too."""
