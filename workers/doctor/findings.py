"""What a check of `longshore doctor` answers."""

from collections.abc import Awaitable, Callable
from enum import StrEnum

from longshore.models.base import Frozen


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, and may not for long or not as well as it could."""
    FAIL = "fail"


class Finding(Frozen):
    """One thing that was looked at."""

    check: str
    level: Level
    says: str
    """What was found, in a sentence."""
    mend: str = ""
    """What to do about it."""


Check = Callable[[], Awaitable[list[Finding]]]


def ok(check: str, says: str) -> Finding:
    return Finding(check=check, level=Level.OK, says=says)


def warn(check: str, says: str, mend: str) -> Finding:
    return Finding(check=check, level=Level.WARN, says=says, mend=mend)


def fail(check: str, says: str, mend: str) -> Finding:
    return Finding(check=check, level=Level.FAIL, says=says, mend=mend)
