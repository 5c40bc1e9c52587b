"""Sells what is left of paid windows, where the product would: `scheduling.buying.block_end`.

No sale brings more than was paid for the same time, and the first hour of a window stays paid. So
a plan that sells costs no less than one whose window ends when its sold time begins, which is one
that the bound knows.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from benchmarks.buying_world import KIND, START, STEP
from longshore.models.block_end import (
    BlockDecision,
    BlockFacts,
    BlockMachine,
    BlockScene,
    SaleTerms,
)
from longshore.models.buying import BuyingPolicy, CapacityUnderWay, Release
from longshore.models.pool import PoolPacking
from longshore.scheduling.buying.block_end import decide_block
from longshore.scheduling.buying.costs import usual_demand

if TYPE_CHECKING:
    from benchmarks.buying_replay import Machine, Pool
    from benchmarks.buying_world import World

_POLICY = BuyingPolicy(enabled=True)
_TERMS = SaleTerms(fee_bps=400)
"""Those of the simulated exchange."""
_HOUR = timedelta(hours=1)


def sell_rests(
    pool: "Pool", releases: Sequence[Release], under_way: Sequence[CapacityUnderWay]
) -> None:
    """Have the idle nodes of windows looked at, one after the other, and sold as is decided.

    A node takes no work from then on. Its time until the sold one begins stays paid.
    """
    held = {job.node_id for job in pool.running}
    idle = [
        machine for machine in pool.machines
        if machine.is_up(pool.now) and machine.is_window and machine.node.id not in held
    ]  # fmt: skip
    for machine in idle:
        there = [each for each in releases if each.node in [m.node for m in pool.machines]]
        for sale in _decided(pool, machine, there, under_way).sales:
            micro, hours = pool.receipts[machine.purchase]
            since = max(sale.window.start, machine.bought_at + _HOUR)
            length = len(machine.node.gpus) * ((sale.window.end - since) / _HOUR)
            got = min(sale.proceeds - sale.fee, int(machine.paid * length))
            pool.receipts[machine.purchase] = micro - got, hours - length
            pool.shop.sell(sale.limit, sale.window, pool.step)
            pool.machines.remove(machine)
            pool.sold += 1


def best_bids(world: "World", steps: int) -> list[float]:
    """Return by step the most that any bid pays for a GPU-hour then, in dollars and less the fee,
    of those that came before: more than a seller gets, who needs one for all of his time."""
    left = 1 - _TERMS.fee_bps / 10_000
    found = [0.0] * steps
    for bid in {bid.number: bid for bids in world.bids_by_step for bid in bids}.values():
        first = max(-(-(bid.start - START) // STEP), bid.seen_from + 1)
        for step in range(first, min((bid.end - START) // STEP, steps)):
            found[step] = max(found[step], bid.price / 1e6 * left)
    return found


def _decided(
    pool: "Pool",
    machine: "Machine",
    releases: Sequence[Release],
    under_way: Sequence[CapacityUnderWay],
) -> BlockDecision:
    node = machine.node
    assert node.expires_at is not None
    scene = BlockScene(
        block=BlockFacts(
            id=node.id, provider="exchange", instance_type=KIND, tier=node.tier,
            gpus_per_node=len(node.gpus), starts_at=machine.bought_at, ends_at=node.expires_at,
            price=machine.paid, resellable=True,
        ),
        machines=(BlockMachine(name=node.id),),
        pool=tuple(releases), queue=pool.jobs(), under_way=tuple(under_way),
        demand=usual_demand(pool.demand, node.tier, pool.now), rest=pool.shop.bids(pool.step),
        terms=_TERMS, policy=_POLICY, packing=PoolPacking(), now=pool.now,
    )  # fmt: skip
    return decide_block(scene)
