"""On how many GPUs one engine may run."""

from collections.abc import Sequence

from longshore.models.serving import Split

_MOST_GPUS = 64
"""Of one engine: more than a node has."""
_MOST_OF_LAYERS = 16
"""llama.cpp knows so many GPUs (ggml/include/ggml-cuda.h, GGML_CUDA_MAX_DEVICES)."""


def sizes(heads: int, kv_heads: int, split: Split) -> tuple[int, ...]:
    """Return the numbers of GPUs over which an engine may spread, the fewest first.

    By heads: a number that divides the attention heads, and that divides the KV heads or is a
    multiple of them (vLLM's own rule). Without `heads`, which are 0 where nobody knows them, the
    powers of two, which nearly all models have. Without `kv_heads` there are as many as heads.
    """
    if split is Split.NONE:
        return (1,)
    if split is Split.LAYERS:
        return tuple(range(1, _MOST_OF_LAYERS + 1))
    if heads < 1:
        return tuple(2**power for power in range(_MOST_GPUS.bit_length()))
    kv_heads = kv_heads if kv_heads > 0 else heads
    return tuple(
        number
        for number in range(1, min(heads, _MOST_GPUS) + 1)
        if heads % number == 0 and (kv_heads % number == 0 or number % kv_heads == 0)
    )


def why_not_so_many(gpus: int, heads: int, kv_heads: int, split: Split) -> str:
    """Return why an engine cannot run on exactly so many GPUs, with what would do; empty where it
    can, or where nobody knows the heads."""
    allowed = sizes(heads, kv_heads, split)
    if gpus in allowed or (split is Split.HEADS and heads < 1):
        return ""
    if split is Split.NONE:
        return f"is {gpus}, and its runtime runs on one GPU"
    if split is Split.LAYERS:
        return f"is {gpus}: {allowed[-1]} are the most"
    return (
        f"is {gpus}, which does not go into {heads} attention heads and {kv_heads or heads} KV "
        f"heads: {_or(allowed)} would do"
    )


def _or(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
