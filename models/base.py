"""What every travelling model has in common."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from longshore.models.docs import field_docs

_put = object.__setattr__
_M = TypeVar("_M", bound=BaseModel)


@cache
def _blank_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return all fields in their order, with the defaults that are the same object each time."""
    return {
        name: None if field.is_required() or field.default_factory else field.default
        for name, field in model.model_fields.items()
    }


@cache
def _fields_of(model: type[BaseModel]) -> set[str]:
    """Return the names of all fields; frozen models share the set, since nobody adds to it."""
    return set(model.model_fields)


def _made(model: type[_M], values: dict[str, Any]) -> _M:
    made = object.__new__(model)
    _put(made, "__dict__", values)
    _put(made, "__pydantic_fields_set__", _fields_of(model))
    _put(made, "__pydantic_extra__", None)
    _put(made, "__pydantic_private__", None)
    return made


class _Described(BaseModel):
    """In its JSON Schema each field has the text below it in the source."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            field = cls.model_fields.get(name)
            written = name if field is None else field.alias or name
            if written in properties:
                properties[written].setdefault("description", text)
        return schema


class Frozen(_Described):
    """A value that travels: immutable, and strict about names that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def trusted(cls, **values: Any) -> Self:
        """Return the model with these values, without a look at them; the rest is as by default.

        Fields without a default, or with one made anew each time, have to be given. For thousands
        at a time, of values that are right already; `model_construct` takes twice as long as a
        validation, since it looks for aliases and defaults.
        """
        return _made(cls, {**_blank_of(cls), **values})

    def trusted_copy(self, values: Mapping[str, Any]) -> Self:
        """Return the model with these values in place of its own, as `trusted` does."""
        return _made(type(self), {**self.__dict__, **values})


class Wire(_Described):
    """A message through Temporal: immutable, and tolerant of fields that a newer version sends."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def known_or(kind: type[Enum], instead: Enum | None) -> BeforeValidator:
    """Return what reads each word that `kind` does not have, as only a newer version may, as
    `instead`. For fields of a `Wire`, and for each entry of their rows."""
    words = frozenset(one.value for one in kind)

    def read(value: object) -> object:
        return instead if isinstance(value, str) and value not in words else value

    return BeforeValidator(read)


class Answer(Wire):
    """What an agent answers to a workflow.

    One that cannot be read is another answer, which `unreadable` gives. Else it would end the
    workflow, or have it tried again for ever, with all that it holds on other nodes.
    """

    @classmethod
    def unreadable(cls, why: str) -> Self:
        """Return what an answer means that cannot be read, and says so."""
        raise NotImplementedError


class Input(Wire):
    """What a workflow or an update takes. One that cannot be read, or is left out, is refused.

    No version leaves out a field that one before it had (`unknown`).
    """

    instead: ClassVar[str]
    """What to do instead, as a sentence of the refusal."""
    most_bytes: ClassVar[int | None] = None
    """As JSON. One with more is refused before it is read."""
    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names beside those of its fields that somebody gave, who has mistaken one.

        None where all fields were given: so a process of ours writes an input, and what it has
        beyond them is of a newer version.
        """
        everything = type(self).model_fields.keys()
        return () if self.model_fields_set >= everything else self._unknown

    @model_validator(mode="wrap")
    @classmethod
    def _note_unknown(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        found = handler(data)
        if isinstance(data, dict):
            given = set(cast("dict[str, Any]", data))
            found._unknown = tuple(sorted(given.difference(cls.model_fields)))
        return found

    def __eq__(self, other: object) -> bool:
        """By their fields: what somebody gave beside them makes no difference."""
        if not isinstance(other, Input) or type(self) is not type(other):
            return NotImplemented
        fields = type(self).model_fields
        return all(getattr(self, name) == getattr(other, name) for name in fields)


class StartInput(Input):
    """The input of a workflow. One that is refused ends the workflow."""

    def own_id(self, found: str) -> str:
        """Return the id that its workflow must have, which has the id `found`.

        Any will do, unless others find the workflow by its id.
        """
        return found


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs its zone, for example 2026-11-20T12:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} is out of range in UTC") from None


Instant = Annotated[datetime, AfterValidator(_utc)]
"""An aware time, held in UTC."""

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"),
    Field(json_schema_extra={"maxLength": 63}),
]
"""Lower-case letters, digits, dot, dash and underscore; at most 63 characters."""


_WITHOUT_NUL = r"^[^\x00]*$"
WithoutNul = Annotated[str, StringConstraints(pattern=_WITHOUT_NUL)]
LONGEST_TEXT = 131_071
Text = Annotated[str, StringConstraints(pattern=_WITHOUT_NUL, max_length=LONGEST_TEXT)]
"""What people give in a file: no longer than an argument that Linux takes, and without NUL, which
neither PostgreSQL nor a program's arguments can hold."""
ShortText = Annotated[str, StringConstraints(pattern=_WITHOUT_NUL, max_length=4_095)]
"""The same, for a path or a name: no longer than a path that Linux takes."""


_LONGEST_REASON = 4_000


def as_reason(text: str) -> str:
    """Return the text as the database can store it, and as messages can carry it: those that
    repeat it have to stay below what Temporal takes, which never passes on a larger one."""
    text = text.replace("\0", "")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


Reason = Annotated[str, AfterValidator(as_reason)]
"""Why somebody asks for something, as they gave it; cut where it is long, and never refused: what
an older version took has to be read."""

LONGEST_JOB_ID = 201
JOB_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_JOB_ID - 1}}}")
"""What an id of a job has to be: it names folders of nodes, containers and objects of stores."""
