"""How much memory of a GPU llama.cpp needs for a model, from the header of its file.

Weights, KV cache and state are what the engine itself allocates (tests/serving compares them with
its log), for the architectures that `shapes` lists. For others each layer is taken to keep all
that any layer can: never too little. Compute buffers are an upper bound.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import TENSOR_TYPES, GGUFHeader
from longshore.models.model_memory import CacheType, ModelMemory, Serving
from longshore.models.text import count
from longshore.scheduling.serving.header_checks import (
    OF_LAYER,
    check_alike,
    check_keys,
    check_layers,
    check_norms,
    check_rotation,
    check_tensors,
)
from longshore.scheduling.serving.header_sizes import named, per_layer
from longshore.scheduling.serving.shapes import KNOWN, LATENT, Shape, shape_of

_PAD = 256
"""A cache has a multiple of so many cells."""
_CACHE_BLOCKS = {
    CacheType(name.lower()): (block, size)
    for name, block, size in TENSOR_TYPES.values()
    if name.lower() in set(CacheType)
}
"""Numbers in a block, and its bytes."""
_FLOAT = 4
MOST_REQUESTS = 256
"""At a time: of one context of llama.cpp (LLAMA_MAX_SEQ in its src/llama-cparams.h)."""
_FIXED = 2 * 2**20
"""Bytes of compute buffers that depend on nothing."""


def estimate(header: GGUFHeader, serving: Serving) -> ModelMemory:
    """Return what one GPU must have for a model.

    Raises UnsatisfiableError, with the key that is missing or wrong, where the header does not
    say how large the model is, where its tensors say otherwise, or where it cannot be served so.
    """
    if serving.concurrency > MOST_REQUESTS:
        raise UnsatisfiableError(
            f"concurrency is {serving.concurrency:,}: llama.cpp serves at most {MOST_REQUESTS} "
            "requests at a time; a service may have more replicas",
            field="concurrency",
        )
    shape = shape_of(header)
    types, of_layers = Counter[str](), Counter[int]()
    for tensor in header.tensors:
        types[TENSOR_TYPES[tensor.type][0]] += tensor.size
        if (found := OF_LAYER.match(tensor.name)) is not None:
            of_layers[int(found[1])] += tensor.size
    check_keys(shape)
    check_layers(shape, of_layers)
    check_alike(shape)
    check_tensors(shape)
    check_norms(shape)
    check_rotation(shape)
    caches = [
        _cells_of(shape, layer, serving) * _row(shape, layer, serving.cache_type)
        for layer in range(shape.layers)
    ]
    state = sum(_state(shape)) * shape.layers * serving.concurrency
    largest = max(
        of_layers[layer] + cache * serving.concurrency for layer, cache in enumerate(caches)
    )
    parts = {
        "weights": types.total(),
        "cache": sum(caches) * serving.concurrency,
        "state": state,
        "compute": _compute(shape, serving),
        "overhead": round(serving.overhead * 1e9),
    }
    return ModelMemory(
        source=header.files[0] if header.files else "",
        name=header.name,
        architecture=header.architecture,
        serving=serving,
        files=max(len(header.files), 1),
        tensor_types=dict(types.most_common()),
        cells=padded(serving.context),
        total=sum(parts.values()),
        layers=shape.layers,
        largest_layer=largest + -(-state // shape.layers),
        outside=types.total() - of_layers.total(),
        exact=header.architecture in KNOWN,
        is_proposal=False,
        notes=tuple(_notes(shape, serving)),
        **parts,
    )


def most_that_fit(
    needs: Callable[[Serving], ModelMemory], serving: Serving, memory: float, most: int
) -> int:
    """Return how many requests at a time, up to `most`, a GPU of so many GB has room for; 0: not
    one.

    `needs` says what a model needs where it is served so. Raises what that raises.
    """
    least = 0
    while least < most:
        tried = (least + most + 1) // 2
        wanted = serving.model_copy(update={"concurrency": tried})
        if needs(wanted).total <= round(memory * 1e9):
            least = tried
        else:
            most = tried - 1
    return least


def _notes(shape: Shape, serving: Serving) -> Iterator[str]:
    trained = shape.number("context_length")
    if trained and serving.context > trained:
        yield (
            f"The model was trained on {count(trained, 'token')} and may answer worse beyond: "
            f"{serving.context:,} are asked for."
        )
    if shape.header.architecture not in KNOWN:
        yield (
            f"The architecture {named(shape.header)} is not known here: cache, state and "
            "compute buffers are an upper bound, as if every layer kept all that any can."
        )


def padded(cells: int) -> int:
    """Return how many cells a cache of so many tokens has."""
    return -(-cells // _PAD) * _PAD


def _batch(serving: Serving) -> int:
    """Return how many tokens are computed at a time: llama.cpp takes no more than all requests
    have room for (src/llama-context.cpp, `n_batch`)."""
    return min(serving.batch, padded(serving.context) * serving.concurrency)


def _cells_of(shape: Shape, layer: int, serving: Serving) -> int:
    """Return the cells that a layer keeps for one request."""
    cells = padded(serving.context)
    if layer not in shape.windows.layers:
        return cells
    return min(cells, padded(shape.windows.size + serving.batch))


def _row(shape: Shape, layer: int, cache_type: CacheType) -> int:
    """Return the bytes of a layer's keys and values of one token."""
    heads = shape.key_heads[layer]
    if _is_latent(shape):
        return cache_bytes(heads, shape.key, cache_type)
    return cache_bytes(heads, shape.key, cache_type) + cache_bytes(heads, shape.value, cache_type)


