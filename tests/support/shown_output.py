"""Whether a command wrote what a page shows: words literally, what varies by its kind."""

import re
import socket
from collections.abc import Sequence
from functools import partial

_KINDS = (
    ("TIME", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|\+00:00)?"),
    ("TIME", r"\d\d-\d\d \d\d:\d\d|\d\d:\d\d:\d\d"),
    ("UUID", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("PURCHASE", r"\bp-[0-9a-f]{12}\b"),
    ("JOB", r"(?<=-)[a-z0-9]{10}(?![a-z0-9])"),
    ("ADDRESS", r"(?:https?://)?127\.0\.0\.1:\d+"),
    ("PATH", r"(?<![\w.])~?/[\w./~-]*"),
    ("DOLLARS", r"\$\d[\d,]*(\.\d+)?"),
    ("SHARE", r"\d+(\.\d+)?\s?%"),
    ("DURATION", r"\b\d+(\.\d+)?(ms|s|min|m|h|d)(\d+(m|s|h))*\b"),
    ("NUMBER", r"-?\d+\.\d+"),
    ("EPOCH", r"\bepoch \d+,"),
    ("ID", r"\bprocess \d+|\bpid \d+"),
)  # fmt: skip
"""In this order: what an earlier one has taken, a later one does not see."""
_ANY = "..."
HERE = "box"
"""The name that pages give to the machine."""


def differences(
    shown: Sequence[str], written: str, *, exactly: bool = False, numbers: bool = True
) -> list[str]:
    """Return what a page shows and the output does not have; nothing where they agree.

    A line `...` in the page stands for any lines, `...` in a line for any text. Blanks count as
    one, empty lines as none. `exactly`: nothing varies, so nothing is masked. Without `numbers`
    every number varies.
    """
    mask = partial(masked, numbers=numbers)
    if exactly:
        mask = str
    wanted = [mask(line) for line in map(_plain, shown) if line]
    lines = [mask(line) for line in map(_plain, written.splitlines()) if line]
    at = 0
    anywhere = False
    for line in wanted:
        if line == _ANY:
            anywhere = True
            continue
        places = range(at, len(lines)) if anywhere else range(at, min(at + 1, len(lines)))
        place = next((n for n in places if _alike(line, lines[n])), None)
        if place is None:
            there = lines[at] if at < len(lines) and not anywhere else "no such line"
            return [f"the page shows  {line}", f"the output has  {there}"]
        at, anywhere = place + 1, False
    if at < len(lines) and not anywhere:
        return ["the page shows  nothing more", f"the output has  {lines[at]}"]
    return []


def _plain(line: str) -> str:
    return " ".join(line.replace(f" on {socket.gethostname()} ", f" on {HERE} ").split())


def _alike(shown: str, written: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.split(_ANY))
    return re.fullmatch(pattern, written) is not None


def masked(line: str, *, numbers: bool = True) -> str:
    """Return a line with all that varies replaced by its kind; without `numbers` those as well."""
    for kind, pattern in _KINDS:
        line = re.sub(pattern, f"<{kind}>", line)
    return line if numbers else re.sub(r"\d+", "<N>", line)
