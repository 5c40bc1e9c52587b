"""Reading a DAG file, with all that is wrong with it at once."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from longshore.client.array_table import read_table
from longshore.client.code_options import with_folder
from longshore.models.array import MOST_ELEMENTS, ArraySpec
from longshore.models.dag import DagSpec
from longshore.models.dag_edges import After, Edge, Names
from longshore.models.data import job_of
from longshore.models.document import load_document, read_document, read_stdin
from longshore.models.errors import SpecError
from longshore.models.problems import Problem
from longshore.scheduling.arrays import too_many
from longshore.scheduling.dag_inputs import input_problems
from longshore.scheduling.dag_problems import corresponding_problems, problems

_NAMES: TypeAdapter[tuple[str, ...]] = TypeAdapter(Names)
_AFTER: TypeAdapter[dict[str, Edge]] = TypeAdapter(After)


def read_dag(
    file: str,
    most: int,
    text: str | None = None,
    most_elements: int = MOST_ELEMENTS,
    no_upload: bool = False,
) -> DagSpec:
    """Return the DAG in a file, or on stdin for ``-``, with absolute folders; `text` is what
    stdin has said where it was read.

    Raises SpecError with every mistake: those of its jobs, and those of its edges (unknown jobs,
    cycles, more than `most` jobs), and arrays of more than `most_elements`.
    """

    base = Path() if file == "-" else Path(file).parent
    tables: dict[str, ArraySpec] = {}

    def check(plain: object) -> list[Problem]:
        edges, arrays = _edges_in(plain), _arrays_in(plain)
        unread = [name for name, job in _jobs_in(plain).items() if _has_unread_edges(job)]
        found = graph_problems(edges, _inputs_in(plain), _data_in(plain), most, unread)
        found += array_problems(edges, arrays, _mutexes_in(plain))
        for name, array in arrays.items():
            if array is None or array.table is None:
                continue
            try:
                arrays[name] = tables[name] = read_table(array, base)
            except SpecError as error:
                place = DagSpec.written_at(("jobs", name, "array"), plain)
                found += (Problem(place, each) for each in error.problems)
        return found + [
            Problem(DagSpec.written_at(("jobs", name, "array"), plain), why)
            for name, array in arrays.items()
            if array is not None and (why := too_many(array, most_elements))
        ]

    if file == "-":
        said = read_stdin() if text is None else text
        dag = load_document(said, "stdin", DagSpec, check=check)
    else:
        dag = read_document(file, DagSpec, check=check)
    return _in_its_folder(dag, base, tables, no_upload=no_upload)


def graph_problems(
    edges: Mapping[str, Mapping[str, Edge]],
    inputs: Mapping[str, Collection[str]],
    data: Mapping[str, Mapping[str, str]],
    most: int,
    unread: Collection[str] = (),
) -> list[Problem]:
    """Return what is wrong with the edges of a DAG, and with the outputs that its jobs ask for;
    `unread` are jobs some of whose edges cannot be read."""
    found = (*problems(edges, most), *input_problems(edges, inputs, data, unread))
    return [Problem(each.place, each.message) for each in found]


def array_problems(
    edges: Mapping[str, Mapping[str, Edge]],
    arrays: Collection[str],
    mutexes: Mapping[str, Collection[str]],
) -> list[Problem]:
    """Return what is wrong with the edges of a DAG from element to element."""
    found = corresponding_problems(edges, arrays, mutexes)
    return [Problem(each.place, each.message) for each in found]


def _jobs_in(plain: object) -> dict[str, object]:
    jobs = cast("Mapping[str, object]", plain).get("jobs") if isinstance(plain, Mapping) else None
    if not isinstance(jobs, Mapping):
        return {}
    return {str(name): job for name, job in cast("Mapping[object, object]", jobs).items()}


def _edges_in(plain: object) -> dict[str, dict[str, Edge]]:
    """Return the edges of a document as far as they can be read; the model refuses the others."""
    return {name: _after(job) for name, job in _jobs_in(plain).items()}


def _inputs_in(plain: object) -> dict[str, tuple[str, ...]]:
    """Return whose outputs jobs ask for, as far as that can be read."""
    return {name: _inputs(job) for name, job in _jobs_in(plain).items()}


def _data_in(plain: object) -> dict[str, dict[str, str]]:
    """Return whose files jobs ask for as data, as far as that can be read."""
    shared = _field(_field(plain, "defaults"), "data")
    return {name: _files(_field(job, "data", shared)) for name, job in _jobs_in(plain).items()}


def _files(data: object) -> dict[str, str]:
    given = cast("Mapping[object, object]", data) if isinstance(data, Mapping) else {}
    found: dict[str, str] = {}
    for name, each in given.items():
        source = _field(each, "from", each)
        if isinstance(source, str) and (job := job_of(source)):
            found[str(name)] = job
    return found


def _arrays_in(plain: object) -> dict[str, ArraySpec | None]:
    """Return the jobs that are arrays, themselves or as all are; None for one that cannot be
    read."""
    shared = _field(_field(plain, "defaults"), "array")
    found: dict[str, ArraySpec | None] = {}
    for name, job in _jobs_in(plain).items():
        given = _field(job, "array", shared)
        if given is not None:
            found[name] = None
            with suppress(ValidationError):
                found[name] = ArraySpec.model_validate(given)
    return found


def _mutexes_in(plain: object) -> dict[str, tuple[str, ...]]:
    """Return the jobs that ask for a mutex, under either name."""
    shared = _field(plain, "defaults")
    found: dict[str, tuple[str, ...]] = {}
    for name, job in _jobs_in(plain).items():
        asked = [_field(job, word, _field(shared, word)) for word in ("mutex", "singleton")]
        found[name] = ("mutex",) if any(asked) else ()
    return found


def _field(value: object, name: str, otherwise: object = None) -> object:
    given = cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
    return given.get(name, otherwise)


def _inputs(job: object) -> tuple[str, ...]:
    given = cast("Mapping[str, object]", job).get("inputs") if isinstance(job, Mapping) else None
    try:
        return _NAMES.validate_python(given or ())
    except ValidationError:
        return ()


def _has_unread_edges(job: object) -> bool:
    given = cast("Mapping[str, object]", job).get("after") if isinstance(job, Mapping) else None
    try:
        _AFTER.validate_python(given or {})
    except ValidationError:
        return True
    return False


def _after(job: object) -> dict[str, Edge]:
    given = cast("Mapping[str, object]", job).get("after") if isinstance(job, Mapping) else None
    try:
        return _AFTER.validate_python(given or {})
    except ValidationError:
        found: dict[str, Edge] = {}
        for name, edge in given.items() if isinstance(given, Mapping) else ():
            with suppress(ValidationError):
                found |= _AFTER.validate_python({name: edge})
        return found


def _in_its_folder(
    dag: DagSpec, base: Path, tables: Mapping[str, ArraySpec], *, no_upload: bool
) -> DagSpec:
    """Return the DAG with the folders that its jobs name as absolute ones, and with the tables of
    its arrays: nodes do not know what is ours."""
    jobs = {
        name: with_folder(
            job,
            no_upload=no_upload,
            workdir_base=base,
            code_base=base,
            source=f"dag {dag.name}: jobs.{name}",
        )
        for name, job in dag.jobs.items()
    }
    jobs |= {name: jobs[name].model_copy(update={"array": read}) for name, read in tables.items()}
    return dag.model_copy(update={"jobs": jobs})
