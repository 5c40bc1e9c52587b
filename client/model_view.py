"""How models, runtimes, and what they need look."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table

from longshore.client.terminal import a_table, pairs
from longshore.models.model_memory import ModelMemory, Serving
from longshore.models.model_registry import ModelView, RegistryChange, RuntimeView
from longshore.models.serving import MemoryRule
from longshore.models.text import NONE, count, format_duration, listed
from longshore.models.units import format_bytes, format_gb

_NODES_NAMED = 4
_RULES = {MemoryRule.HEADER: "by the header of its file", MemoryRule.STATED: "as the model states"}


def models_table(models: Sequence[ModelView]) -> Table:
    """Return a row for each model."""
    table = a_table(
        ["model", "runtime", "memory", "context", "requests", "revision", "source"],
        right=("memory", "context", "requests", "revision"),
        fold=("source",),
    )
    for each in models:
        spec = each.spec
        if each.trouble:
            table.add_row(spec.name, spec.runtime, NONE, NONE, NONE, str(each.revision), NONE)
            continue
        table.add_row(
            spec.name, spec.runtime, format_bytes(each.memory), f"{spec.context or 0:,}",
            f"{spec.concurrency or 0:,}", str(each.revision), spec.source,
        )  # fmt: skip
    return table


def model_rows(model: ModelView) -> Table:
    """Return all that is stored of a model, but for the parts of its memory."""
    return pairs(_of_model(model))


def _of_model(model: ModelView) -> Iterator[tuple[str, str]]:
    spec, facts = model.spec, model.facts
    yield "model", spec.name
    yield "source", spec.source
    if spec.sha256:
        yield "sha256", spec.sha256
    yield "runtime", spec.runtime
    if facts:
        parts = [facts.memory.architecture]
        parts += [count(facts.layers, "layer")] if facts.layers else []
        if facts.heads:
            parts.append(f"{count(facts.heads, 'attention head')}, {facts.key_heads} of KV")
        parts += [f"trained on {count(facts.context, 'token')}"] if facts.context else []
        yield "says", ", ".join(parts)
    else:
        yield "says", "its files were not read"
    yield "context", count(spec.context or 0, "token")
    yield "at a time", count(spec.concurrency or 0, "request")
    for label, field in (("cache type", "cache_type"), ("batch", "batch")):
        if (value := getattr(spec, field)) != type(spec).model_fields[field].default:
            yield label, f"{value:,}" if isinstance(value, int) else value
    if spec.overhead != Serving().overhead:
        yield "overhead", f"{format_gb(spec.overhead)} of each GPU"
    stated = "stated" if spec.memory is not None else "by its header"
    yield "GPU memory", f"{format_bytes(model.memory)}, {stated}"
    if model.seen:
        yield "engines took", f"{format_bytes(model.seen)} at most"
    if spec.gpus:
        yield "on", count(spec.gpus, "GPU")
    for name, source in spec.adapters.items():
        yield "adapter", f"{name}: {source}"
    if spec.args:
        yield "arguments", " ".join(spec.args)
    kept = [name for name in ("pinned", "prewarm") if getattr(spec, name)]
    if kept:
        yield "kept", ", ".join(kept)
    yield "start limit", format_duration(spec.start_limit)
    yield "revision", _revision(model.revision, model.changed_by, model.changed_at)


def _revision(number: int, by: str, at: datetime) -> str:
    who = f" by {by}" if by else ""
    return f"{number}, {at:%Y-%m-%dT%H:%M:%SZ}{who}"


def sizes_table(model: ModelView) -> Table:
    """Return a row for each number of GPUs on which an engine may run, with where it has room;
    without those of more GPUs than any node that takes work could give."""
    table = a_table(
        ["GPUs", "memory of each", "has room now on", "has room only when empty on"],
        right=("GPUs", "memory of each"), fold=("has room now on", "has room only when empty on"),
    )  # fmt: skip
    held = [each for each in model.sizes if each.nodes or each.when_empty]
    for each in held or model.sizes[:1]:
        table.add_row(
            str(each.gpus), format_gb(each.memory / 1000), _nodes(each.nodes),
            _nodes(each.when_empty),
        )  # fmt: skip
    return table


def _nodes(ids: Sequence[str]) -> str:
    return listed(ids, _NODES_NAMED) if ids else NONE


def runtimes_table(runtimes: Sequence[RuntimeView]) -> Table:
    """Return a row for each runtime."""
    table = a_table(
        ["runtime", "memory", "GPUs", "models", "from", "command"],
        right=("models",),
        fold=("command",),
    )
    for each in runtimes:
        runtime = each.runtime
        if each.trouble:
            table.add_row(runtime.name, NONE, NONE, f"{each.models:,}", NONE, NONE)
            continue
        table.add_row(
            runtime.name, runtime.memory, runtime.split, f"{each.models:,}",
            "built in" if each.built_in else each.changed_by or "added",
            _in_short(runtime.command),
        )  # fmt: skip
    return table


def _in_short(command: Sequence[str]) -> str:
    """Return a command in a line; of a script its first words say nothing."""
    return " ".join("..." if "\n" in part else part for part in command)


def runtime_rows(view: RuntimeView) -> Table:
    """Return all of a runtime."""
    return pairs(_of_runtime(view))


def _of_runtime(view: RuntimeView) -> Iterator[tuple[str, str]]:
    runtime = view.runtime
    yield "runtime", runtime.name
    yield "command", " ".join(runtime.command)
    if runtime.with_adapters:
        yield "with adapters", " ".join(runtime.with_adapters)
    yield "each adapter", " ".join(runtime.adapter) or "takes none"
    yield "memory", _RULES[runtime.memory]
    yield "GPUs", {"none": "one", "heads": "by heads", "layers": "by layers"}[runtime.split]
    yield "at a time", f"{count(runtime.concurrency, 'request')}, unless a model says it"
    yield "models", f"{view.models:,}"
    if view.built_in or view.changed_at is None:
        yield "from", "built in"
        return
    yield "revision", _revision(view.revision, view.changed_by, view.changed_at)


def change_line(what: str, change: RegistryChange, *, dry_run: bool = False) -> str:
    """Return ``model tiny is changed: context 2048 to 4096 (revision 2)``."""
    fields = f": {'; '.join(change.fields)}" if change.fields else ""
    would = "would: " if dry_run else ""
    return f"{would}{what} {change.name} is {change.edit}{fields} (revision {change.revision})"


def estimate_table(found: ModelMemory) -> Table:
    """Return a row for each part of the memory."""
    serving = found.serving
    table = a_table(["for", "memory", "what"], right=("memory",), fold=("what",))

    def add(label: str, size: int, what: str) -> None:
        table.add_row(label, format_bytes(size), what)

    types = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in found.tensor_types.items())
    requests = count(serving.concurrency, "request")
    add(
        "weights",
        found.weights,
        types if found.files == 1 else f"{count(found.files, 'file')}: {types}",
    )
    if found.adapters:
        add("adapters", found.adapters, "LoRA")
    if found.cache or not found.state:
        of = f"{requests} of {count(found.cells, 'token')}"
        add("KV cache", found.cache, f"{of}, {serving.cache_type}")
    if found.state:
        add("state", found.state, f"{requests}; of recurrent layers")
    at_a_time = "" if found.is_proposal else f"; {count(serving.batch, 'token')} at a time"
    add("compute", found.compute, f"at most{at_a_time}")
    add("overhead", found.overhead, "the engine's own, on its GPU (--overhead)")
    name = f"{found.name}, " if found.name else ""
    bound = ", a proposal" if found.is_proposal else "" if found.exact else ", at most"
    add("total", found.total, f"{name}{found.architecture}, on one GPU{bound}")
    return table


def fits_line(most: int, memory: float, highest: int) -> str:
    """Return how many requests at a time fit on a GPU of so many GB; `highest` are the most that
    can be asked for."""
    gpu = f"A GPU of {format_gb(memory)}"
    if not most:
        return f"{gpu} has no room for it, not even for one request at a time."
    end = "; no more can be asked for." if most == highest else "."
    return f"{gpu} has room for {count(most, 'request')} at a time{end}"
