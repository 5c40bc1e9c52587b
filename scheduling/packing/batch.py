# pyright: reportUnknownVariableType=false
# What numba has compiled has no types of its own.
"""A queue placed as a whole: in whatever order serves it best, before any of it is committed."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from scheduling.packing.fleet import Choice, Fleet, Request
from scheduling.packing.outlook import OutlookKeeper, make_outlook
from scheduling.packing.policies import choice_of

TRIES = 60
"""Refills tried for each request of the queue."""
SEED = 20261120


def place_batch(
    fleet: Fleet, requests: Sequence[Request], keeper: OutlookKeeper, tries: int = TRIES
) -> list[Choice | None]:
    """Return a place for each request, or None for those that are left over.

    The places are for all of them together: take them in any order. What the fleet has taken
    before stays where it is, and the fleet is not changed. Requests are learnt by `keeper`. The
    same fleet, requests and keeper give the same places.
    """
    from scheduling.packing.batch_kernels import place_all

    for request in requests:
        keeper.mix.observe(request)
    if not requests:
        return []
    outlook = make_outlook(keeper.mix, fleet)
    rows = np.array([tuple(request) for request in requests], np.int64)
    work = fleet.copy().columns
    found = cast(Any, place_all)(work, rows, outlook, tries * len(requests), SEED)
    return [choice_of(int(node), int(mask)) for node, mask in zip(*found, strict=True)]
