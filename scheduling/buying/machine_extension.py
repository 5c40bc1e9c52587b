"""Extension of a machine that is billed as it runs beyond its committed time.

Nothing has to be bought for that: its market bills it until it is stopped. Only the money that it
may cost is committed anew, and its nodes last longer.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.block_end import BlockJob, BlockOption, BlockOptionKind, BlockScene
from longshore.models.buying import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.market import Window
from longshore.models.text import format_duration
from longshore.scheduling.buying.caps import gpu_time
from longshore.scheduling.buying.costs import priced
from longshore.scheduling.buying.migration_cost import migration_cost
from longshore.scheduling.buying.present_policy import why_not_longer
from longshore.scheduling.buying.prices import whole_quarters
from longshore.scheduling.buying.scale_down import is_retained_warm
from longshore.scheduling.buying.warm_target import counts_until

_WARM_AHEAD = timedelta(minutes=2)
"""How long before that: pools with a warm target look every minute whether they have it."""


class Longer(NamedTuple):
    """The longer time of a machine. Without `option` there is none to think of."""

    option: BlockOption | None = None
    """What it gains."""
    until: datetime | None = None
    uses: dict[str, int] | None = None
    """GPU-seconds of each job in it."""


def go_on(scene: BlockScene) -> Longer:
    """Return until when a machine would go on for the work there, with what that gains.

    Nothing where it is not time to think of it, and where nothing there needs longer.
    """
    jobs = _beyond(scene)
    if not may_go_on(scene):
        return Longer()
    if not jobs:
        return _kept_warm(scene) if is_retained_warm(scene) else Longer()
    block, policy = scene.block, scene.policy
    last = max(job.expected_end for job in jobs)
    lasts = max(job.ends_unasked(policy.safety_margin) for job in jobs)
    length = whole_quarters(max(lasts - block.ends_at, timedelta(minutes=1)))
    length = min(length, policy.longest_window)
    # It is terminated when its work has ended, as any other machine that the work would run on.
    used = min(last - block.ends_at, length)
    gpus = block.gpus_per_node * len(scene.machines)
    terms = {"price": -priced(block.price, gpus, used), **migration_cost(scene, jobs)}
    option = BlockOption(
        kind=BlockOptionKind.GO_ON,
        title=f"go on for {format_duration(length)} after it, billed as it runs",
        gain=sum(terms.values()), terms=terms,
    )  # fmt: skip
    until = block.ends_at + length
    uses = gpu_time(jobs, Window(start=block.ends_at, end=until))
    return Longer(_as_policy(scene, option, policy), until, uses)


def _kept_warm(scene: BlockScene) -> Longer:
    """Return the longer time of a machine that the warm target wants: else another is bought."""
    block, length = scene.block, scene.policy.shortest_window
    start_up = priced(block.price, block.gpus_per_node, scene.policy.usual_startup)
    option = BlockOption(
        kind=BlockOptionKind.GO_ON,
        title=f"go on for {format_duration(length)} after it: the warm target wants it",
        gain=start_up, terms={"start-up of another": start_up},
    )  # fmt: skip
    # Nobody has started there: it would not be bought for jobs that start below its price.
    policy = scene.policy.model_copy(update={"below": scene.start_below})
    return Longer(_as_policy(scene, option, policy), block.ends_at + length, {})


def _as_policy(scene: BlockScene, option: BlockOption, policy: BuyingPolicy) -> BlockOption:
    lost = why_not_longer(scene.block, policy)
    return option.model_copy(update={"lost": lost}) if lost else option


def may_go_on(scene: BlockScene) -> bool:
    """Return whether it is time to think of it: not before the end is near."""
    block = scene.block
    due = decides_from(block.starts_at, block.ends_at, scene.policy, block.tier)
    return block.by_use and scene.policy.enabled and due <= scene.now < block.ends_at


def decides_from(
    starts_at: datetime, ends_at: datetime, policy: BuyingPolicy, tier: Tier
) -> datetime:
    """Return from when it is decided whether a machine goes on: as early as a renewal is, and
    before it holds the warm target of its pool no longer, or another would be bought for that."""
    due = ends_at - min(2 * policy.startup_limit, (ends_at - starts_at) / 2)
    if tier is Tier.FAST and policy.keeps_warm:
        due = min(due, counts_until(ends_at, policy, policy) - _WARM_AHEAD)
    return due


def _beyond(scene: BlockScene) -> list[BlockJob]:
    ends_at, margin = scene.block.ends_at, scene.policy.safety_margin
    paid = scene.packing.is_paid_for
    return [job for job in scene.jobs if job.ends_unasked(margin) > ends_at and paid(job.id)]
