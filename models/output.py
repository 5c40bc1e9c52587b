"""The output of a job: a small JSON document for the jobs behind it."""

import hashlib
import json
from typing import NoReturn

from longshore.models.base import Reason, Wire

MOST_BYTES = 65_536
VARIABLE = "LONGSHORE_OUTPUT"
"""Names the file into which a job writes its output."""


class JobOutput(Wire):
    """What a job wrote into its file. `content` is empty where it cannot be used."""

    content: str = ""
    bytes: int
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
    digest = hashlib.sha256(content.encode()).hexdigest()
    return JobOutput(content=content, bytes=len(content.encode()), digest=digest)


def why_unusable(output: JobOutput | None) -> str:
    """Return why a job that needs an output has failed; empty where it has not."""
    if output is None:
        return f"it wrote no output: a job of its DAG needs JSON in the file that {VARIABLE} names"
    return output.problem


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
