"""A DAG: jobs that wait for the ends of others."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, cast

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from longshore.models.base import Frozen, Name, ShortText
from longshore.models.bounds import Most, json_bytes
from longshore.models.dag_edges import After, Edge, Names
from longshore.models.job import MOST_BYTES, JobSpec
from longshore.models.mistakes import Mistake, Place, refuse


class Join(StrEnum):
    """Which of its edges a job needs."""

    ALL = "all"
    ANY = "any"


class DagJob(JobSpec):
    """A job file's fields, and what the job waits for. Its name is its key when it has none."""

    name: Name = ""
    """What people call it; that of its key in the DAG when it says none."""
    after: After = Field(default_factory=dict[str, Edge])
    """The jobs that it waits for: a name, a list of names, or a mapping of names to conditions:
    success, failure or any; between arrays corresponding, element to element. Slurm's words
    afterok, afternotok, afterany and aftercorr are taken too."""
    join: Join = Join.ALL
    """Whether it starts once `all` of these hold, or the first of them (`any`)."""
    mutex: Names = ()
    """A name, or several: of the tenant's jobs that ask for a name, in all DAGs, one at a time
    is submitted and has not ended. Slurm's word `singleton` is taken too; `singleton: true`
    stands for the job's own name."""
    inputs: Names = ()
    """Jobs before it whose outputs it gets as variables of its environment: the JSON that each
    wrote into the file that LONGSHORE_OUTPUT names. One that succeeds without fails."""

    @model_validator(mode="before")
    @classmethod
    def _from_slurm(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        given = dict(cast("Mapping[str, object]", value))
        if given.get("mutex") == "singleton":
            raise ValueError(
                "mutex holds names, and `singleton` would be one for all jobs that say so: for "
                "one job of this name at a time write `singleton: true`"
            )
        if "singleton" not in given:
            return given
        asked = given.pop("singleton")
        if "mutex" in given:
            raise ValueError("singleton is another word for mutex: give one of them")
        if asked is not False:
            given["mutex"] = given.get("name", ()) if asked is True else asked
        return given

    @property
    def spec(self) -> JobSpec:
        """The job alone."""
        given = self.model_fields_set & JobSpec.model_fields.keys()
        return JobSpec.model_validate({field: getattr(self, field) for field in given})

    @property
    def data_jobs(self) -> dict[str, str]:
        """By the name of a data set: the job of the DAG whose outputs it is."""
        return {name: each.job for name, each in self.data.items() if each.job is not None}

    @property
    def too_large(self) -> str:
        """Why the job alone, with all defaults, has too many bytes; empty where it has not."""
        alone = {field: getattr(self, field) for field in JobSpec.model_fields}
        return JobSpec.trusted(**alone).too_large

    @model_serializer(mode="wrap")
    def _what_was_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A thousand jobs with all defaults would not fit into a message of Temporal.
        return {
            name: value for name, value in handler(self).items() if name in self.model_fields_set
        }


class OnFailure(StrEnum):
    """What a failure that no job catches does to the rest of the DAG."""

    CONTINUE = "continue"
    """What does not depend on it runs; then the DAG fails."""
    STOP = "stop"
    """What runs is cancelled and what waits is skipped, but for the jobs that wait for just this
    failure."""


def _in_tuples(value: object) -> object:
    """Return a document with tuples for its lists."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, object]", value)
        return {name: _in_tuples(each) for name, each in given.items()}
    if isinstance(value, list):
        return tuple(map(_in_tuples, cast("list[object]", value)))
    return value


class DagSpec(Frozen):
    """A DAG file: jobs by name, each a job file's fields with what it waits for."""

    name: Name
    """What people call it; need not be unique."""
    tenant: Name = "default"
    """Who it is for; of all of its jobs."""
    pool: Name = "default"
    """Where its jobs wait that name no other pool."""
    on_failure: OnFailure = OnFailure.CONTINUE
    """What a failure that no job catches does to the rest: `continue` or `stop`."""
    defaults: Annotated[dict[ShortText, Any], Most(100)] = Field(default_factory=dict[str, Any])
    """Fields of a job file, for each job that does not give them."""
    jobs: Annotated[dict[Name, DagJob], Most(10_000)] = Field(min_length=1)
    """The jobs by name."""

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping):
            return value
        given = cast("Mapping[str, object]", value)
        jobs = given.get("jobs")
        if not isinstance(jobs, Mapping):
            return given
        shared = {name: given[name] for name in ("tenant", "pool") if name in given}
        defaults = given.get("defaults")
        if isinstance(defaults, Mapping):
            shared |= cast("Mapping[str, object]", defaults)
        filled: dict[str, object] = {}
        for name, job in cast("Mapping[str, object]", jobs).items():
            if isinstance(job, DagJob):
                own = {field: getattr(job, field) for field in job.model_fields_set}
            elif isinstance(job, Mapping):
                own = cast("Mapping[str, object]", job)
            else:
                filled[name] = job
                continue
            filled[name] = {"name": name, **shared, **own}
        # What comes of this validator is no JSON any more, and strictly read a list is no tuple.
        return {**given, "jobs": _in_tuples(filled) if info.mode == "json" else filled}

    @staticmethod
    def written_at(place: Place, document: object) -> Place:
        """Return where a document has what a job has from `defaults`, or from the whole DAG."""
        if len(place) < 3 or place[0] != "jobs" or not isinstance(document, Mapping):
            return place
        given, (_, name, field, *_) = cast("Mapping[object, object]", document), place
        jobs = given.get("jobs")
        job = (
            cast("Mapping[object, object]", jobs).get(name) if isinstance(jobs, Mapping) else None
        )
        if not isinstance(job, Mapping) or field in job:
            return place
        shared = given.get("defaults")
        if isinstance(shared, Mapping) and field in shared:
            return ("defaults", *place[2:])
        return place[2:] if field in ("tenant", "pool") and field in given else place

    @field_validator("defaults")
    @classmethod
    def _defaults_are_of_a_job_alone(cls, defaults: dict[str, Any]) -> dict[str, Any]:
        own = sorted({"name", "after", "join", "inputs", "tenant"} & defaults.keys())
        if own:
            raise ValueError(f"{own[0]} cannot be the same for all jobs: leave it out")
        return defaults

    @model_validator(mode="after")
    def _jobs_agree(self) -> Self:
        found = [
            Mistake(
                ("jobs", name, "tenant"),
                f"is {job.tenant}, and that of the DAG {self.tenant}: a DAG is for one tenant; "
                "leave it out of its jobs",
                (("tenant",),),
            )
            for name, job in self.jobs.items()
            if job.tenant != self.tenant
        ]
        arrays = {name for name, job in self.jobs.items() if job.array is not None}
        found += (
            Mistake(
                ("jobs", name, "inputs"),
                f"{array} is an array, whose elements put nothing out for others: leave it out, "
                "and let them write into a folder or a store",
                (("jobs", array, "array"),),
            )
            for name, job in self.jobs.items()
            for array in job.inputs
            if array in arrays
        )
        for name, job in self.jobs.items():
            for data, up in job.data_jobs.items():
                place = ("jobs", name, "data", data)
                if up in arrays:
                    why = f"{up} is an array, which stores no outputs: let it write into a store"
                    found.append(Mistake(place, why, (("jobs", up, "array"),)))
                elif up in self.jobs and not self.jobs[up].outputs:
                    why = f"{up} stores no files: name them there, as in `outputs: [results]`"
                    found.append(
                        Mistake(place, why, (("jobs", up, "outputs"), ("jobs", up, "array")))
                    )
        refuse(found)
        return self

    @property
    def too_large(self) -> str:
        """Why it has too many bytes; empty where it has not."""
        found = json_bytes(self)
        if found <= MOST_BYTES:
            return ""
        return (
            f"the DAG has {found:,} bytes as JSON; {MOST_BYTES:,} is the most: put what is long "
            "into files"
        )


def in_our_words(dag: DagSpec) -> DagSpec:
    """Return a DAG without Slurm's words: they are how it was written, and not what it is."""
    jobs: dict[str, DagJob] = {}
    for name, job in dag.jobs.items():
        after = {up: edge.model_copy(update={"word": ""}) for up, edge in job.after.items()}
        jobs[name] = job.model_copy(update={"after": after}) if after else job
    return dag.model_copy(update={"jobs": jobs})
