"""Reading files of models and of runtimes: one, or several: below `models` or `runtimes`, or each
a YAML document."""

from pathlib import Path

from longshore.client.several_documents import Several
from longshore.models.model_registry import ModelsDocument, RuntimesDocument
from longshore.models.serving import ModelSpec, Runtime, is_url

_ALREADY = "is in this file already"
_MODELS = Several(
    ModelSpec, ModelsDocument, list="models", key="name",
    each_of=lambda file: file.models, already=_ALREADY,
)  # fmt: skip
_RUNTIMES = Several(
    Runtime, RuntimesDocument, list="runtimes", key="name",
    each_of=lambda file: file.runtimes, already=_ALREADY,
)  # fmt: skip


def as_path(source: str) -> str:
    """Return a source that an option names: a file that is here, and is named without a folder,
    with ``./``, as models have it."""
    plain = not source.startswith(("/", "~", "./", "../")) and not is_url(source)
    return f"./{source}" if plain and Path(source).exists() else source


def read_models(file: str) -> tuple[ModelSpec, ...]:
    """Return the models in a file, or on stdin for ``-``.

    Paths that begin with ./ are seen from the file. Raises SpecError with every mistake at once.
    """
    folder = Path() if file == "-" else Path(file).parent
    return tuple(each.seen_from(folder) for each in _MODELS.read(file))


def read_runtimes(file: str) -> tuple[Runtime, ...]:
    """Return the runtimes in a file; likewise."""
    return _RUNTIMES.read(file)
