"""How much memory of a GPU llama.cpp needs for a model, from the header of its file.

Weights, KV cache and state are what the engine itself allocates (tests/serving compares them with
its log), for the architectures that are listed here. For others each layer is taken to keep all
that any layer can: never too little. Compute buffers are an upper bound.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import TENSOR_TYPES, GGUFHeader
from longshore.models.model_memory import CacheType, ModelMemory, Serving
from longshore.models.text import count
from longshore.scheduling.serving.header_sizes import named, needed_size, per_layer, size_of
from longshore.scheduling.serving.windows import WINDOWED, Windows, windows_of

_PAD = 256
"""A cache has a multiple of so many cells."""
_CACHE_BLOCKS = {
    CacheType(name.lower()): (block, size)
    for name, block, size in TENSOR_TYPES.values()
    if name.lower() in set(CacheType)
}
"""Numbers in a block, and its bytes."""
_PLAIN = frozenset({"gemma", "llama", "phi3", "qwen2", "qwen3", "qwen3moe"})
"""Every layer attends to everything."""
_RECURRENT = frozenset({"mamba"})
_LATENT = frozenset({"deepseek2"})
"""Keys and values may be read from one compressed row, which is kept once."""
_ATTENDING = _PLAIN | WINDOWED
"""Every layer has heads of its own."""
_KNOWN = _ATTENDING | _LATENT | _RECURRENT
_PACKED = frozenset({"phi3"})
"""The first matrix of a feed-forward part holds two."""
_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.", re.ASCII)
"""Begins the names of the tensors of a layer."""
_SIZED = re.compile(r"blk\.(\d{1,5})\.(attn_q|attn_k|attn_v|ffn_up)\.weight", re.ASCII)
"""Tensors whose outputs the header tells."""
_NEEDED = re.compile(
    r"blk\.(\d{1,5})\.((?:attn_(?:norm|q|k|v|qkv|output)|ffn_(?:up|down|gate))\.weight)", re.ASCII
)
"""Tensors that all layers have, or none: what else there is may be left out in some."""
_OUTSIDE = ("token_embd.weight", "output_norm.weight")
"""Tensors of no layer that each model has."""
_OF_TOKENS = ("token_embd.weight", "output.weight")
"""Tensors with a row for each token."""
_FLOAT = 4
_MOST_LAYERS = 10_000
MOST_REQUESTS = 256
"""At a time: of one context of llama.cpp (LLAMA_MAX_SEQ in its src/llama-cparams.h)."""
_FIXED = 2 * 2**20
"""Bytes of compute buffers that depend on nothing."""


@dataclass(frozen=True)
class _Shape:
    """What the header says of the sizes of a model."""

    header: GGUFHeader
    layers: int
    width: int
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    key: int
    value: int
    windows: Windows

    def number(self, key: str, default: int = 0) -> int:
        return size_of(self.header, key, default)


def estimate(header: GGUFHeader, serving: Serving) -> ModelMemory:
    """Return what one GPU must have for a model.

    Raises UnsatisfiableError, with the key that is missing or wrong, where the header does not
    say how large the model is, where its tensors say otherwise, or where it cannot be served so.
    """
    if serving.concurrency > MOST_REQUESTS:
        raise UnsatisfiableError(
            f"concurrency is {serving.concurrency:,}: llama.cpp serves at most {MOST_REQUESTS} "
            "requests at a time; a service may have more replicas"
        )
    shape = _shape(header)
    types, of_layers = Counter[str](), Counter[int]()
    for tensor in header.tensors:
        types[TENSOR_TYPES[tensor.type][0]] += tensor.size
        if (found := _OF_LAYER.match(tensor.name)) is not None:
            of_layers[int(found[1])] += tensor.size
    _check_layers(shape, of_layers)
    _check_alike(shape)
    _check_tensors(shape)
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
        exact=header.architecture in _KNOWN,
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
        if needs(wanted).total <= memory * 1e9:
            least = tried
        else:
            most = tried - 1
    return least


def _notes(shape: _Shape, serving: Serving) -> Iterator[str]:
    trained = shape.number("context_length")
    if trained and serving.context > trained:
        yield (
            f"The model was trained on {count(trained, 'token')} and may answer worse beyond: "
            f"{serving.context:,} are asked for."
        )
    if shape.header.architecture not in _KNOWN:
        yield (
            f"The architecture {named(shape.header)} is not known here: cache, state and "
            "compute buffers are an upper bound, as if every layer kept all that any can."
        )


def _shape(header: GGUFHeader) -> _Shape:
    if not header.architecture:
        raise UnsatisfiableError(
            "general.architecture is missing: nobody knows what model this is"
        )
    layers = needed_size(header, "block_count")
    width = needed_size(header, "embedding_length")
    if layers > _MOST_LAYERS:
        raise UnsatisfiableError(
            f"{named(header)}.block_count is {layers:,}; {_MOST_LAYERS:,} are the most"
        )
    recurrent = size_of(header, "ssm.state_size", 0) > 0
    if not recurrent:
        needed_size(header, "attention.head_count")
    heads = per_layer(header, "attention.head_count", layers)
    # A header that says nothing of KV heads means as many as heads (so does llama.cpp).
    key_heads = (
        heads
        if header.of_model("attention.head_count_kv") is None
        else per_layer(header, "attention.head_count_kv", layers)
    )
    if header.architecture in _ATTENDING and not (min(heads) and min(key_heads)):
        raise UnsatisfiableError(
            f"{named(header)}.attention.head_count or head_count_kv is 0, and each layer of such "
            "a model has both: without them nobody knows how large its cache is"
        )
    # As the engine has it: by the first layer, where the header says no numbers of a head.
    first = heads[0] or max(heads)
    each = -(-width // first) if first else 0
    if (
        header.architecture in _KNOWN
        and first
        and width % first
        and header.of_model("attention.key_length") is None
    ):
        raise UnsatisfiableError(
            f"{named(header)}.attention.head_count is {first:,} and does not divide "
            f"embedding_length, {width:,}, and attention.key_length is missing"
        )
    return _Shape(
        header, layers, width, heads, key_heads,
        key=size_of(header, "attention.key_length", each),
        value=size_of(header, "attention.value_length", each),
        windows=windows_of(header, layers),
    )  # fmt: skip


def _check_layers(shape: _Shape, of_layers: Mapping[int, int]) -> None:
    """Refuse a header that says another number of layers than its tensors are of: the engine
    would not load it, and the cache of a layer that nobody counted would have no memory."""
    said = f"{named(shape.header)}.block_count is {shape.layers:,}"
    if (last := max(of_layers, default=0)) >= shape.layers:
        raise UnsatisfiableError(
            f"{said}, and the file has tensors of layer {last:,} (blk.{last})"
        )
    # Of other architectures some have layers without tensors, or name them otherwise.
    if shape.header.architecture in _KNOWN and len(of_layers) < shape.layers:
        missing = next(layer for layer in range(shape.layers) if layer not in of_layers)
        raise UnsatisfiableError(
            f"{said}, and the file has tensors of {count(len(of_layers), 'layer')}: none of layer "
            f"{missing:,} (blk.{missing})"
        )


def _check_alike(shape: _Shape) -> None:
    """Refuse a model of which a layer lacks a tensor that others have: the engine would not load
    it. Only of architectures whose layers are alike."""
    if shape.header.architecture not in _ATTENDING:
        return
    having: dict[str, set[int]] = {}
    for tensor in shape.header.tensors:
        if (found := _NEEDED.fullmatch(tensor.name)) is not None:
            having.setdefault(found[2], set()).add(int(found[1]))
    for name, layers in having.items():
        if len(layers) < shape.layers:
            lacks = next(layer for layer in range(shape.layers) if layer not in layers)
            raise UnsatisfiableError(
                f"blk.{lacks} has no {name}, which blk.{min(layers)} has: all layers of a model "
                f"of the architecture {named(shape.header)} are alike"
            )


def _check_tensors(shape: _Shape) -> None:
    """Refuse a header that says other sizes than its tensors have: the engine would not load it.

    Only where it is known what a tensor of the name is: others are left to the engine.
    """
    architecture = shape.header.architecture
    names = {tensor.name for tensor in shape.header.tensors}
    lacks = [name for name in _OUTSIDE if name not in names]
    if lacks and architecture in _KNOWN:
        raise UnsatisfiableError(
            f"the file has no {lacks[0]}, which each model of the architecture "
            f"{named(shape.header)} has"
        )
    inner = per_layer(shape.header, "feed_forward_length", shape.layers)
    for tensor in shape.header.tensors:
        row, outputs = tensor.shape[0], math.prod(tensor.shape[1:])
        if tensor.name in _OF_TOKENS and architecture in _KNOWN:
            _agree(shape, "embedding_length", shape.width, f"{tensor.name} has rows of", row)
            if outputs != (tokens := shape.header.vocabulary):
                raise UnsatisfiableError(
                    f"the model has {tokens:,} tokens, and {tensor.name} has {outputs:,} rows"
                )
        if architecture not in _ATTENDING or (found := _SIZED.fullmatch(tensor.name)) is None:
            continue
        layer, has = int(found[1]), f"{tensor.name} has outputs:"
        match found[2]:
            case "attn_q":
                heads = shape.heads[layer]
                _agree(shape, "attention.head_count", heads, has, outputs, shape.key)
            case "attn_k" | "attn_v":
                each = shape.key if found[2] == "attn_k" else shape.value
                heads = shape.key_heads[layer]
                _agree(shape, "attention.head_count_kv", heads, has, outputs, each)
            case _ if architecture not in _PACKED:
                _agree(shape, "feed_forward_length", inner[layer], has, outputs)
            case _:
                pass


def _agree(shape: _Shape, key: str, said: int, has: str, found: int, each: int = 1) -> None:
    """Raise UnsatisfiableError where a tensor has another number than by the header, which says
    so many of `each`."""
    if found != said * each:
        of = f", of {each:,} numbers each" if each > 1 else ""
        raise UnsatisfiableError(
            f"{named(shape.header)}.{key} is {said:,}{of}, and {has} {found:,}, not "
            f"{said * each:,}"
        )


def padded(cells: int) -> int:
    """Return how many cells a cache of so many tokens has."""
    return -(-cells // _PAD) * _PAD


def _cells_of(shape: _Shape, layer: int, serving: Serving) -> int:
    """Return the cells that a layer keeps for one request."""
    cells = padded(serving.context)
    if layer not in shape.windows.layers:
        return cells
    return min(cells, padded(shape.windows.size + serving.batch))


def _row(shape: _Shape, layer: int, cache_type: CacheType) -> int:
    """Return the bytes of a layer's keys and values of one token."""
    heads = shape.key_heads[layer]
    if _is_latent(shape):
        return cache_bytes(heads, shape.key, cache_type)
    return cache_bytes(heads, shape.key, cache_type) + cache_bytes(heads, shape.value, cache_type)


