"""All mistakes of a document at once: those of its fields, and those between the fields.

pydantic looks at a model as a whole only once each field of it is right. Here what cannot be read
is left out, and the rest is looked at again, so that a wrong priority hides no wrong size.
"""

import copy
import json
from collections.abc import Callable, Collection
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from longshore.models.dag import DagSpec
from longshore.models.legacy_documents import MOST_MISTAKES
from longshore.models.mistakes import Place
from longshore.models.problems import Problem, find, mistakes_of

_ROUNDS = 8
"""Looks at what is left. Each leaves out what the one before could not read: fields, then the
values that lack one of them, outwards."""
_NAME: Place = ("name",)
"""Of a document, which has to have one. Another takes its place: no other field is wrong by it."""

WrittenAt = Callable[[Place], Place]
"""Where a document has the value that the model has at a place."""


def find_all(error: ValidationError, given: object, model: type[BaseModel]) -> list[Problem]:
    """Return what `error` says of a document (plain values), and what lies between those of its
    fields that can be read. What speaks of a field that cannot be read is not told."""

    def written_at(place: Place) -> Place:
        return model.written_at(place, given) if issubclass(model, DagSpec) else place

    found = find(error, given, written_at)
    if error.error_count() > MOST_MISTAKES:
        return found
    left, gone = copy.deepcopy(given), set[Place]()
    for _ in range(_ROUNDS):
        wrong = {
            place
            for mistake in error.errors(include_url=False)
            for place in _unreadable(left, mistake, written_at)
        }
        if not wrong:
            break
        for place in wrong:
            _take_out(left, place)
        gone |= wrong
        try:
            model.model_validate_json(json.dumps(left), strict=True)
        except ValidationError as next_one:
            error = next_one
        else:
            break
        found += _between(error, gone, written_at)
    return [*dict.fromkeys(found)]


def _between(
    error: ValidationError, gone: Collection[Place], written_at: WrittenAt
) -> list[Problem]:
    """Return what lies between fields, but for what speaks of one that is gone, or of a part."""
    found: list[Problem] = []
    around = {place[:length] for place in gone for length in range(len(place))}
    for mistake in error.errors(include_url=False):
        raised, place = mistakes_of(mistake), mistake["loc"]
        for each in raised.found if raised else ():
            spoken_of = [written_at((*place, *field)) for field in each.fields]
            if not any(one in around or _is_in(one, gone) for one in spoken_of):
                found.append(Problem(written_at((*place, *each.place)), each.message))
    return found


def _is_in(place: Place, gone: Collection[Place]) -> bool:
    return any(place[:length] in gone for length in range(1, len(place) + 1))


def _unreadable(document: object, mistake: ErrorDetails, written_at: WrittenAt) -> list[Place]:
    """Return the values of a document that a mistake is about."""
    place, raised = mistake["loc"], mistakes_of(mistake)
    if place == _NAME:
        return [place]
    # What lies between fields has been told: the models around it are to be looked at.
    told = raised.found if raised else ()
    fields = {written_at((*place, *field)) for each in told for field in each.fields}
    there = [field for field in fields if _reach(document, field) == field]
    return [*filter(None, there or [_reach(document, written_at(place))])]


def _reach(document: object, place: Place) -> Place:
    """Return how far a place leads through mappings. To a value that lacks a field, and to a list
    with an entry that cannot be read: these go as a whole."""
    here, path = document, list[str | int]()
    for part in place:
        if not isinstance(here, dict) or part not in here:
            break
        here = cast("dict[str | int, object]", here)[part]
        path.append(part)
    return tuple(path)


def _take_out(document: object, place: Place) -> None:
    here = cast("dict[str | int, Any]", document)
    if place == _NAME:
        here["name"] = "x"
        return
    for part in place[:-1]:
        here = here.get(part, {})
    here.pop(place[-1], None)
