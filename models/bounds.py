"""How much a document of people, or what an agent says of itself, may hold: entries of lists and
mappings, characters, the range of numbers, and bytes in all.

What an earlier version took may have more: it is read with the context `TAKEN`, and goes on as it
is. Cut, it would be another job.
"""

import unicodedata
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema, to_json

from longshore.models.visible import brief, shown

TAKEN: Final = {"taken": True}
"""Context of a validation of what was taken already, by whichever version."""
GIVEN: Final = {"given": True}
"""Context of a validation of what somebody gives now, and others carry on from then on."""
_NAMED = 3
"""Fields that a refusal names."""


def is_taken(info: ValidationInfo) -> bool:
    """Return whether what is validated was taken already."""
    return info.context is TAKEN


def is_given(info: ValidationInfo) -> bool:
    """Return whether what is validated is given now."""
    return info.context is GIVEN


class _Bound(ABC):
    """Annotation of a field whose value is looked at once it has its type."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    @abstractmethod
    def _check(self, value: Any, info: ValidationInfo) -> Any: ...


@dataclass(frozen=True)
class Most(_Bound):
    """Annotation: a list or mapping with at most so many entries, or a text with at most so many
    characters."""

    most: int
    instead: str = ""
    """What to do with more."""
    on_arrival: bool = False
    """Looked at with the context `GIVEN` alone: the others read what somebody has let in."""
    one_line: bool = False
    """A text has no control character: no NUL, which the database cannot store, no end of line."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        for form in found.get("anyOf", [found]):
            if form.get("type") in _BOUND_OF:
                form[_BOUND_OF[form["type"]]] = self.most
                if self.one_line and form["type"] == "string":
                    form["pattern"] = r"^[^\x00-\x1f\x7f-\x9f]*$"
        return found

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        asked = is_given(info) if self.on_arrival else not is_taken(info)
        if not asked:
            return value
        if len(value) > self.most:
            what = "characters" if isinstance(value, str) else "entries"
            instead = f": {self.instead}" if self.instead else ""
            raise ValueError(f"has {len(value):,} {what}; {self.most:,} is the most{instead}")
        if self.one_line and any(unicodedata.category(each) == "Cc" for each in value):
            raise ValueError(f"must not hold a control character, got {shown(value)}")
        return value


@dataclass(frozen=True)
class Range(_Bound):
    """Annotation: a number from `least` to `most`. What was taken already is read as it is."""

    least: float
    most: float
    on_arrival: bool = True
    """Looked at with the context `GIVEN` alone, as of `Most`."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "minimum": self.least, "maximum": self.most}

    def _check(self, value: float, info: ValidationInfo) -> float:
        asked = is_given(info) if self.on_arrival else not is_taken(info)
        if asked and not self.least <= value <= self.most:
            got = brief(str(value))
            raise ValueError(f"must be from {self.least:,} to {self.most:,}, got {got}")
        return value


Word = Annotated[str, Most(200, on_arrival=True, one_line=True)]
"""A name that an agent gives its machine or itself, or the value of one of its facts."""

FIRST_MISTAKE: Final = Field(fail_fast=True)
"""Annotation: of a row that cannot be read, the first mistake is told. A message may have very
many, and each takes as long as hundreds of entries without one."""

_BOUND_OF = {"array": "maxItems", "object": "maxProperties", "string": "maxLength"}


def json_bytes(value: object) -> int:
    """Return the bytes of a value as JSON in UTF-8, as Temporal carries it."""
    return len(to_json(value))


def largest(document: object) -> str:
    """Return the largest fields of a mapping with their bytes as JSON:
    ``command 900,000, env 120,000``. Those far smaller than the first are left out."""
    fields = cast("dict[str, object]", document)
    sizes = sorted(((json_bytes(value), name) for name, value in fields.items()), reverse=True)
    return ", ".join(
        f"{name} {size:,}" for size, name in sizes[:_NAMED] if size > sizes[0][0] / 20
    )
