"""Workflows that others find by their id."""

from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from longshore.models.base import JOB_ID, LONGEST_JOB_ID, Input, StartInput
from longshore.models.errors import SpecError
from longshore.models.messages import JobInput
from longshore.models.problems import bounded
from longshore.models.visible import visible

_HISTORY = "history: is what a job carries over when its workflow continues as new; give none"


def refuse_another_id(given: StartInput) -> None:
    """Raise ApplicationError unless this workflow's id is that of what its input is about.

    No signal would reach one of another id, and it would act beside the one that has the id.
    """
    found = workflow.info().workflow_id
    # The names of jobs are looked at more closely. No other with a NUL has ever come further.
    if "\0" in found and not isinstance(given, JobInput):
        _refuse(
            f"the workflow id {found!r} has a NUL character, which the capacity database cannot "
            "hold: give one without"
        )
    wanted = given.own_id(found)
    # Asked of other ids alone: an earlier version may have let one begin.
    if found != wanted and (isinstance(given, JobInput) or workflow.patched("own-ids")):
        _refuse(f"the workflow id must be {wanted}, not {found}: others find it by that id")


def refuse_unknown(given: StartInput) -> None:
    """Raise ApplicationError for names that an input does not have, as a job file is refused for
    them: what was meant would not be done. (A job says itself what of its input is refused.)"""
    first = workflow.info().continued_run_id is None
    if isinstance(given, JobInput) or not first or not given.unknown:
        return
    # Asked of these alone: an earlier version may have let one begin.
    if workflow.patched("known-fields"):
        _refuse(str(no_such_input(given)))


def no_such_input(given: Input) -> SpecError:
    """Return the refusal of an input with names that it does not have."""
    return SpecError("input", (*bounded((), given.unknown), given.instead))


def refuse_odd_id(job_id: str) -> None:
    """Raise ApplicationError unless the id of a job names a folder."""
    found = workflow.info().workflow_id
    # Asked of odd ids alone: the histories of all others have no trace of it.
    if not JOB_ID.fullmatch(job_id) and workflow.patched("job-ids"):
        _refuse(
            f"the workflow id of a job must be job- and 1 to {LONGEST_JOB_ID} letters, digits, "
            "dots, dashes and underscores, of which the first is no dot and no dash; "
            f"{found!r} is not"
        )


def refuse_input(job: JobInput) -> None:
    """Fail a job whose input is wrong; one that an earlier version has taken goes on."""
    first = workflow.info().continued_run_id is None
    if first and job.refused and workflow.patched("input-bounds"):
        _refuse(str(SpecError("input", job.refused)))
    if first and job.history is not None and workflow.patched("history-is-its-own"):
        _refuse(str(SpecError("input", (_HISTORY,))))


def _refuse(why: str) -> NoReturn:
    raise ApplicationError(visible(why), type=SpecError.__name__, non_retryable=True)
