"""Commands for models that are served."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from longshore.client.calls import call
from longshore.client.model_view import (
    change_line,
    estimate_table,
    fits_line,
    model_rows,
    models_table,
    runtime_rows,
    runtimes_table,
    sizes_table,
)
from longshore.client.terminal import JSON, note, print_json, say, show, warn
from longshore.models.addresses import without_secrets
from longshore.models.document import Override, load_document
from longshore.models.errors import SpecError, UnsatisfiableError
from longshore.models.model_memory import MOST_CONCURRENCY, MOST_CONTEXT, CacheType, Serving
from longshore.models.serving import LLAMA_CPP, ModelSpec
from longshore.models.units import format_gb, parse_gb
from longshore.models.visible import brief, shown

_USUAL = Serving()

models_app = typer.Typer(
    no_args_is_help=True, help="Models that are served: what each is, and what it needs."
)
runtimes_app = typer.Typer(
    invoke_without_command=True, help="The programs that serve models: llama.cpp, vLLM and others."
)
_PANEL = "Models"

NAME = Annotated[str, typer.Argument(metavar="NAME", help="The model.")]
RUNTIME = Annotated[str, typer.Argument(metavar="NAME", help="The runtime.")]
DRY_RUN = Annotated[
    bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(models_app, name="models", rich_help_panel=_PANEL)
    app.add_typer(runtimes_app, name="runtimes", rich_help_panel=_PANEL)


@models_app.command("add")
def add(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A file of models (YAML or JSON; - reads stdin); with --source a name.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            help="Its GGUF file, or its folder: a path that nodes have, or a URL (https, s3).",
        ),
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=LLAMA_CPP, help="What serves it.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Of the longest request, with its answer."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Requests at a time.")
    ] = None,
    cache_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The number format of the KV cache.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="GPU memory in all, where no header says it. A number alone is GB.",
        ),
    ] = None,
    overhead: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            show_default=format_gb(_USUAL.overhead),
            help="What the engine itself takes of each of its GPUs.",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="GPUs of one node per engine.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="SHA-256 of its file.")
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SOURCE", help="A LoRA adapter. Repeatable."),
    ] = None,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Never evicted for another model.")
    ] = False,
    prewarm: Annotated[
        bool, typer.Option("--prewarm", help="Loaded before anybody asks, where there is room.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read a file behind a URL for its digest also where it has over 256 MB.",
        ),
    ] = False,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Store models, in place of those of the same name. The headers of their files are read."""
    from longshore.client.code_options import progress
    from longshore.client.model_file import as_path, read_models

    options = {
        "source": source and as_path(source), "runtime": runtime, "context": context,
        "concurrency": concurrency, "cache_type": cache_type, "memory": memory,
        "overhead": overhead, "gpus": gpus, "sha256": sha256,
        "pinned": "true" if pinned else None, "prewarm": "true" if prewarm else None,
    }  # fmt: skip
    given = [*_overrides(options), *_adapters(adapter or [])]
    if source is None and given:
        raise typer.BadParameter(
            f"{given[0].given_by}: give --source too, for a model that has the name "
            f"{shown(file)}; of models in a file the file says it"
        )
    models = (_model(file, given),) if source is not None else read_models(file)
    with progress(as_json, "Reading files") as told:
        edit = call(lambda api: api.add_models(models, verify=verify, dry_run=dry_run, told=told))
    if as_json:
        return print_json(edit)
    for each in edit.warnings:
        warn(each)
    for change in edit.changes:
        say(change_line("model", change, dry_run=dry_run))
    if not edit.changes:
        return say("Nothing would change." if dry_run else "Nothing is changed.")
    show(models_table(edit.models))
    return note("Nothing is changed: it was a dry run.") if dry_run else None


def _model(name: str, given: Sequence[Override]) -> ModelSpec:
    """Return the model that options describe. Raises SpecError."""
    source = f"model {shown(name)}"
    try:
        return load_document(json.dumps({"name": name}), source, ModelSpec, given)
    except SpecError as error:  # there is no file whose lines would help
        problems = (each.replace(f"{source}:1: ", f"{source}: ", 1) for each in error.problems)
        raise SpecError(source, tuple(problems)) from None


def _overrides(options: dict[str, str | None]) -> list[Override]:
    return [
        Override(field, json.dumps(value) if field in _TEXTS else value,
                 f"--{field.replace('_', '-')} {without_secrets(value)}")
        for field, value in options.items()
        if value is not None
    ]  # fmt: skip


_TEXTS = frozenset({"source", "runtime", "cache_type", "memory", "overhead", "sha256"})


def _adapters(texts: list[str]) -> list[Override]:
    from longshore.client.model_file import as_path

    found: list[Override] = []
    names: set[str] = set()
    for text in texts:
        name, equals, source = text.partition("=")
        if not (name and equals and source):
            raise typer.BadParameter(
                f"--adapter {brief(text)}: give NAME=SOURCE, as in formal=/models/formal.gguf"
            )
        if name in names:
            raise typer.BadParameter(
                f"--adapter {brief(text)}: {shown(name)} is given already: each has a name of its "
                "own"
            )
        names.add(name)
        given = f"--adapter {without_secrets(text)}"
        found.append(Override("adapters", json.dumps(as_path(source)), given, ("adapters", name)))
    return found


