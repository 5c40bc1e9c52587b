"""A new desired size for a job: why it cannot have it, and its spec with it."""

from temporalio.exceptions import ApplicationError

from longshore.models.errors import RefusedError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.resize import Resize
from longshore.models.text import count

_WITH_PROCESS = (JobState.RUNNING, JobState.STOPPING)


def with_size(spec: JobSpec, resize: Resize, state: JobState) -> JobSpec:
    """Return the spec with the size as its desired one.

    Raises ApplicationError with a sentence where a job in this state cannot have it.
    """
    sizes = spec.malleable
    if sizes is None:
        raise _refused(
            f"the job has one size, {count(spec.gpus, 'GPU')}: submit it with `malleable` in its "
            "job file to give it several"
        )
    if why := sizes.why_not(resize.gpus, "gpus"):
        raise _refused(f"{why}; the job has {sizes.text}")
    if state.ended:
        raise _refused("the job has ended already")
    if state in _WITH_PROCESS and spec.checkpoint is None and not resize.from_start:
        raise _refused(
            "the job runs and has no checkpoint: with another size it would start from the "
            "beginning, which it does with `--from-start` (`from_start` of the update)"
        )
    return spec.model_copy(update={"malleable": sizes.model_copy(update={"desired": resize.gpus})})


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type=RefusedError.__name__, non_retryable=True)
