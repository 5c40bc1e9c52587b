"""A row of the queue as the packer has it."""

import json
from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from longshore.activities.stored_learnt import stored_learnt
from longshore.models.job_request import JobRequest
from longshore.models.units import LONGEST
from longshore.scheduling.durations import with_learnt
from longshore.scheduling.unplannable_jobs import in_one_line

_FACTS = ("can_stop", "duration_known")
_NONE = timedelta(0)


class QueueEntry(NamedTuple):
    """A job in a queue, as the packer and its user see it."""

    request: JobRequest
    held: bool
    queued_at: datetime


def entry_of(
    row: Mapping[Any, Any], known: dict[Hashable, JobRequest] | None = None
) -> QueueEntry | str:
    """Return a job that waits, from its row with `WAITS_SINCE`; or why that cannot be read.

    What the row has columns for is as they say, whatever the request does. With `known` the
    request of the row is text without those, and jobs that ask alike are validated once.
    """
    own = {"id": row["job_id"], "attempt": row["attempt"], "waits_since": row["waits_since"],
           "attained": row["attained"], "submitted_at": row["submitted_at"],
           "tenant": row["tenant"]}  # fmt: skip
    own |= {name: row[name] for name in _FACTS if row[name] is not None}
    try:
        stored = row["request"]
        request = _validated(stored, own) if known is None else _alike(stored, own, known)
        request = with_learnt(request, stored_learnt(row["learnt"]))
    except Exception as error:  # by hand anything may have been written: it is that job's alone
        return in_one_line(error)
    return QueueEntry(request=request, held=row["held"], queued_at=row["queued_at"])


def _validated(stored: object, own: dict[str, Any]) -> JobRequest:
    return JobRequest.model_validate({**stored, **own} if isinstance(stored, dict) else stored)


def _alike(shape: str, own: dict[str, Any], known: dict[Hashable, JobRequest]) -> JobRequest:
    """Return a request, of those that differ only in whose they are; `known` are the first."""
    key = shape, *map(own.get, _FACTS)
    first = known.get(key)
    if first is not None and _NONE <= own["attained"] <= LONGEST:
        return first.trusted_copy(own)
    found = known[key] = _validated(json.loads(shape), own)
    return found
