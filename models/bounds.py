"""How much a document of people may hold: entries of lists and mappings, and bytes in all.

What an earlier version took may have more: it is read with the context `TAKEN`, and goes on as it
is. Cut, it would be another job.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema, to_json

TAKEN: Final = {"taken": True}
"""Context of a validation of what was taken already, by whichever version."""
GIVEN: Final = {"given": True}
"""Context of a validation of what somebody gives now, and others carry on from then on."""
_NAMED = 3
"""Fields that a refusal names."""


def is_taken(info: ValidationInfo) -> bool:
    """Return whether what is validated was taken already."""
    return info.context is TAKEN


@dataclass(frozen=True)
class Most:
    """Annotation: a list or mapping with at most so many entries, or a text with at most so many
    characters."""

    most: int
    instead: str = ""
    """What to do with more."""
    on_arrival: bool = False
    """Looked at with the context `GIVEN` alone: the others read what somebody has let in."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        for form in found.get("anyOf", [found]):
            if form.get("type") in _BOUND_OF:
                form[_BOUND_OF[form["type"]]] = self.most
        return found

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        asked = info.context is GIVEN if self.on_arrival else not is_taken(info)
        if len(value) > self.most and asked:
            what = "characters" if isinstance(value, str) else "entries"
            instead = f": {self.instead}" if self.instead else ""
            raise ValueError(f"has {len(value):,} {what}; {self.most:,} is the most{instead}")
        return value


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
