"""The progress file: one line that a job rewrites at will (docs/progress.md)."""

import re
from pathlib import Path

from longshore.activities.node.public_files import open_public, written_at
from longshore.models.node_messages import Progress

MAX_BYTES = 4096
MAX_MESSAGE = 200

_NUMBER = r"\d+(?:\.\d+)?"
_FRACTION = re.compile(rf"({_NUMBER})(?:(%)|/({_NUMBER}))?", re.ASCII)


def read_progress(path: Path, last: Progress) -> Progress:
    """Return what the file says now.

    A file that is missing, empty (the job is rewriting it) or unreadable changes nothing. A line
    that cannot be understood leaves the fraction as it was and says so in the message.
    """
    try:
        with open_public(path) as file:
            content = file.read(MAX_BYTES)
            at = written_at(file)
    except OSError:
        return last
    line = content.decode(errors="replace").strip().partition("\n")[0].strip()
    if not line:
        return last
    return last.model_copy(update=parse_progress(line) | {"at": at})


def parse_progress(line: str) -> dict[str, object]:
    """Return `fraction` and `message` from one line; only a note in `message` where it is bad."""
    word, _, message = line.partition(" ")
    fraction = _fraction(word)
    if fraction is None:
        note = f"progress not understood: {word[:40]!r} is not like 0.42, 42% or 420/1000"
        return {"message": note}
    return {"fraction": fraction, "message": message.strip()[:MAX_MESSAGE]}


def _fraction(word: str) -> float | None:
    match = _FRACTION.fullmatch(word)
    if not match:
        return None
    number, percent, total = match.groups()
    divisor = 100.0 if percent else float(total or 1)
    value = float(number) / divisor if divisor else -1.0
    return value if 0 <= value <= 1 else None
