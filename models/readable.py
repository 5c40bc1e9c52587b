"""All mistakes of a document at once: those of its fields, and those between the fields.

pydantic looks at a model as a whole only once each field of it is right. Here what cannot be read
is left out, and the rest is looked at again, so that a wrong priority hides no wrong size.
"""

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from longshore.models.dag import DagSpec
from longshore.models.mistakes import Place
from longshore.models.problems import Problem, find, mistakes_of

_ROUNDS = 8
"""Looks at what is left. Each leaves out what the one before could not read: fields, then the
values that lack one of them, outwards."""
_STAND_IN = "x"
"""In place of a name: no other field is wrong by it."""

WrittenAt = Callable[[Place], Place]
"""Where a document has the value that the model has at a place."""


def find_all(error: ValidationError, given: object, model: type[BaseModel]) -> list[Problem]:
    """Return what `error` says of a document (plain values), and what lies between those of its
    fields that can be read. What speaks of a field that cannot be read is not told."""

    def written_at(place: Place) -> Place:
        return model.written_at(place, given) if issubclass(model, DagSpec) else place

    found = find(error, given, written_at)
    left, gone = copy.deepcopy(given), set[Place]()
    for _ in range(_ROUNDS):
        taken = [place for each in error.errors(include_url=False) for place in _taken(left, each, written_at)]
        if not taken:
            break
        gone.update(taken)
        try:
            model.model_validate_json(json.dumps(left), strict=True)
        except ValidationError as next_one:
            error = next_one
        else:
            break
        found += [each for each in _between(error, gone, written_at) if each not in found]
    return found


def _between(
    error: ValidationError, gone: Iterable[Place], written_at: WrittenAt
) -> list[Problem]:
    """Return what lies between fields, but for what speaks of one that is gone."""
    found: list[Problem] = []
    for mistake in error.errors(include_url=False):
        raised, place = mistakes_of(mistake), mistake["loc"]
        for each in raised.found if raised else ():
            spoken_of = [written_at((*place, *field)) for field in each.fields]
            if not any(_overlap(one, other) for one in spoken_of for other in gone):
                found.append(Problem(written_at((*place, *each.place)), each.message))
    return found


def _overlap(one: Place, other: Place) -> bool:
    return all(left == right for left, right in zip(one, other, strict=False))


def _taken(document: object, mistake: ErrorDetails, written_at: WrittenAt) -> list[Place]:
    """Take out of a document what a mistake is about; return what that was."""
    place, raised = mistake["loc"], mistakes_of(mistake)
    if place == ("name",) and isinstance(document, dict) and "name" not in document:
        document["name"] = _STAND_IN
        return [place]
    # What lies between fields has been told: the models around it are to be looked at.
    told = raised.found if raised else ()
    fields = {written_at((*place, *field)) for each in told for field in each.fields}
    there = [field for field in fields if _reach(document, field) == field]
    found = [_reach(document, each) for each in there or [written_at(place)]]
    for each in found:
        _take(document, each)
    return [each for each in found if each]


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


def _take(document: object, place: Place) -> None:
    here = cast("dict[str | int, Any]", document)
    for part in place[:-1]:
        here = here.get(part, {})
    if place:
        here.pop(place[-1], None)
