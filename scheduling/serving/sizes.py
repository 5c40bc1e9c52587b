"""On how many GPUs a model can be, and how much of it each of them has.

Tensor parallelism cuts each layer between GPUs of one size (vLLM): their number divides the
attention heads, and divides the KV heads or is a multiple of them. llama.cpp gives whole layers to
GPUs, to each as many as it has room for.
"""

from collections.abc import Sequence

from longshore.models.errors import UnsatisfiableError
from longshore.models.text import count
from longshore.scheduling.serving.slots import LayerSplit

_MOST_GPUS = 64


def why_not_parallel(gpus: int, heads: int, key_heads: int) -> str | None:
    """Return why a model cannot be cut between so many GPUs; None where it can."""
    if gpus < 1:
        return f"{gpus} is no number of GPUs"
    if heads < 1 or key_heads < 1:
        return f"{heads} attention heads and {key_heads} KV heads cannot be divided"
    if heads % gpus:
        return f"{gpus} does not divide {count(heads, 'attention head')}"
    if key_heads % gpus and gpus % key_heads:
        return f"{gpus} neither divides {count(key_heads, 'KV head')} nor is a multiple of them"
    return None


def parallel_sizes(heads: int, key_heads: int, most: int = _MOST_GPUS) -> tuple[int, ...]:
    """Return the numbers of GPUs that a model can be cut between, fewest first.

    Raises UnsatisfiableError where it has no heads.
    """
    if heads < 1 or key_heads < 1:
        raise UnsatisfiableError(why_not_parallel(1, heads, key_heads) or "")
    return tuple(
        gpus for gpus in range(1, most + 1) if why_not_parallel(gpus, heads, key_heads) is None
    )


def even_sizes(total: int, numbers: Sequence[int], each: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return the MB on each GPU, for each number of GPUs: an equal part of `total`, rounded up,
    and what each GPU needs beside."""
    return tuple((-(-total // number) + each,) * number for number in sorted(set(numbers)))


def split_layers(split: LayerSplit, rooms: Sequence[int]) -> tuple[int, ...] | None:
    """Return the MB of each GPU for a model in layers; None where the rooms do not suffice.

    Each GPU gets at least one layer, and a part of the others as its room is of all rooms.
    """
    fits = [max(room - split.fixed, 0) // max(split.mb, 1) for room in rooms]
    if not fits or min(fits) < 1 or sum(fits) < split.layers or split.layers < len(fits):
        return None
    whole = sum(fits)
    layers = [max(fit * split.layers // whole, 1) for fit in fits]
    left = split.layers - sum(layers)
    # What rounding left goes where most room is left; what it gave too much comes from the most.
    while left:
        step = 1 if left > 0 else -1
        able = [
            at
            for at in range(len(fits))
            if (layers[at] < fits[at] if left > 0 else layers[at] > 1)
        ]
        at = max(able, key=lambda at: (step * (fits[at] - layers[at]), -at))
        layers[at] += step
        left -= step
    return tuple(split.fixed + number * split.mb for number in layers)
