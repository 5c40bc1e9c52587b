"""How much of a model each of several GPUs has (`splits` says how many there may be).

Tensor parallelism cuts each layer between GPUs of one size (vLLM). llama.cpp gives whole layers to
GPUs, to each as many as it has room for.
"""

from collections.abc import Sequence

from longshore.scheduling.serving.slots import LayerSplit


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
