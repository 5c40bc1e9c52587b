"""On how many GPUs of a node an engine may run, with how much memory of each. Pure.

What it has of each of its GPUs is the same: a lease is refused GPU by GPU, and a job asks for as
much of each.
"""

from collections.abc import Iterator

from longshore.models.model_memory import ModelMemory
from longshore.models.model_registry import ModelFacts
from longshore.models.serving import EngineSize, ModelSpec, Split
from longshore.scheduling.serving.splits import sizes

_MB = 1_000_000
_COPIES = 4


def engine_sizes(
    model: ModelSpec, facts: ModelFacts | None, split: Split, total: int
) -> tuple[EngineSize, ...]:
    """Return the sizes of an engine that needs `total` bytes on one GPU, the fewest GPUs first.

    More GPUs that leave no less on each are left out; so are all but the number that the model
    states.
    """
    if model.gpus is not None:
        return (EngineSize(gpus=model.gpus, memory=_on_each(model, facts, split, total)),)
    return tuple(_smaller_and_smaller(model, facts, split, total))


def _smaller_and_smaller(
    model: ModelSpec, facts: ModelFacts | None, split: Split, total: int
) -> Iterator[EngineSize]:
    heads, key_heads = (facts.heads, facts.key_heads) if facts else (0, 0)
    least: int | None = None
    for gpus in sizes(heads, key_heads, split):
        if split is Split.LAYERS and facts is not None and 0 < facts.layers < gpus:
            return
        of_size = model.model_copy(update={"gpus": gpus})
        memory = _on_each(of_size, facts, split, total)
        if least is None or memory < least:
            yield EngineSize(gpus=gpus, memory=memory)
            least = memory


def _on_each(model: ModelSpec, facts: ModelFacts | None, split: Split, total: int) -> int:
    """Return the MB on each GPU, rounded up."""
    gpus = model.gpus or 1
    if gpus == 1:
        each = total
    elif model.memory is not None or facts is None:
        # Each GPU has the engine's own part, whatever it has of the model.
        own = min(round(model.overhead * 1e9), total)
        each = max(_of_stated(total, gpus, facts if split is Split.LAYERS else None), own)
    elif split is Split.LAYERS and facts.memory.largest_layer:
        each = _of_layers(facts.memory, gpus)
    elif split is Split.HEADS:
        each = _of_heads(facts, gpus)
    else:
        each = _part(total - facts.memory.overhead, gpus) + facts.memory.overhead
    return max(_part(each, _MB), 1)


def _of_layers(memory: ModelMemory, gpus: int) -> int:
    """Return the bytes of the GPU with the most.

    llama.cpp counts the output as one layer more, and gives each GPU as many of these, rounded up
    (src/llama-model.cpp, `load_tensors`, and `tensor_split`). The last has the output; what is in
    no layer is counted on each. Several GPUs work on several batches at a time, with copies of
    what goes in (ggml/src/ggml-backend.cpp, GGML_SCHED_MAX_COPIES).
    """
    compute = memory.compute * _COPIES
    beside = memory.overhead + compute + memory.adapters + memory.outside
    return beside + _most_layers(memory.layers, gpus) * memory.largest_layer


def _most_layers(layers: int, gpus: int) -> int:
    """Return how many layers the GPU with the most has."""
    return min(_part(layers + 1, gpus), layers)


def _of_stated(total: int, gpus: int, facts: ModelFacts | None) -> int:
    """Return the bytes of the GPU with the most of what a model states: of its layers, with what
    is in none, as far as its files say; `facts` are None where its runtime splits no layers."""
    layers = facts.layers if facts else 0
    if facts is None or not layers:
        return _part(total, gpus)
    each = facts.memory.largest_layer or 1
    most, whole = _most_layers(layers, gpus) * each, layers * each
    beside = facts.memory.outside
    return _part(total * (beside + most), beside + whole)


def _of_heads(facts: ModelFacts, gpus: int) -> int:
    """Return the bytes of each GPU. A KV head is on several where there are fewer than GPUs."""
    memory = facts.memory
    rows = min(gpus, facts.key_heads) if facts.key_heads else gpus
    divided = _part(memory.weights + memory.state, gpus) + _part(memory.cache, rows)
    return divided + memory.compute + memory.adapters + memory.overhead


def _part(amount: int, of: int) -> int:
    return -(-amount // of)
