"""Which GGUF files no engine would load: their header says other sizes than their tensors have."""

import math
import re
from collections.abc import Mapping

from longshore.models.errors import UnsatisfiableError
from longshore.models.text import count
from longshore.scheduling.serving.header_sizes import named, per_layer
from longshore.scheduling.serving.shapes import ATTENDING, KNOWN, PACKED, Shape

OF_LAYER = re.compile(r"blk\.(\d{1,5})\.", re.ASCII)
"""Begins the names of the tensors of a layer."""
_SIZED = re.compile(r"blk\.(\d{1,5})\.(attn_q|attn_k|attn_v|attn_qkv|ffn_up)\.weight", re.ASCII)
"""Tensors whose outputs the header tells."""
_NEEDED = re.compile(
    r"blk\.(\d{1,5})\.((?:attn_(?:norm|q|k|v|qkv|output)|ffn_(?:up|down|gate))\.weight)", re.ASCII
)
"""Tensors that all layers have, or none: what else there is may be left out in some."""
_OF_ATTENTION = ("attn_norm.weight", "attn_output.weight")
_PARTS = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_PACKED_PARTS = "attn_qkv.weight"
"""These three in one."""
_DENSE = ("ffn_up.weight", "ffn_down.weight")
"""What each layer has without which the engine loads no model; the last two where there are no
experts."""
_EPSILON, _OTHER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_OTHER_NORMS = frozenset({"cohere2"})
_ROTATED = "rope.dimension_count"
_ROTATED_WHOLE = frozenset({"llama", "qwen2", "qwen3", "qwen3moe"})
"""Each number of a key has to be rotated by its position; of others a part may be."""
_OUTSIDE = ("token_embd.weight", "output_norm.weight")
"""Tensors of no layer that each model has."""
_OF_TOKENS = ("token_embd.weight", "output.weight")
"""Tensors with a row for each token."""
_NORM = re.compile(
    r"output_norm\.weight"
    r"|blk\.\d{1,5}\.(?:attn_norm|ffn_norm|post_attention_norm|post_ffw_norm)\.weight",
    re.ASCII,
)
"""Norms of what goes from layer to layer: each has a number for each of its numbers."""
_NORM_OF_HEAD = re.compile(r"blk\.\d{1,5}\.attn_[qk]_norm\.weight", re.ASCII)
_HEADS_HAVE_NORMS = frozenset({"gemma3", "qwen3", "qwen3moe"})
"""Each of their heads has the same one."""


def check_layers(shape: Shape, of_layers: Mapping[int, int]) -> None:
    """Refuse a header that says another number of layers than its tensors are of: the engine
    would not load it, and the cache of a layer that nobody counted would have no memory."""
    said = f"{named(shape.header)}.block_count is {shape.layers:,}"
    if (last := max(of_layers, default=0)) >= shape.layers:
        raise UnsatisfiableError(
            f"{said}, and the file has tensors of layer {last:,} (blk.{last})"
        )
    # Of other architectures some have layers without tensors, or name them otherwise.
    if shape.header.architecture in KNOWN and len(of_layers) < shape.layers:
        missing = next(layer for layer in range(shape.layers) if layer not in of_layers)
        raise UnsatisfiableError(
            f"{said}, and the file has tensors of {count(len(of_layers), 'layer')}: none of layer "
            f"{missing:,} (blk.{missing})"
        )


def check_keys(shape: Shape) -> None:
    """Refuse a header without a key that the engine loads no model without, though nothing of the
    memory follows from it. Only of architectures that are known."""
    architecture = shape.header.architecture
    if architecture not in KNOWN:
        return
    epsilon = _OTHER_EPSILON if architecture in _OTHER_NORMS else _EPSILON
    for key in ("context_length", epsilon):
        if shape.header.of_model(key) is None:
            raise UnsatisfiableError(
                f"{named(shape.header)}.{key} is missing: llama.cpp loads no such model without it"
            )


def check_rotation(shape: Shape) -> None:
    """Refuse a header that says another number of rotated numbers of a key than a head has, or
    than can be rotated: the engine would not load it, or end as it computes. Nothing of the memory
    follows from it. Only of architectures whose layers are alike."""
    rotated = shape.header.of_model(_ROTATED)
    if shape.header.architecture not in ATTENDING or not isinstance(rotated, int):
        return
    if shape.header.architecture in _ROTATED_WHOLE:
        right, wants = rotated == shape.key, "as many"
    else:
        right, wants = rotated % 2 == 0 and rotated <= shape.key, "an even number of at most these"
    if not right:
        raise UnsatisfiableError(
            f"{named(shape.header)}.{_ROTATED} is {rotated:,}, and a key of a head has "
            f"{count(shape.key, 'number')}: llama.cpp wants {wants}"
        )