def _is_latent(shape: _Shape) -> bool:
    """Whether one compressed row is kept: llama.cpp looks at the lengths of what it becomes. Older
    files lack these, and each of their heads has keys and values of its own."""
    lengths = ("attention.key_length_mla", "attention.value_length_mla")
    return shape.header.architecture in _LATENT and all(map(shape.number, lengths))


def cache_bytes(heads: int, size: int, cache_type: CacheType) -> int:
    """Return the bytes of a row of so many heads, each of so many numbers, in a cache.

    Raises UnsatisfiableError where a head is not whole blocks: llama.cpp takes no such cache.
    """
    block, taken = _CACHE_BLOCKS[cache_type]
    if size % block:
        raise UnsatisfiableError(
            f"a cache of type {cache_type} has blocks of {block} numbers, and a head of this "
            f"model has {size:,}, which is no multiple: take cache type f16"
        )
    return heads * size // block * taken


def _state(shape: _Shape) -> tuple[int, int]:
    """Return the bytes that a recurrent layer keeps for one request: of its convolution, and of
    its state. Of an architecture that is not known the most by any of its keys: those of Mamba, of
    RWKV, of short convolutions (LFM2) and of delta attention (Kimi)."""
    inner, states = shape.number("ssm.inner_size"), shape.number("ssm.state_size")
    groups = shape.number("ssm.group_count")
    convolution = max(shape.number("ssm.conv_kernel") - 1, 0)
    first, second = convolution * (inner + 2 * groups * states), inner * states
    if shape.header.architecture not in _KNOWN:
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


