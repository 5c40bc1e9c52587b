"""What another file changes of a DAG that has run: which jobs are new, changed or gone."""

from collections.abc import Mapping
from dataclasses import dataclass

from longshore.models.dag import DagJob, DagSpec


@dataclass(frozen=True)
class Changes:
    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """What they run, or what they wait for, is another than before."""
    refused: tuple[str, ...] = ()
    """Why the file cannot take the place of the other, a line each."""

    @property
    def anew(self) -> frozenset[str]:
        return frozenset((*self.new, *self.changed))


def changes(old: DagSpec, new: DagSpec) -> Changes:
    """Compare jobs by name. A mutex, and who catches a failure, change no result."""
    refused = [
        f"jobs: {name} is not in the file: a retry takes no job out; submit the file as a new DAG"
        for name in old.jobs
        if name not in new.jobs
    ]
    for field, before, after in (
        ("name", old.name, new.name),
        ("tenant", old.tenant, new.tenant),
    ):
        if before != after:
            refused.append(f"{field}: {after} is not that of the DAG, {before}")
    kept = [name for name in new.jobs if name in old.jobs]
    return Changes(
        new=tuple(name for name in new.jobs if name not in old.jobs),
        changed=tuple(name for name in kept if _result_of(old, name) != _result_of(new, name)),
        refused=tuple(refused),
    )


def _result_of(spec: DagSpec, name: str) -> object:
    """Return all of a job that its result depends on, with defaults filled in."""
    job = spec.jobs[name]
    code = job.code and job.code.snapshot  # whichever commit it was taken from
    environment = job.environment and job.environment.as_asked
    own = job.spec.model_copy(update={"code": None, "environment": environment})
    return own, code, _conditions(job), job.join, job.inputs


def _conditions(job: DagJob) -> Mapping[str, tuple[str, str]]:
    return {up: (edge.condition.value, edge.extra.value) for up, edge in job.after.items()}
