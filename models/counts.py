"""Counts as people write them: the digits 0 to 9, with a sign or without.

Python and pydantic also read ``1_000``, and other scripts' digits, which sizes and durations do
not have either (`models.units`).
"""

import re
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

_DIGITS = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)


def is_count(text: str) -> bool:
    """Return whether a text is a whole number."""
    return _DIGITS.fullmatch(text) is not None


def _refuse_others(value: object) -> object:
    if isinstance(value, str) and not is_count(value):
        raise PydanticCustomError("int_parsing", "must be a whole number")
    return value


DIGITS = BeforeValidator(_refuse_others)
"""Annotation of a whole number: where it is given as text, that has digits alone. It stands behind
bounds, where there are any: before them the schema would lose them."""
Count = Annotated[int, DIGITS]
"""A whole number of a document or a setting."""
