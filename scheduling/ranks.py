"""Ranks that leave or join a gang which goes on: which they are, and what that takes. Pure."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from longshore.models.elastic import Malleable

_NAMED = 6
"""Ranks that a message names."""
COUNTS_SAVES = (
    "its saves name no step, and what a rank that joins saves can be told by the step alone to "
    'belong to the saves of the others: it has to write "saved, step N"'
)
"""Why ranks of a job whose nodes each store their own part do not join."""


def staying(
    ranks: Mapping[int, int], sizes: Malleable, at_most: int | None = None
) -> tuple[int, ...]:
    """Return the ranks with which a job goes on in place, ascending: the highest leave, until
    those that stay have one of its sizes, of at most so many GPUs.

    `ranks` has the GPUs of each that it has now. Rank 0 never leaves: the others meet there.
    Returns none where no such ranks stay.
    """
    stay = sorted(ranks)
    while stay and stay[0] == 0:
        gpus = sum(ranks[rank] for rank in stay)
        if gpus in sizes.sizes and (at_most is None or gpus <= at_most):
            return tuple(stay)
        stay.pop()
    return ()


def fewest_nodes(gpus_of_nodes: Sequence[int], sizes: Malleable) -> int:
    """Return the fewest of these nodes on which a job can have its smallest size."""
    return 1 + sum(
        total < sizes.min for total in accumulate(sorted(gpus_of_nodes, reverse=True)[:-1])
    )


def most_nodes(gpus_of_nodes: Sequence[int], sizes: Malleable) -> int:
    """Return the most nodes that a job which began on these can have in place: whoever joins has
    as many GPUs as the least of them, at least."""
    return max(len(gpus_of_nodes), sizes.max // min(gpus_of_nodes))


def named(ranks: Sequence[int], verb: str = "leave") -> str:
    """Return who leaves: ``rank 3 leaves``, ``ranks 2 and 3 leave``; many from the first to the
    last. Or who does what another verb says."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} {verb}s"
    if len(ranks) > _NAMED:
        return f"ranks {ranks[0]} to {ranks[-1]} {verb}"
    first = ", ".join(map(str, ranks[:-1]))
    return f"ranks {first} and {ranks[-1]} {verb}"
