"""Reading a DAG file, with all that is wrong with it at once."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from longshore.client.array_table import with_table
from longshore.models.dag import After, DagJob, DagSpec, Edge
from longshore.models.document import load_document, read_document
from longshore.models.problems import Problem
from longshore.scheduling.dag import problems

_AFTER: TypeAdapter[dict[str, Edge]] = TypeAdapter(After)


def read_dag(file: str, most: int) -> DagSpec:
    """Return the DAG in a file, or on stdin for ``-``, with absolute working folders.

    Raises SpecError with every mistake: those of its jobs, and those of its edges (unknown jobs,
    cycles, more than `most` jobs).
    """

    def check(plain: object) -> list[Problem]:
        return graph_problems(_edges_in(plain), most)

    if file == "-":
        return _in_its_folder(load_document(sys.stdin.read(), "stdin", DagSpec, check=check), file)
    return _in_its_folder(read_document(file, DagSpec, check=check), file)


def graph_problems(edges: Mapping[str, Mapping[str, Edge]], most: int) -> list[Problem]:
    """Return what is wrong with the edges of a DAG."""
    return [Problem(each.place, each.message) for each in problems(edges, most)]


def _edges_in(plain: object) -> dict[str, dict[str, Edge]]:
    """Return the edges of a document as far as they can be read; the model refuses the others."""
    jobs = cast("Mapping[str, object]", plain).get("jobs") if isinstance(plain, Mapping) else None
    if not isinstance(jobs, Mapping):
        return {}
    return {str(name): _after(job) for name, job in cast("Mapping[str, object]", jobs).items()}


def _after(job: object) -> dict[str, Edge]:
    given = cast("Mapping[str, object]", job).get("after") if isinstance(job, Mapping) else None
    try:
        return _AFTER.validate_python(given or {})
    except ValidationError:
        return {}


def _in_its_folder(dag: DagSpec, file: str) -> DagSpec:
    """Return the DAG with absolute working folders: nodes do not know what ours is."""
    base = Path() if file == "-" else Path(file).parent
    jobs = {
        name: job.model_copy(update={"workdir": str((base / job.workdir).resolve())})
        if job.workdir is not None and not job.workdir.startswith("~")
        else job
        for name, job in dag.jobs.items()
    }
    jobs = {name: _with_table(job, base) for name, job in jobs.items()}
    return dag.model_copy(update={"jobs": jobs})


def _with_table(job: DagJob, base: Path) -> DagJob:
    if job.array is None or job.array.table is None:
        return job
    return job.model_copy(update={"array": with_table(job.spec, base).array})
