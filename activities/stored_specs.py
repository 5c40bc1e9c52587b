"""What was submitted of a job that runs, as it is stored.

Somebody may have written into the row by hand. Such a job is left alone: nobody is stopped for
what it is thought to lose, and a cycle, a departure or a look at a block goes on without it.
"""

import logging
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from longshore.models.errors import StoredError
from longshore.models.job import JobSpec
from longshore.models.problems import describe_all

UNKNOWN: Final = JobSpec(name="unknown", command="true")
"""All that is known of a job whose spec cannot be read: the defaults, for who has to stop it."""

_log = logging.getLogger(__name__)


def stored_spec(job_id: str, stored: object) -> JobSpec | None:
    """Return the spec of a job, whichever version has taken it; None where it cannot be read."""
    found = _read(stored)
    if isinstance(found, JobSpec):
        return found
    say_once(job_id, found)
    return None


def why_unreadable(stored: object) -> str:
    """Return why a stored spec cannot be read; empty where it can."""
    found = _read(stored)
    return "" if isinstance(found, JobSpec) else found


def _read(stored: object) -> JobSpec | str:
    """Return a stored spec, or why it cannot be read."""
    try:
        return JobSpec.as_known(stored)
    except ValidationError as error:
        return "; ".join(describe_all(error, stored, "spec"))
    except (TypeError, KeyError, AttributeError, ValueError) as error:  # it is no mapping at all
        return str(error) or type(error).__name__


def stored_error(what: str, stored: object, error: ValidationError) -> StoredError:
    """Return the error that names all that is wrong with what is stored."""
    problems = tuple(f"{what}: {problem}" for problem in describe_all(error, stored))
    return StoredError(what, problems)


@lru_cache(maxsize=1000)
def say_once(job_id: str, problems: str) -> None:
    """Name a job in the log; later looks find the same, and say nothing."""
    _log.warning("job %s is left alone: its spec cannot be read (%s)", job_id, problems)
