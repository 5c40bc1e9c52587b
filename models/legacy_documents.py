"""Documents that an earlier version took, and that are beyond the bounds of this one."""

import copy
from typing import Any, cast

from pydantic import ValidationError

from longshore.models.text import format_duration
from longshore.models.units import LONGEST, TOO_LONG

MOST_MISTAKES = 10_000
"""Of one document that are looked at: a workflow may take 2 s for a step."""


def clamped(document: object, error: ValidationError) -> object:
    """Return the document with the bound in place of each value that is beyond it.

    What else is wrong with it stays as it is.
    """
    found = copy.deepcopy(document)
    for mistake in error.errors(include_url=False):
        bound = _bound(mistake["type"], mistake.get("ctx", {}))
        if bound is not None:
            _put(found, mistake["loc"], bound)
    return found


def _bound(kind: str, context: dict[str, Any]) -> object:
    if kind == "less_than_equal":
        return context["le"]
    if kind == "value_error" and str(context["error"]) == TOO_LONG:
        return format_duration(LONGEST)
    return None


def _put(document: object, where: tuple[int | str, ...], value: object) -> None:
    for part in where[:-1]:
        if not isinstance(document, dict) or part not in document:
            return
        document = cast("dict[object, object]", document)[part]
    if isinstance(document, dict) and where[-1] in document:
        cast("dict[object, object]", document)[where[-1]] = value
