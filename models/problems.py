"""Puts the mistakes that pydantic finds into plain words."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from longshore.models.base import Name, Text
from longshore.models.bounds import GIVEN
from longshore.models.code import Sha256
from longshore.models.data import DataName, SourceUrl
from longshore.models.environment import PythonVersion, Requirement
from longshore.models.job import EnvName
from longshore.models.legacy_documents import MOST_MISTAKES
from longshore.models.mistakes import Mistakes, Place, in_words
from longshore.models.visible import name_of_place, said

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping (name: value lines)",
    "model_type": "a mapping (name: value lines)",
    "model_attributes_type": "a mapping (name: value lines)",
    "datetime_type": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "datetime_parsing": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "datetime_from_date_parsing": "a time with its zone, such as 2026-11-20T12:00:00Z",
    "finite_number": "a finite number",
    "none_required": "left out",
}
_UNKNOWN = object()
_NO_SUCH_FIELD = "no such field"
_MOST_PROBLEMS = 100
_MANY = "has {count} mistakes: is it of this kind at all?"
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"),
    "less_than": ("less than", "lt"),
}


class Problem(NamedTuple):
    """One mistake of a document."""

    place: Place
    message: str
    unknown: bool = False
    """The field of this name is not known."""

    def __str__(self) -> str:
        return f"{in_words(self.place)}: {self.message}" if self.place else self.message


def describe_all(
    error: ValidationError, given: object = _UNKNOWN, whole: str = ""
) -> tuple[str, ...]:
    """Return each mistake with the field that it is about: ``gpus: must be at least 1, got 0``.

    `given` is what was validated, where that is known, and `whole` its name, for a mistake that is
    about no field. Of very many mistakes the first are named.
    """
    found = [
        f"{'' if each.place else whole and whole + ': '}{each}" for each in find(error, given)
    ]
    return bounded(found)


def find(
    error: ValidationError,
    given: object = _UNKNOWN,
    written_at: Callable[[Place], Place] = lambda place: place,
) -> list[Problem]:
    """Return the mistakes in what was `given`, one for each place, in pydantic's order.

    `written_at` says where `given` has the value that the model has at a place.
    """
    if error.error_count() > MOST_MISTAKES:
        return [Problem((), _MANY.format(count=f"{error.error_count():,}"))]
    found: dict[Place, list[str]] = {}
    between: list[Problem] = []
    unknown: set[Place] = set()
    for mistake in error.errors(include_url=False):
        place = _place(mistake, given, written_at(mistake["loc"]))
        if raised := mistakes_of(mistake):
            between += (
                Problem(written_at((*place, *each.place)), each.message) for each in raised.found
            )
            continue
        message = describe(mistake)
        if mistake["type"] == "extra_forbidden":
            unknown.add(place)
        if message not in found.setdefault(place, []):
            found[place].append(message)
    # Where a value may have several forms, only the form that came furthest is of interest. And a
    # list of which no entry can be read is not empty.
    inner = [*found, *(each.place for each in between)]
    outer = {place[:length] for place in inner for length in range(len(place))}
    return between + [
        Problem(place, _either(messages), place in unknown)
        for place, messages in found.items()
        if place not in outer
    ]


def mistakes_of(mistake: ErrorDetails) -> Mistakes | None:
    """Return what lies between the fields of a model, where that is what pydantic passes on."""
    raised = mistake.get("ctx", {}).get("error")
    return raised if isinstance(raised, Mistakes) else None


def shortened(error: ValidationError) -> ValidationError:
    """Return the error, or one that counts its mistakes where they are very many: whoever logs it
    or passes it on writes out each of them."""
    if error.error_count() <= _MOST_PROBLEMS:
        return error
    many = PydanticCustomError("many", _MANY, {"count": f"{error.error_count():,}"})
    return ValidationError.from_exception_data(error.title, [{"type": many, "input": None}])


def beyond_bounds(given: BaseModel) -> tuple[str, ...]:
    """Return what somebody gives now and has more than it may, a line each. A value may have that
    which was copied, came in a message, or was taken by an earlier version."""
    try:
        type(given).model_validate(given.model_dump(), context=GIVEN)
    except ValidationError as error:
        return describe_all(error)
    return ()


def bounded(problems: Sequence[str], unknown: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the first of very many problems, and how many more there are: a failure has to stay
    below what Temporal takes.

    After the `problems` comes a line for each of the `unknown` names, which somebody gave and
    which are no fields. No line is written that is left out: a worker fails a workflow task that
    computes for two seconds.
    """
    lines = (f"{name_of_place(name)}: {_NO_SUCH_FIELD}" for name in unknown)
    first = islice(chain(problems, lines), _MOST_PROBLEMS)
    more = len(problems) + len(unknown) - _MOST_PROBLEMS
    return (*first, *([f"and {more:,} more mistakes"] if more > 0 else ()))


