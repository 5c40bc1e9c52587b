"""The cost of moving jobs off a block at its end, which its extension saves."""

from collections.abc import Sequence

from longshore.models.block_end import BlockJob, BlockScene
from longshore.models.job import Tier
from longshore.scheduling.buying.costs import UNSERVED, priced


def migration_cost(scene: BlockScene, jobs: Sequence[BlockJob]) -> dict[str, int]:
    """Return in micro-dollars, by term, what it costs that these jobs go on elsewhere."""
    return {
        "the same elsewhere": _elsewhere(scene, jobs),
        "done again": _again(scene, jobs),
        "waiting meanwhile": _waiting(scene, jobs),
    }


def _elsewhere(scene: BlockScene, jobs: Sequence[BlockJob]) -> int:
    """Return what the rest of the work would cost on machines bought later; FLEX may wait."""
    price = scene.elsewhere
    if scene.block.tier is Tier.FLEX:
        hoped = scene.policy.flex_price
        price = hoped if price is None else min(price, hoped)
    if price is None:
        return sum(priced(scene.policy.fast_delay_price, job.gpus, UNSERVED) for job in jobs)
    ends_at = scene.block.ends_at
    return sum(priced(price, job.gpus, job.whole or job.expected_end - ends_at) for job in jobs)


def _again(scene: BlockScene, jobs: Sequence[BlockJob]) -> int:
    """Return what it costs to do again what is lost when jobs move."""
    price = scene.block.price if scene.elsewhere is None else scene.elsewhere
    return sum(priced(price, job.gpus, job.lost) for job in jobs)


def _waiting(scene: BlockScene, jobs: Sequence[BlockJob]) -> int:
    """Return what it costs that moved FAST jobs wait for machines, and for what they do again."""
    policy = scene.policy
    if scene.elsewhere is None:
        return 0  # what is not served at all is counted already
    return sum(
        priced(policy.fast_delay_price, job.gpus, policy.usual_startup + job.lost)
        for job in jobs
        if job.tier is Tier.FAST
    )
