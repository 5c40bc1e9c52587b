"""From an engine and the paths of its files to the arguments that start it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from tempfile import mkdtemp

from longshore.models.addresses import file_name, without_secrets
from longshore.models.data import SEPARATOR, STATE, variable_of
from longshore.models.serving import MODEL, EngineSpec, adapter_data, files_of, is_url
from longshore.models.visible import visible
from longshore.scheduling.serving.memory import padded

SPEC = "LONGSHORE_ENGINE"
"""The engine as JSON, in the environment of its process."""
ADDRESS = "LONGSHORE_ENGINE_ADDRESS"
"""Where the engines of a node listen."""
LOADING = "LONGSHORE_ENGINE_LOADING"
"""The folder of the node with a lock for each GPU, which an engine holds that loads there."""
GPU_MEMORY = "LONGSHORE_GPU_MEMORY"
"""MB of the GPU that has least, in the environment of an engine."""
_LONGEST_WHY = 1_000


def path_of(source: str, name: str, environ: Mapping[str, str]) -> Path:
    """Return where a file or folder is that a model names. Raises ValueError where it was not
    fetched, with why."""
    if not is_url(source):
        return Path(source).expanduser()
    folder = environ.get(variable_of(name))
    if folder is None:
        raise ValueError(f"{without_secrets(source)} was not fetched")
    if why := _why_not(name, environ):
        raise ValueError(f"{without_secrets(source)} could not be fetched: {why}")
    # A data set is a folder, also where it is one file.
    return Path(folder, file_name(source))


def path_of_model(source: str, environ: Mapping[str, str], folder: Path) -> Path:
    """Return where a model is, of several files the first. Those that were fetched each by itself
    get links beside each other, in a new folder below `folder`: engines look for the others there.

    Raises ValueError where a file was not fetched, with why, and OSError.
    """
    files = files_of(source)
    if len(files) == 1 or not is_url(source):
        return path_of(files[MODEL], MODEL, environ)
    places = [path_of(each, name, environ) for name, each in files.items()]
    together = Path(mkdtemp(prefix="model-", dir=folder))
    for place in places:
        (together / place.name).symlink_to(place.absolute())
    return together / places[0].name


def _why_not(name: str, environ: Mapping[str, str]) -> str:
    """Return what the node says of the first file of a data set that it could not have."""
    told = Path(environ.get("LONGSHORE_DATA_DIR", ""), STATE, name, "failed")
    with suppress(OSError), told.open(errors="replace") as lines:
        return visible(lines.readline(_LONGEST_WHY).rstrip("\n").rpartition(SEPARATOR)[2])
    return ""


def arguments(
    spec: EngineSpec, model: Path, port: int, environ: Mapping[str, str]
) -> Sequence[str]:
    """Return the program and its arguments. Raises ValueError where an adapter is not there."""
    values = _values(spec, model, port, environ)
    given = [each.format_map(values) for each in spec.runtime.command]
    if spec.model.adapters:
        given += [each.format_map(values) for each in spec.runtime.with_adapters]
        given += _adapters(spec, values, environ)
    return [*given, *spec.model.args]


def _adapters(
    spec: EngineSpec, values: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[str]:
    for name, source in spec.model.adapters.items():
        path = path_of(source, adapter_data(name), environ)
        own = {**values, "adapter": str(path), "adapter_name": name}
        for each in spec.runtime.adapter:
            yield each.format_map(own)


def _values(
    spec: EngineSpec, model: Path, port: int, environ: Mapping[str, str]
) -> dict[str, str]:
    context, concurrency = spec.model.context or 1, spec.model.concurrency or 1
    gpus = max(int(environ.get("LONGSHORE_GPU_COUNT", "1")), 1)
    return {
        "model": str(model),
        "name": spec.model.name,
        "host": environ.get(ADDRESS, "127.0.0.1"),
        "port": str(port),
        "context": str(context),
        "total_context": str(padded(context) * concurrency),
        "concurrency": str(concurrency),
        "cache_type": spec.model.cache_type,
        "batch": str(spec.model.batch),
        "gpus": str(gpus),
        "tensor_split": ",".join(["1"] * gpus),
        "memory_utilization": _utilization(spec.memory, environ),
    }


def _utilization(memory: int, environ: Mapping[str, str]) -> str:
    """Return the part of a GPU that an engine may use, rounded down: more is not its own."""
    whole = int(environ.get(GPU_MEMORY, "0"))
    if whole <= memory:
        return "1.00"
    return str((Decimal(memory) / whole).quantize(Decimal("0.0001"), ROUND_DOWN))
