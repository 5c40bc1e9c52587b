"""Commands for models that are served."""

from typing import Annotated

import typer
from rich.table import Table

from longshore.client.terminal import JSON, a_table, note, print_json, show
from longshore.models.model_memory import (
    MOST_CONCURRENCY,
    MOST_CONTEXT,
    CacheType,
    ModelMemory,
    Serving,
)
from longshore.models.text import count
from longshore.models.units import format_bytes, format_gb, parse_gb
from longshore.models.visible import shown

_USUAL = Serving()

models_app = typer.Typer(no_args_is_help=True, help="See what models that are served need.")


def register(app: typer.Typer) -> None:
    app.add_typer(models_app, name="models", rich_help_panel="Models")


@models_app.command()
def estimate(
    model: Annotated[
        str, typer.Argument(help="A GGUF file, or one of several: a path, or a URL (https, s3).")
    ],
    context: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=1, max=MOST_CONTEXT,
            show_default=f"{_USUAL.context}, or what the model was trained on",
            help="Tokens of the longest request, with its answer.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MOST_CONCURRENCY, help="Requests at a time.")
    ] = _USUAL.concurrency,
    cache_type: Annotated[
        CacheType, typer.Option(help="The number format of the KV cache.")
    ] = _USUAL.cache_type,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="Tokens of prompts computed at a time.")
    ] = _USUAL.batch,
    overhead: Annotated[
        str, typer.Option(metavar="SIZE", help="What the engine itself takes of its GPU.")
    ] = format_gb(_USUAL.overhead),
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Say how many requests at a time fit on such a GPU."),
    ] = None,
    as_json: JSON = False,
) -> None:  # fmt: skip
    """Say how much GPU memory a model needs, from the header of its file. Needs no stack."""
    from longshore.activities.serving.model_files import read_model
    from longshore.scheduling.serving.memory import estimate as estimated
    from longshore.scheduling.serving.memory import most_requests

    memory = None if gpu_memory is None else _size("--gpu-memory", gpu_memory)
    given = {"context": context} if context is not None else {}
    serving = Serving(
        concurrency=concurrency, cache_type=cache_type, batch=batch,
        overhead=_size("--overhead", overhead), **given,
    )  # fmt: skip
    header = read_model(model)
    trained = header.of_model("context_length")
    if context is None and isinstance(trained, int) and 0 < trained < serving.context:
        serving = serving.model_copy(update={"context": trained})
    found = estimated(header, serving).model_copy(update={"source": model})
    if memory is not None:
        most = most_requests(header, serving, memory)
        found = found.model_copy(update={"gpu_memory": memory, "most_requests": most})
    if as_json:
        return print_json(found)
    show(estimate_table(found))
    if found.most_requests is not None and found.gpu_memory is not None:
        show(_fits(found.most_requests, found.gpu_memory))
    for each in found.notes:
        note(each)
    return None


def _size(option: str, value: str) -> float:
    try:
        return parse_gb(value)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {shown(value)}: {error}") from None


def estimate_table(found: ModelMemory) -> Table:
    """Return a row for each part of the memory."""
    serving = found.serving
    table = a_table(["for", "memory", "what"], right=("memory",), fold=("what",))

    def add(label: str, size: int, what: str) -> None:
        table.add_row(label, format_bytes(size), what)

    types = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in found.tensor_types.items())
    requests = count(serving.concurrency, "request")
    add("weights", found.weights, types if found.files == 1 else f"{found.files} files: {types}")
    if found.cache or not found.state:
        of = f"{requests} of {count(found.cells, 'token')}"
        add("KV cache", found.cache, f"{of}, {serving.cache_type}")
    if found.state:
        add("state", found.state, f"{requests}; of recurrent layers")
    add("compute", found.compute, f"at most; {count(serving.batch, 'token')} at a time")
    add("overhead", found.overhead, "the engine's own, on its GPU (--overhead)")
    name = f"{found.name}, " if found.name else ""
    bound = "" if found.exact else ", at most"
    add("total", found.total, f"{name}{found.architecture}, on one GPU{bound}")
    return table


def _fits(most: int, memory: float) -> str:
    gpu = f"A GPU of {format_gb(memory)}"
    if not most:
        return f"{gpu} has no room for it, not even for one request at a time."
    more = " or more" if most == MOST_CONCURRENCY else ""
    return f"{gpu} has room for {count(most, 'request')}{more} at a time."
