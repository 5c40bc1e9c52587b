"""The warm target over hours: what is bought for it is kept, until the next one is there.

The decision to buy and the decision to let go are made minute by minute, each from what the
others did, as pool and blocks make them.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from models.block_end import BlockFacts, BlockMachine, BlockOptionKind
from models.buying import CapacityUnderWay, MarketView, PurchasePlan
from scheduling.buying.block_end import decide_block, kept
from scheduling.buying.warm import counts_until
from tests.scheduling.test_block_end import a_block, a_scene, by_use, quote
from tests.support.buying import NOW, a_release, cloud, decided, exchange

MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE
POD = cloud(("2.00", 8), startup=4 * MINUTE)
WINDOW = exchange(("2.00", 80))
BIDS = quote(bids=(("1.90", 80),))


@dataclass
class Bought:
    name: str
    block: BlockFacts
    up_at: datetime


@dataclass
class Pool:
    """A pool without a queue that keeps one machine warm."""

    market: MarketView
    policy: dict[str, Any]
    refused: bool = False
    """Whether a cap refuses that a machine goes on."""
    now: datetime = NOW
    machines: list[Bought] = field(default_factory=list[Bought])
    bought: list[Bought] = field(default_factory=list[Bought])
    left_early: list[str] = field(default_factory=list[str])
    without: list[datetime] = field(default_factory=list[datetime])
    """When no machine was up."""

    def minute(self) -> None:
        self.machines = [each for each in self.machines if self.now < each.block.ends_at]
        for each in list(self.machines):
            self._end_of(each)
        plans = decided(
            [], self.market, now=self.now, policy=self.policy, releases=self._up(),
            under_way=self._coming(),
        ).plans  # fmt: skip
        for plan in plans:
            self.add(plan)
        if not self._up():
            self.without.append(self.now)
        self.now += MINUTE

    def add(self, plan: PurchasePlan) -> None:
        name = f"n{len(self.bought) + 1}"
        ends_at = plan.ends_at(self.now)
        assert ends_at is not None
        made = by_use if plan.window is None else a_block
        block = made(
            id=name, starts_at=self.now, ends_at=ends_at,
            **({"idle_since": None} if plan.window is None else {}),
        )  # fmt: skip
        self.machines.append(Bought(name, block, max(plan.ready_at, self.now + MINUTE)))
        self.bought.append(self.machines[-1])

    def _end_of(self, machine: Bought) -> None:
        up = machine.up_at <= self.now
        changes: dict[str, Any] = {}
        if machine.block.by_use:
            changes = {"idle_since": machine.up_at} if up else {"coming": machine.name}
        machine.block = machine.block.model_copy(update=changes)
        if up:
            machine.block = machine.block.model_copy(update={"coming": None})
        scene = a_scene(
            block=machine.block, now=self.now, policy=self.policy, under_way=self._coming(),
            machines=(BlockMachine(name=machine.name),) if up else (), rest=BIDS,
            pool=self._up(), billed={
                each.name: 16 for each in self.machines
                if each.block.by_use and each.up_at <= self.now
            },
        )  # fmt: skip
        decision = decide_block(scene)
        if decision.kind is BlockOptionKind.GO_ON and self.refused:
            decision = kept(decision, BlockOptionKind.GO_ON, "a cap")
        if decision.kind is BlockOptionKind.GO_ON:
            machine.block = machine.block.model_copy(update={"ends_at": decision.until})
        elif decision.kind in (BlockOptionKind.LET_GO, BlockOptionKind.SELL):
            self.machines.remove(machine)
            if self.now <= counts_until(machine.block.ends_at, scene.policy, scene.packing):
                self.left_early.append(f"{machine.name} at {self.now:%H:%M}: {decision.reason}")

    def _up(self) -> tuple[Any, ...]:
        return tuple(
            a_release(each.name, expires_at=each.block.ends_at)
            for each in self.machines
            if each.up_at <= self.now
        )

    def _coming(self) -> tuple[CapacityUnderWay, ...]:
        return tuple(
            CapacityUnderWay(
                id=each.name, instance_type="8xH100-80GB", nodes=1, provider=each.block.provider,
                expected_at=each.up_at, until=each.block.ends_at,
            )
            for each in self.machines
            if each.up_at > self.now
        )  # fmt: skip


@pytest.mark.parametrize("limit", [5, 40])
@pytest.mark.parametrize(
    ("first", "then", "refused"),
    [(WINDOW, POD, False), (WINDOW, WINDOW, False), (POD, POD, True), (POD, POD, False)],
    ids=["window-then-pod", "windows", "pods-that-may-not-go-on", "pods"],
)
def test_each_machine_of_the_warm_target_is_bought_once_and_kept_until_the_next_is_there(
    first: MarketView, then: MarketView, refused: bool, limit: int
):
    policy = {"fast_warm_gpus": 8, "fast_warm_type": "H100", "startup_limit": limit * MINUTE}
    pool = Pool(first, policy, refused)
    pool.minute()
    (one,) = pool.bought
    pool.market = then
    while pool.now < NOW + 4 * HOUR:
        pool.minute()
    assert pool.left_early == []
    # Each holds the target until it no longer counts, and the next is bought only then.
    ends = [one.block.ends_at for one in pool.bought]
    assert len(set(ends)) == len(ends)
    starts = [each.block.starts_at for each in pool.bought]
    lead = (limit + 5) * MINUTE
    for before, start in zip(ends, starts[1:], strict=False):
        assert before - lead <= start
    up_at = one.up_at
    assert [at for at in pool.without if at >= up_at] == []