def _is_latent(shape: Shape) -> bool:
    """Whether one compressed row is kept: llama.cpp looks at the lengths of what it becomes. Older
    files lack these, and each of their heads has keys and values of its own."""
    lengths = ("attention.key_length_mla", "attention.value_length_mla")
    return shape.header.architecture in LATENT and all(map(shape.number, lengths))


def cache_bytes(heads: int, size: int, cache_type: CacheType) -> int:
    """Return the bytes of a row of so many heads, each of so many numbers, in a cache.

    Raises UnsatisfiableError where a head is not whole blocks: llama.cpp takes no such cache.
    """
    block, taken = _CACHE_BLOCKS[cache_type]
    if size % block:
        raise UnsatisfiableError(
            f"a cache of type {cache_type} has blocks of {block} numbers, and a head of this "
            f"model has {size:,}, which is no multiple: take cache type f16",
            field="cache_type",
        )
    return heads * size // block * taken


def _state(shape: Shape) -> tuple[int, int]:
    """Return the bytes that a recurrent layer keeps for one request: of its convolution, and of
    its state. Of an architecture that is not known the most by any of its keys: those of Mamba, of
    RWKV, of short convolutions (LFM2) and of delta attention (Kimi)."""
    inner, states = shape.number("ssm.inner_size"), shape.number("ssm.state_size")
    groups = shape.number("ssm.group_count")
    convolution = max(shape.number("ssm.conv_kernel") - 1, 0)
    first, second = convolution * (inner + 2 * groups * states), inner * states
    if shape.header.architecture not in KNOWN:
        heads, short = max(shape.heads), shape.number("shortconv.l_cache")
        shifted, delta = shape.number("wkv.head_size"), shape.number("kda.head_dim")
        first = max(
            first,
            (2 if shifted else 0) * shape.width,
            max(short - 1, 0) * shape.width,
            3 * (convolution or 3) * heads * delta,
        )
        second = max(second, shape.width * shifted, heads * delta**2)
    return first * _FLOAT, second * _FLOAT


def _compute(shape: Shape, serving: Serving) -> int:
    """Return a bound of the buffers for what is computed at a time.

    For each token of a batch: what one layer keeps of its attention or of its feed-forward part
    (of experts of all that a token asks), or what each token of the vocabulary is worth, whichever
    is most: llama.cpp's own server asks for the last of these only where it is wanted, other
    programs with its library always. Beside it who attends to what, for all cells of a request,
    and the answers of all requests. Measured on models of many shapes, with flash attention, the
    engine's default, and on an H100.
    """
    width, inner = shape.width, max(per_layer(shape.header, "feed_forward_length", shape.layers))
    used = shape.number("expert_used_count")
    of_expert = shape.number("expert_feed_forward_length", inner)
    inner = max(
        inner,
        max(used, 1) * of_expert + shape.number("expert_shared_feed_forward_length"),
    )
    # What the experts put out has room where their first two products were, or is beside them.
    put_out = used * width if 2 * of_expert < width else 0
    heads, key_heads = max(shape.heads), max(shape.key_heads)
    attention = 2 * heads * max(shape.key, shape.value) + 2 * key_heads * (shape.key + shape.value)
    recurrent = 8 * shape.number("ssm.inner_size") + 2 * shape.number("ssm.state_size")
    each = max(3 * inner + put_out, attention, recurrent, shape.header.vocabulary) + 6 * width
    # What recurrent layers keep is taken from where it is kept, and the new states are beside it.
    convolution, state = _state(shape)
    states = (convolution + 2 * state) * serving.concurrency
    # Who attends to what: one for layers with a window, one for the others, also where both have
    # as many cells.
    masks = {
        (layer in shape.windows.layers, _cells_of(shape, layer, serving))
        for layer in range(shape.layers)
    }
    mask = 2 * sum(cells for _, cells in masks) if heads else 0
    if shape.header.architecture not in KNOWN:
        each, states, mask = 2 * each, 2 * states, 2 * mask
    answers = (shape.header.vocabulary + width) * _FLOAT * serving.concurrency
    copied = _copied(shape, serving) * serving.concurrency
    # Weights in blocks are multiplied by numbers in blocks, which are made beside the others.
    copies = 2 * max(inner, width, heads * shape.key)
    # As many tokens of each request are computed: a batch is filled up to a multiple of requests.
    tokens = _batch(serving) + serving.concurrency - 1
    return tokens * (each * _FLOAT + mask + copies) + states + answers + copied + _FIXED


def _copied(shape: Shape, serving: Serving) -> int:
    """Return the bytes of the keys and values of a layer that are copied for one request: flash
    attention takes no numbers of 32 bits. Of a compressed row the values are a part of the keys,
    and copied by themselves."""
    if serving.cache_type is not CacheType.F32:
        return 0
    rows = (
        _cells_of(shape, layer, serving) * _row(shape, layer, CacheType.F16)
        for layer in range(shape.layers)
    )
    return max(rows, default=0) * (2 if _is_latent(shape) else 1)