@models_app.command("list")
def list_(as_json: JSON = False) -> None:
    """List the models, with the GPU memory that each needs."""
    found = call(lambda api: api.models())
    if as_json:
        return print_json(found)
    if not found:
        return note("No models yet. `longshore models add FILE` stores some.")
    show(models_table(found))
    for trouble in filter(None, (each.trouble for each in found)):
        warn(trouble)
    return None


@models_app.command("show")
def show_(name: NAME, as_json: JSON = False) -> None:
    """Show all of a model: what was said of it, what its files say, who changed it when, and on
    how many GPUs of which nodes it has room now."""
    found = call(lambda api: api.model(name))
    if as_json:
        return print_json(found)
    show(model_rows(found))
    if found.facts is not None:
        show(estimate_table(found.facts.memory))
        if found.spec.memory is not None:
            more = ", or what one was seen to take, where that is more," if found.seen else ""
            note(f"Its engines hold the {format_gb(found.spec.memory)} that it states{more} and "
                 "not this, which its files say.")  # fmt: skip
        for each in found.facts.memory.notes:
            note(each)
    if found.sizes:
        show(sizes_table(found))
    return None


@models_app.command("rm")
def rm(name: NAME, as_json: JSON = False) -> None:
    """Remove a model that nothing uses. Its files stay where they are."""
    gone = call(lambda api: api.remove_model(name))
    return print_json(gone) if as_json else say(f"model {name} is removed")


@runtimes_app.callback()
def runtimes(context: typer.Context, as_json: JSON = False) -> None:
    """List the programs that serve models, with how many models each serves."""
    if context.invoked_subcommand is not None:
        return None
    found = call(lambda api: api.runtimes())
    if as_json:
        return print_json(found)
    show(runtimes_table(found))
    for trouble in filter(None, (each.trouble for each in found)):
        warn(trouble)
    return None


@runtimes_app.command("add")
def add_runtimes(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A file of runtimes (YAML or JSON); - reads stdin."),
    ],
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Store runtimes, in place of those of the same name; those that are built in stay."""
    from longshore.client.model_file import read_runtimes

    given = read_runtimes(file)
    edit = call(lambda api: api.add_runtimes(given, dry_run=dry_run))
    if as_json:
        return print_json(edit)
    for change in edit.changes:
        say(change_line("runtime", change, dry_run=dry_run))
    if not edit.changes:
        return say("Nothing would change." if dry_run else "Nothing is changed.")
    return note("Nothing is changed: it was a dry run.") if dry_run else None


@runtimes_app.command("show")
def show_runtime(name: RUNTIME, as_json: JSON = False) -> None:
    """Show all of a runtime."""
    found = call(lambda api: api.runtime(name))
    return print_json(found) if as_json else show(runtime_rows(found))


@runtimes_app.command("rm")
def rm_runtime(name: RUNTIME, as_json: JSON = False) -> None:
    """Remove a runtime that no model has."""
    gone = call(lambda api: api.remove_runtime(name))
    return print_json(gone) if as_json else say(f"runtime {name} is removed")


@models_app.command()
def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help="A GGUF file, or one of several, or a safetensors file or a folder of them: a "
            "path, or a URL (https, s3)."
        ),
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
    """Say how much GPU memory a model needs, from the headers of its files. Needs no stack."""
    from longshore.activities.serving.model_facts import read_files
    from longshore.scheduling.serving.memory import most_that_fit

    memory = None if gpu_memory is None else _size("--gpu-memory", gpu_memory)
    if memory is not None and memory <= 0:
        raise typer.BadParameter(f"--gpu-memory {shown(gpu_memory)}: must be above 0")
    given = {"context": context} if context is not None else {}
    serving = Serving(
        concurrency=concurrency, cache_type=cache_type, batch=batch,
        overhead=_size("--overhead", overhead), **given,
    )  # fmt: skip
    read = read_files(model)
    serving = read.served(serving, context_is_said=context is not None)
    try:
        found = read.needs(serving)
        if memory is not None:
            most = most_that_fit(read.needs, serving, memory, read.most_requests)
            found = found.model_copy(update={"gpu_memory": memory, "most_requests": most})
    except UnsatisfiableError as error:
        raise SpecError(model, (str(error),)) from error
    if as_json:
        return print_json(found)
    show(estimate_table(found))
    if found.most_requests is not None and found.gpu_memory is not None:
        show(fits_line(found.most_requests, found.gpu_memory, read.most_requests))
    for each in found.notes:
        note(each)
    return None


def _size(option: str, value: str) -> float:
    try:
        return parse_gb(value)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {shown(value)}: {error}") from None
