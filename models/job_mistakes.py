"""What is wrong between the fields of a job, each at the field where it is to be mended."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from longshore.models.mistakes import Mistake
from longshore.models.serving import MODEL, EngineSpec, fetched
from longshore.models.visible import brief

if TYPE_CHECKING:
    from longshore.models.job import JobSpec

_NOT_OF_ELEMENTS = {
    "outputs": "outputs: they share a folder; let each write into a store, or submit a job for "
    "each",
    "gang": "a gang: each runs on one node; submit a job for each",
    "image": "an image: let the command start the container, or submit a job for each",
    "checkpoint": "a checkpoint contract: one that is stopped starts from the beginning; leave "
    "it out, or submit a job for each",
    "malleable": "malleable: each runs on exactly `gpus`, and is stopped, not resized; leave it "
    "out, or submit a job for each",
}  # fmt: skip
_NOT_OF_ENGINES = (
    "command", "image", "array", "gang", "malleable", "checkpoint", "code", "environment",
    "outputs",
)  # fmt: skip
_FIELDS_OF_GPUS = tuple(
    (field,) for field in ("gpus", "gang", "malleable", "milli", "mig", "vram_per_gpu")
)


def leads_out(path: str) -> bool:
    """Whether a path leads out of the folder that it starts from."""
    return path.startswith(("/", "~")) or ".." in path.split("/")


def mistakes_of(spec: "JobSpec", gpus: int | None, *, taken: bool) -> Iterator[Mistake]:
    """Yield what is wrong between the fields of a job, of which so many `gpus` are given.

    With `taken` of one that was taken already, by whichever version: it goes on with what was
    allowed then.
    """
    if spec.engine is not None:
        yield from _of_engine(spec, spec.engine)
    elif spec.command is None and spec.image is None:
        why = "give a command to run, an image, or both"
        yield Mistake((), why, (("command",), ("image",)))
    if spec.array is not None:
        yield from _of_elements(spec, taken=taken)
    yield from _of_code(spec)
    if spec.sensitive:
        yield from _of_sensitive(spec)
    if spec.deadline is not None and not taken and (why := spec.why_in_vain()):
        others = (("begin",), ("expected_duration",), ("max_duration",))
        yield Mistake(("deadline",), why, others)
    yield from _of_gpus(spec, gpus)


def _of_elements(spec: "JobSpec", *, taken: bool) -> Iterator[Mistake]:
    for field, why in _NOT_OF_ELEMENTS.items():
        # One that was taken once goes on.
        if getattr(spec, field) and not (field == "malleable" and taken):
            yield Mistake(("array",), f"elements cannot have {why}", ((field,),))


def _of_engine(spec: "JobSpec", engine: EngineSpec) -> Iterator[Mistake]:
    """Yield what an engine cannot have beside it, and what of its model nobody fetches."""
    for field in _NOT_OF_ENGINES:
        if getattr(spec, field):
            why = "is what runs, and the job says so twice: leave one out"
            if field not in ("command", "image"):
                why = f"cannot have {field}: it serves until it is stopped"
            yield Mistake(("engine",), why, ((field,),))
    for name, source in fetched(engine.model).items():
        if name not in spec.data and name.startswith(f"{MODEL}-"):
            continue  # a job of a version that knew one file alone: its engine says what it lacks
        if name not in spec.data or spec.data[name].source != source:
            why = f"needs its files: give data.{name} with `from: {source}`"
            yield Mistake(("engine",), why, (("data",),))


def _of_code(spec: "JobSpec") -> Iterator[Mistake]:
    if spec.code is not None and spec.workdir is not None and leads_out(spec.workdir):
        yield Mistake(
            ("workdir",),
            "has to stay in the code that the job brings: a folder below it, such as `src`",
            (("code",),),
        )
    if spec.environment is None:
        return
    if spec.image is not None:
        why = "is of a command on the node: an image brings its own packages; leave one out"
        yield Mistake(("environment",), why, (("image",),))
    # A relative workdir is stored as the code, by the submit.
    brings = spec.code is not None or not leads_out(spec.workdir or "/")
    if not brings and (paths := spec.environment.paths):
        why = f"{brief(paths[0])} is looked for in the code of the job: give `code` too"
        yield Mistake(("environment",), why, (("code",), ("workdir",)))
    if not brings and spec.environment.current:
        why = "`current` comes along with the code of the job: give `code` too"
        yield Mistake(("environment",), why, (("code",), ("workdir",)))


def _of_sensitive(spec: "JobSpec") -> Iterator[Mistake]:
    """Yield what cannot hold its nodes alone."""
    if not spec.gpu.whole:
        what = "milli" if spec.mig is None else "mig"
        why = (
            f"holds its nodes alone, but the job asks for parts of GPUs ({what}): leave "
            f"out {what}, or sensitive"
        )
        yield Mistake(("sensitive",), why, ((what,),))
    if spec.malleable is not None:
        why = (
            "holds its nodes whole, so other jobs have nothing of a smaller size: leave out "
            "malleable, or sensitive"
        )
        yield Mistake(("sensitive",), why, (("malleable",),))
    if spec.gang is not None and spec.gang.lend_spares:
        why = (
            "holds its nodes alone, so it lends no spare there: leave out gang.lend_spares, "
            "or sensitive"
        )
        yield Mistake(("sensitive",), why, (("gang",),))


def _of_gpus(spec: "JobSpec", given: int | None) -> tuple[Mistake, ...]:
    sizes = spec.malleable
    saves = spec.checkpoint is not None and spec.checkpoint.can_be_asked
    if sizes is not None and (
        found := sizes.mistakes(given, spec.gang, whole=spec.gpu.whole, saves=saves)
    ):
        return found
    try:
        spec.gpu.check(spec.gang)
    except ValueError as error:
        # It begins with its field: `milli is 500, ...`.
        field, _, why = str(error).partition(" ")
        return (Mistake(tuple(field.split(".")), why, _FIELDS_OF_GPUS),)
    return ()
