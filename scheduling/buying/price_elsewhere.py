"""What machines like those of a block cost elsewhere, of what its pool may buy."""

from collections.abc import Iterable

from longshore.models.block_end import BlockFacts
from longshore.models.buying import BuyingPolicy, MarketView
from longshore.scheduling.buying.fleet import shape_of
from longshore.scheduling.buying.prices import pod_sources


def prices_elsewhere(
    markets: Iterable[MarketView], block: BlockFacts, policy: BuyingPolicy
) -> list[int]:
    """Return what a GPU-hour of each offer costs that could take the work of one machine of the
    block, in micro-dollars: of a larger machine the whole is paid."""
    shape = shape_of(block.instance_type)
    if shape is None:
        return []
    return [
        -(-source.offer.price * source.gpus // shape.gpus)
        for source in pod_sources(markets, block.tier, policy)
        if source.shape.gpu_type == shape.gpu_type
        and source.shape.gpus >= shape.gpus
        and not (source.is_cluster or source.offer.prepaid)
    ]