def _compute(shape: _Shape, serving: Serving) -> int:
    """Return a bound of the buffers for what is computed at a time.

    For each token of a batch: what one layer keeps of its attention or of its feed-forward part,
    or what each token of the vocabulary is worth, whichever is most: llama.cpp's own server asks
    for the last of these only where it is wanted, other programs with its library always. Beside
    it who attends to what, for all cells of a request, and the answers of all requests. Measured
    on models of many shapes, with flash attention, the engine's default, and on an H100.
    """
    width, inner = shape.width, max(per_layer(shape.header, "feed_forward_length", shape.layers))
    experts = max(shape.number("expert_used_count"), 1)
    inner = max(
        inner,
        experts * shape.number("expert_feed_forward_length", inner)
        + shape.number("expert_shared_feed_forward_length"),
    )
    heads, key_heads = max(shape.heads), max(shape.key_heads)
    attention = 2 * heads * max(shape.key, shape.value) + 2 * key_heads * (shape.key + shape.value)
    recurrent = 8 * shape.number("ssm.inner_size") + 2 * shape.number("ssm.state_size")
    each = max(3 * inner, attention, recurrent, shape.header.vocabulary) + 6 * width
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
    if shape.header.architecture not in _KNOWN:
        each, states, mask = 2 * each, 2 * states, 2 * mask
    answers = (shape.header.vocabulary + width) * _FLOAT * serving.concurrency
    # Weights in blocks are multiplied by numbers in blocks, which are made beside the others.
    copies = 2 * max(inner, width, heads * shape.key)
    # As many tokens of each request are computed: a batch is filled up to a multiple of requests.
    tokens = serving.batch + serving.concurrency - 1
    return tokens * (each * _FLOAT + mask + copies) + states + answers + _FIXED