def check_alike(shape: Shape) -> None:
    """Refuse a model of which a layer lacks a tensor that others have, or that each model has: the
    engine would not load it. Only of architectures whose layers are alike."""
    if shape.header.architecture not in ATTENDING:
        return
    having: dict[str, set[int]] = {}
    for tensor in shape.header.tensors:
        if (found := _NEEDED.fullmatch(tensor.name)) is not None:
            having.setdefault(found[2], set()).add(int(found[1]))
    parts = (_PACKED_PARTS,) if _PACKED_PARTS in having else _PARTS
    dense = () if shape.number("expert_count") else _DENSE
    for name in (*_OF_ATTENTION, *parts, *dense):
        if name not in having:
            raise UnsatisfiableError(
                f"no layer has {name}, which each layer of a model of the architecture "
                f"{named(shape.header)} has"
            )
    for name, layers in having.items():
        if len(layers) < shape.layers:
            lacks = next(layer for layer in range(shape.layers) if layer not in layers)
            raise UnsatisfiableError(
                f"blk.{lacks} has no {name}, which blk.{min(layers)} has: all layers of a model "
                f"of the architecture {named(shape.header)} are alike"
            )


def check_tensors(shape: Shape) -> None:
    """Refuse a header that says other sizes than its tensors have: the engine would not load it.

    Only where it is known what a tensor of the name is: others are left to the engine.
    """
    architecture = shape.header.architecture
    names = {tensor.name for tensor in shape.header.tensors}
    lacks = [name for name in _OUTSIDE if name not in names]
    if lacks and architecture in KNOWN:
        raise UnsatisfiableError(
            f"the file has no {lacks[0]}, which each model of the architecture "
            f"{named(shape.header)} has"
        )
    inner = per_layer(shape.header, "feed_forward_length", shape.layers)
    for tensor in shape.header.tensors:
        row, outputs = tensor.shape[0], math.prod(tensor.shape[1:])
        if tensor.name in _OF_TOKENS and architecture in KNOWN:
            _agree(shape, "embedding_length", shape.width, f"{tensor.name} has rows of", row)
            if outputs != (tokens := shape.header.vocabulary):
                raise UnsatisfiableError(
                    f"the model has {tokens:,} tokens, and {tensor.name} has {outputs:,} rows"
                )
        if architecture not in ATTENDING or (found := _SIZED.fullmatch(tensor.name)) is None:
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
            case "attn_qkv":
                wanted = shape.heads[layer] * shape.key
                wanted += shape.key_heads[layer] * (shape.key + shape.value)
                if outputs != wanted:
                    raise UnsatisfiableError(
                        f"{named(shape.header)}.attention.head_count is {shape.heads[layer]:,} "
                        f"and head_count_kv {shape.key_heads[layer]:,}, of {shape.key:,} numbers "
                        f"each, and {has} {outputs:,}, not {wanted:,}"
                    )
            case _:
                each = 2 if architecture in PACKED else 1
                _agree(shape, "feed_forward_length", inner[layer], has, outputs, each)


def check_norms(shape: Shape) -> None:
    """Refuse a model with a norm of another length than what it is a norm of: the engine would
    not load it. Only of architectures that are known."""
    architecture = shape.header.architecture
    if architecture not in KNOWN:
        return
    for tensor in shape.header.tensors:
        has, found = f"{tensor.name} has numbers:", math.prod(tensor.shape)
        if _NORM.fullmatch(tensor.name):
            _agree(shape, "embedding_length", shape.width, has, found)
        elif architecture in _HEADS_HAVE_NORMS and _NORM_OF_HEAD.fullmatch(tensor.name):
            _agree(shape, "attention.key_length", shape.key, has, found)


def _agree(shape: Shape, key: str, said: int, has: str, found: int, each: int = 1) -> None:
    """Raise UnsatisfiableError where a tensor has another number than by the header, which says
    so many of `each`."""
    if found != said * each:
        of = f", of {each:,} numbers each" if each > 1 else ""
        raise UnsatisfiableError(
            f"{named(shape.header)}.{key} is {said:,}{of}, and {has} {found:,}, not "
            f"{said * each:,}"
        )
