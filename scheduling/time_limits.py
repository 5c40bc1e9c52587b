"""How long jobs may run: what a job says, within what its pool allows."""

from longshore.models.job import JobSpec
from longshore.models.pool import PoolSpec
from longshore.models.text import format_duration


def with_limit(spec: JobSpec, pool: PoolSpec) -> JobSpec:
    """Return the job with the time limit of its pool where it names none."""
    if spec.max_duration is not None or pool.max_duration is None:
        return spec
    return spec.model_copy(update={"max_duration": pool.max_duration})


def why_too_long(spec: JobSpec, pool: PoolSpec) -> str:
    """Return why a pool does not take a job for its time limit; empty where it does."""
    asked, most = spec.max_duration, pool.max_duration
    if asked is None or most is None or asked <= most:
        return ""
    return (
        f"max_duration is {format_duration(asked)}, and pool {spec.pool} lets jobs run for "
        f"{format_duration(most)} at most: ask for less (`--time`), or name another pool"
    )
