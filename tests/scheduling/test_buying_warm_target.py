"""The warm target over hours: what is bought for it is kept, until the next one is there.

The decision to buy and the decision to let go are made minute by minute, each from what the
others did, as pool and blocks make them.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.models.block_end import BlockFacts, BlockMachine, BlockOptionKind
from longshore.models.buying import (
    BuyingRule,
    CapacityUnderWay,
    MarketView,
    PurchasePlan,
    Release,
)
from longshore.scheduling.buying import scale_down
from longshore.scheduling.buying.block_end import decide_block, kept
from longshore.scheduling.buying.scale_down import removable_nodes
from longshore.scheduling.buying.warm_target import counts_until, short_of_warm
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


ALWAYS = {("window-then-pod", 40), ("pods-that-may-not-go-on", 40)}
"""Of four hours, minute by minute, those that everybody runs: `make faults` has all."""


@pytest.mark.parametrize(
    ("first", "then", "refused", "limit"),
    [
        pytest.param(*markets, limit, id=f"{name}-{limit}", marks=marks)
        for name, markets in {
            "window-then-pod": (WINDOW, POD, False),
            "windows": (WINDOW, WINDOW, False),
            "pods-that-may-not-go-on": (POD, POD, True),
            "pods": (POD, POD, False),
        }.items()
        for limit in (5, 40)
        for marks in [() if (name, limit) in ALWAYS else pytest.mark.exhaustive]
    ],
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


def in_use(name: str, gpus: int, used: int, **fields: Any) -> Release:
    """Return a node on which jobs use some of the GPUs for hours."""
    release = a_release(name, gpus, busy_hours=9 if used else None, **fields)
    running = (
        job.model_copy(update={"gpu_indices": tuple(range(used))}) for job in release.running
    )
    return release.model_copy(update={"running": tuple(running)})


def leave(pool: tuple[Release, ...], **policy: Any) -> list[str]:
    """Return the nodes that leave, each a machine of its own that has been idle for long."""
    left: list[str] = []
    for release in pool:
        scene = a_scene(
            *(each for each in pool if each.node.id not in left), policy=policy,
            block=by_use(gpus_per_node=len(release.node.gpus)),
            billed={each.node.id: 16 for each in pool},
            machines=(BlockMachine(name=release.node.id),),
        )  # fmt: skip
        if decide_block(scene).kind is BlockOptionKind.LET_GO:
            left.append(release.node.id)
    return left


def bought(pool: tuple[Release, ...], **policy: Any) -> bool:
    return bool(decided([], POD, policy=policy, releases=pool).plans)


def test_free_gpus_here_and_there_are_no_whole_machine_for_those_who_buy_and_those_who_keep():
    halves = (in_use("a", 8, 4), in_use("b", 8, 4))
    assert bought(halves, fast_warm_gpus=16)
    whole = (*halves, a_release("c"))
    assert not bought(whole, fast_warm_gpus=16)
    assert leave(whole, fast_warm_gpus=16) == []
    # One whole machine is the target, and two are there.
    assert leave((*whole, a_release("d")), fast_warm_gpus=16) == ["c"]


def test_the_warm_target_is_as_large_as_the_machines_that_may_be_bought():
    four = cloud(("2.00", 4), startup=4 * MINUTE)
    policy: dict[str, Any] = {"fast_warm_gpus": 8, "instance_types": ("4xH100",)}
    plans = decided([], four, policy=policy).plans
    assert [plan.gpus_per_node for plan in plans] == [4, 4]
    pair = (a_release("a", 4), a_release("b", 4))
    assert leave(pair, **policy) == []
    assert leave((*pair, a_release("c", 4)), **policy) == ["a"]


def test_the_seeds_rule_keeps_what_it_counts():
    ones = tuple(a_release(f"n{number}", 1) for number in range(4))
    policy: dict[str, Any] = {"rule": "seed", "fast_warm_gpus": 3}
    assert leave(ones, **policy) == ["n0"]
    assert not bought(ones[1:], **policy)


@example(sizes=[(8, 4), (8, 4), (8, 0)], target=16, rule="least-cost", ends=[None] * 5)
@given(
    sizes=st.lists(st.sampled_from(((1, 0), (2, 0), (4, 0), (8, 0), (8, 4), (8, 6))), max_size=5),
    target=st.integers(0, 20),
    rule=st.sampled_from(("least-cost", "seed")),
    ends=st.lists(st.sampled_from((None, 10, 600)), min_size=5, max_size=5),
)
def test_what_may_leave_is_not_bought_again(
    sizes: list[tuple[int, int]], target: int, rule: str, ends: list[int | None]
):
    pool = tuple(
        in_use(f"n{number}", gpus, used, expires_at=None if end is None else NOW + end * MINUTE)
        for number, ((gpus, used), end) in enumerate(zip(sizes, ends, strict=False))
    )
    policy: dict[str, Any] = {"fast_warm_gpus": target, "rule": rule}
    if not bought(pool, **policy):
        gone = leave(pool, **policy)
        rest = tuple(each for each in pool if each.node.id not in gone)
        assert not bought(rest, **policy), f"{gone} left"


def test_a_warm_target_of_many_machines_is_kept_and_bought_whole():
    pool = tuple(a_release(f"n{number:03}", 8) for number in range(66))
    scene = a_scene(
        *pool, policy={"fast_warm_gpus": 66 * 8}, block=by_use(gpus_per_node=8),
        billed={each.node.id: 16 for each in pool}, machines=(BlockMachine(name="n000"),),
    )  # fmt: skip
    assert removable_nodes(scene) == []
    assert bought(pool[1:], fast_warm_gpus=66 * 8)


def test_what_lacks_is_asked_once_for_nodes_that_are_alike(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def counted(*arguments: Any) -> int:
        asked.append(1)
        return short_of_warm(*arguments)

    monkeypatch.setattr(scale_down, "short_of_warm", counted)
    pool = tuple(
        a_release(f"n{n}", 8, block_id=f"b{n}", expires_at=NOW + (20 + n) * HOUR)
        for n in range(12)
    )
    scene = a_scene(
        *pool, policy={"fast_warm_gpus": 11 * 8}, block=by_use(gpus_per_node=8),
        billed={each.node.id: 16 for each in pool}, machines=(BlockMachine(name="n9"),),
    )  # fmt: skip
    assert removable_nodes(scene) == []  # n0 goes first
    assert len(asked) <= 4


@pytest.mark.parametrize("named", ["H100", "h100", "H100-80GB", "8xH100", "8xH100-80GB"])
@pytest.mark.parametrize("rule", list(BuyingRule))
def test_the_type_that_is_kept_warm_may_be_named_as_a_machine(named: str, rule: BuyingRule):
    a10 = cloud(("1.00", 8), kind="A10-24GB")
    (plan,) = decided(
        [], exchange(("2.00", 64)), a10, fast_warm_gpus=8, fast_warm_type=named, rule=rule
    ).plans
    assert plan.instance_type == "8xH100-80GB"