def describe(mistake: ErrorDetails) -> str:
    """Return one mistake in words, with the value that was given where that helps."""
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _NO_SUCH_FIELD
    got = f", got {said(mistake['input'])}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}{got}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"must be {words} {_number(context[name])}{got}"
    if kind in ("enum", "literal_error"):
        return f"must be {_bare(context['expected'])}{got}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}") + got
    if kind == "string_too_short":
        return "must not be empty" if context["min_length"] == 1 else mistake["msg"] + got
    if kind in ("too_short", "too_long"):
        words, bound = ("at least", "min") if kind == "too_short" else ("at most", "max")
        entries = context[f"{bound}_length"]
        noun = "entry" if entries == 1 else "entries"
        return f"must have {words} {entries} {noun}, got {context['actual_length'] or 'none'}"
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters"
    if kind == "json_invalid":
        return f"is not JSON: {context['error']}"
    if kind == "value_error":
        return str(context["error"])
    return mistake["msg"][:1].lower() + mistake["msg"][1:]


def known_fields(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the names of the fields of the model that stands at `path` below `model`."""
    models = [model]
    for part in path:
        if not any(part in m.model_fields for m in models):
            continue  # a position or key: what is in the list or mapping is looked at already
        annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [inner for annotation in annotations for inner in _models_in(annotation)]
    return [name for m in models for name in m.model_fields]


def _place(mistake: ErrorDetails, given: object, where: Place) -> Place:
    """Return where a mistake, which is at `where`, is in what was given.

    Parts that are not there (the branch of a union, which pydantic names) are left out; a field
    that is missing, or that the document has under another spelling, is not there either.
    """
    if given is _UNKNOWN:
        return where
    here, place = given, list[str | int]()
    for part in where:
        if isinstance(here, dict) and part in here:
            here = cast("dict[str | int, object]", here)[part]
        elif isinstance(here, list | tuple) and isinstance(part, int) and part < len(here):  # pyright: ignore[reportUnknownArgumentType]
            here = cast("Sequence[object]", here)[part]
        else:
            continue
        place.append(part)
    name = where[-1:]
    named = mistake["type"] in ("missing", "extra_forbidden") and tuple(place[-1:]) != name
    return (*place, *name) if named else tuple(place)


def _either(messages: list[str]) -> str:
    """Join what each form that may stand here wants: ``must be text or a list, got 5``."""
    # A value of the right form has something else wrong with it: that is what helps.
    helpful = [message for message in messages if not message.startswith("must be ")]
    if helpful or len(messages) == 1:
        return " or ".join(helpful or messages)
    wanted = [message.rpartition(", got ")[0].removeprefix("must be ") for message in messages]
    if not all(wanted):
        return " or ".join(messages)
    return f"must be {' or '.join(wanted)}, got {messages[0].rpartition(', got ')[2]}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _bare(choices: str) -> str:
    return choices.replace("'", "")


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _pattern_of(annotated: Any) -> str:
    return cast(str, get_args(annotated)[1].pattern)


_PATTERNS = {
    _pattern_of(Name): (
        "must be lower-case letters, digits, dots, dashes and underscores, "
        "begin and end with a letter or digit, and have at most 63 characters"
    ),
    _pattern_of(EnvName): "must be letters, digits and underscores, and not begin with a digit",
    _pattern_of(DataName): "must have no spaces, and at most 200 characters",
    _pattern_of(SourceUrl): "must have no spaces and no control characters",
    _pattern_of(Requirement): "must have no control characters",
    _pattern_of(PythonVersion): "must be a version of Python 3, such as 3.12",
    _pattern_of(Sha256): "must be 64 digits and letters from a to f",
    _pattern_of(Text): "must not hold a NUL character",
}
