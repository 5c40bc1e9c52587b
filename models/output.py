"""The output of a job: a small JSON document for the jobs behind it."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Annotated, NoReturn, cast

from pydantic import Field

from longshore.models.base import Reason, Wire

MOST_BYTES = 65_536
VARIABLE = "LONGSHORE_OUTPUT"
"""Names the file into which a job writes its output."""
_LONGEST_FIELD = 4_096
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


class JobOutput(Wire):
    """What a job wrote into its file. `content` is empty where it cannot be used."""

    content: str = ""
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    digest: str = ""
    """SHA-256 of the content, in hex."""
    problem: Reason = ""
    """Why it cannot be used; empty where it can."""


def output_of(raw: bytes) -> JobOutput:
    """Return the output in a file's first `MOST_BYTES` + 1 bytes."""
    if len(raw) > MOST_BYTES:
        why = f"its output has more than {MOST_BYTES:,} bytes: write the path of a file instead"
        return JobOutput(bytes=len(raw), problem=why)
    try:
        content = raw.decode().strip()
        json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = f"its output is no JSON document in UTF-8: {error}"
        return JobOutput(bytes=len(raw), problem=why)
    if why := _same_variable(content):
        return JobOutput(bytes=len(raw), problem=why)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return JobOutput(content=content, bytes=len(content.encode()), digest=digest)


def variable_of_field(field: str) -> str:
    """Return how the variable of a field ends: ``LOSS``."""
    return field.upper()


def field_values(content: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of an object that are variables, each with its value: texts, truth values,
    and numbers with the digits that they were written with.

    None of long texts, nor of those that no variable can hold.
    """
    document: object = json.loads(content, parse_float=str, parse_int=str)
    if not isinstance(document, dict):
        return
    for field, value in cast("dict[str, object]", document).items():
        if not _FIELD.fullmatch(field) or not isinstance(value, str | bool):
            continue
        told = json.dumps(value) if isinstance(value, bool) else str(value)
        if len(told) <= _LONGEST_FIELD and "\0" not in told and _is_text(told):
            yield field, told


def _same_variable(content: str) -> str:
    """Return which fields would be one variable; empty where none would."""
    seen: dict[str, str] = {}
    for field, _ in field_values(content):
        other = seen.setdefault(variable_of_field(field), field)
        if other != field:
            return (
                f"its output has the fields {other} and {field}, which would be one variable "
                f"(...__{variable_of_field(field)}): rename one of them"
            )
    return ""


def _is_text(value: str) -> bool:
    """Return whether it can be written: JSON may have half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def why_unusable(output: JobOutput | None) -> str:
    """Return why a job that needs an output has failed; empty where it has not."""
    if output is None:
        return f"it wrote no output: a job of its DAG needs JSON in the file that {VARIABLE} names"
    return output.problem


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
