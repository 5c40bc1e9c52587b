"""A whole queue decided in one compiled pass over classes of nodes.

The same decisions as one by one (`scheduling.cycle`), at a small part of the time. But loading
numba takes a second, and compiling on a fresh machine half a minute: so a process that plans long
queues calls `warm.warm` in the background, as `activities.compiler_warmup` does. Others do not.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.state import Need

if TYPE_CHECKING:
    from longshore.scheduling.bulk.run import Run

FEWEST = 24
"""The fewest jobs for which a pass pays, once it is loaded."""
FEWEST_COLD = 20_000
"""The fewest jobs for which loading it pays."""
_RULES = (PackingRule.SEED_SCORE, PackingRule.KEEP_ROOM)
_MOST_GPUS = 62
"""GPUs of a node whose sets are one integer there."""
_loaded = False


def is_worth(jobs: int) -> bool:
    """Return whether a pass decides this many jobs sooner."""
    return jobs >= (FEWEST if _loaded else FEWEST_COLD)


def is_loaded() -> bool:
    """Return whether a pass can begin at once in this process."""
    return _loaded


def loaded() -> None:
    """Note that a pass can begin at once: for `warm`."""
    global _loaded
    _loaded = True


def is_for(columns: Columns, policy: PackingPolicy) -> bool:
    """Return whether a pass knows the rule and the nodes."""
    if policy.rule not in _RULES or policy.weights.separation:
        return False
    return not any(
        layout.rooms.all_gpus >> _MOST_GPUS or any(m.gpu >= _MOST_GPUS for m in layout.rooms.migs)
        for layout in columns.layouts
    )


def run_of(
    jobs: Sequence[JobRequest],
    columns: Columns,
    policy: PackingPolicy,
    keeper: HeadroomKeeper | None,
    now: datetime,
    need_of: Callable[[JobRequest], Need],
    wanted: Collection[str] | None = None,
) -> "Run":
    """Return a pass over these jobs, in order; `need_of` says what each needs. Of those that wait
    only the `wanted` are told why."""
    from longshore.scheduling.bulk.run import Run  # loads numba

    return Run(jobs, columns, policy, keeper, now, need_of, wanted)
