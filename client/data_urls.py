"""URLs of data from which nothing can be fetched."""

from longshore.models.dag import DagSpec
from longshore.models.data import why_no_host
from longshore.models.job import JobSpec


def urls_without_host(spec: JobSpec | DagSpec) -> tuple[str, ...]:
    """Return which URLs of a spec's data name no host. A file is refused where it is read; this is
    for a spec that a program has made, which is the same as one that was taken before."""
    if isinstance(spec, JobSpec):
        jobs = {"": spec}
    else:
        jobs = {f"jobs.{name}.": job.spec for name, job in spec.jobs.items()}
    return tuple(
        f"{at}data.{name}.from: {why}"
        for at, job in jobs.items()
        for name, data in job.data.items()
        if data.source is not None and (why := why_no_host(data.source))
    )
