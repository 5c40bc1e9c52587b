"""The exchange with its money and its pools, on a clock that stands still."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.models.market import Side
from longshore.models.money import MICRO
from longshore.simulation.market.background import Profile
from longshore.simulation.market.exchange import NothingToSellError, OrderRecord, fee_of
from longshore.simulation.market.instances import OverPoolError, Pool
from longshore.simulation.market.ledger import ShortError
from longshore.simulation.market.market import Market, Options
from longshore.simulation.market.rates import format_rate, parse_rate, rate_of_gpu_hour
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.world import NoMachines

START = 1_789_999_200.0
"""A whole hour."""
HOUR = 60
SKU = "isku_h100a"


class Scene:
    """A market with one pool."""

    def __init__(
        self, profile: Profile = Profile.EMPTY, *, seed: int = 1, dollars: int = 10_000
    ) -> None:
        self.machines = NoMachines()
        self.lines: list[str] = []
        options = Options(
            seed=seed, profile=profile, speed=0, balance=dollars * MICRO, start=START, run="t"
        )
        self.market = Market(options, self.machines, self.lines.append)
        self.exchange = self.market.exchange
        self.ledger = self.market.ledger
        self.sku = self.exchange.skus[SKU]
        self.pool = self.market.instances.make_pool("train", "wksp", {})
        self.minute = self.market.world.clock.minute

    def ask(self, dollars: str, nodes: int, *, hours: int = 24, side: Side = Side.SELL) -> None:
        window = Schedule.of(self.minute, self.minute + hours * HOUR, nodes)
        self.exchange.script(SKU, side, rate_of_gpu_hour(Decimal(dollars)), window)

    def place(
        self,
        dollars: str,
        nodes: int,
        *,
        side: Side = Side.BUY,
        start: int = 0,
        hours: int = 4,
        standing: bool = False,
        partial: bool = False,
    ) -> OrderRecord:
        begin = self.minute + start * HOUR
        wanted = Schedule.of(begin, begin + hours * HOUR, nodes)
        return self.exchange.place(
            side, self.pool, self.sku, wanted, rate_of_gpu_hour(Decimal(dollars)),
            standing=standing, partial=partial,
        )  # fmt: skip

    def bought(self, nodes: int, hours: int = 4) -> Pool:
        """Return the pool with time in it, paid at $2 a GPU-hour."""
        self.ask("2", nodes, hours=hours)
        assert self.settled(self.place("2", nodes, hours=hours)).status == "filled"
        return self.pool

    def settled(self, order: OrderRecord) -> OrderRecord:
        self.advance(1)
        return order

    def advance(self, seconds: float) -> None:
        self.market.world.clock.advance(seconds)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_order_is_pending_first_and_settles_a_moment_later(scene: Scene):
    scene.ask("2", 4)
    order = scene.place("3", 2)
    assert order.status == "pending"
    assert scene.settled(order).status == "filled"
    assert list(order.filled) == [(scene.minute, scene.minute + 240, 2)]


def test_it_is_charged_what_it_cost_and_only_that(scene: Scene):
    scene.ask("2", 4)
    order = scene.place("3", 2)
    assert scene.ledger.available == 10_000 * MICRO - 3 * 8 * 2 * 4 * MICRO
    scene.settled(order)
    fill = order.fills[0]
    assert fill.price == rate_of_gpu_hour(Decimal(2)) == 266_667  # the grain is $0.000060
    cost = fill.price * 2 * 240
    assert scene.ledger.balance == scene.ledger.available == 10_000 * MICRO - cost


def test_what_could_cost_more_than_there_is_is_refused(scene: Scene):
    with pytest.raises(ShortError):
        scene.place("100", 100, hours=100)
    assert scene.ledger.available == 10_000 * MICRO


def test_without_a_counterparty_it_is_cancelled_and_the_money_is_free(scene: Scene):
    scene.ask("2.50", 4)
    order = scene.settled(scene.place("2", 2))
    assert (order.status, order.fills, scene.ledger.holds) == ("cancelled", [], {})


def test_all_or_nothing_unless_partial(scene: Scene):
    scene.ask("2", 3)
    assert scene.settled(scene.place("2", 4)).status == "cancelled"
    partial = scene.settled(scene.place("2", 4, partial=True))
    assert (partial.status, partial.filled.most) == ("partially_filled", 3)
    assert scene.settled(partial).status == "cancelled"  # and owns its fills all the same
    assert scene.ledger.holds == {}


def test_a_part_of_the_window_in_pieces(scene: Scene):
    scene.ask("2", 1, hours=2)
    late = Schedule.of(scene.minute + 180, scene.minute + 600, 2)
    scene.exchange.script(SKU, Side.SELL, rate_of_gpu_hour(Decimal("1.80")), late)
    order = scene.settled(scene.place("2", 2, partial=True))
    start = scene.minute
    assert list(order.filled) == [(start, start + 120, 1), (start + 180, start + 240, 2)]


def test_a_standing_order_waits_and_fills_at_its_own_price(scene: Scene):
    order = scene.settled(scene.place("2.10", 2, standing=True, start=1))
    assert order.status == "standing"
    scene.ask("1.90", 4)
    assert order.status == "filled"
    assert order.fills[0].price == rate_of_gpu_hour(Decimal("2.10"))


def test_a_standing_order_ends_with_its_window(scene: Scene):
    order = scene.settled(scene.place("2", 2, standing=True))
    scene.advance(4 * 3600)
    assert (order.status, scene.ledger.holds) == ("cancelled", {})


def test_a_cancellation_takes_effect_later_and_may_be_overtaken(scene: Scene):
    order = scene.settled(scene.place("2", 2, standing=True))
    scene.exchange.cancel(order)
    assert order.status == "standing"
    assert scene.settled(order).status == "cancelled"
    raced = scene.settled(scene.place("2", 4, standing=True, partial=True))
    scene.market.world.faults.set("cancel_race")
    scene.exchange.cancel(raced)
    assert scene.settled(raced).status == "cancelled"
    assert raced.filled.most == 2
    assert scene.pool.of(SKU).at(scene.minute) == 2


def test_unused_time_is_sold_for_money_less_the_fee(scene: Scene):
    scene.bought(4)
    scene.ask("1.50", 2, hours=8, side=Side.BUY)
    before = scene.ledger.balance
    sale = scene.settled(scene.place("1.50", 2, side=Side.SELL, start=1, hours=3))
    proceeds = sale.fills[0].price * 2 * 180
    assert sale.status == "filled"
    assert scene.ledger.balance == before + proceeds - fee_of(proceeds)
    assert [nodes for _, _, nodes in scene.pool.of(SKU)] == [4, 2]


def test_nobody_sells_what_they_do_not_hold_or_twice(scene: Scene):
    with pytest.raises(NothingToSellError):
        scene.place("1", 1, side=Side.SELL)
    scene.bought(2)
    scene.place("9", 2, side=Side.SELL, standing=True)
    with pytest.raises(NothingToSellError):
        scene.place("9", 1, side=Side.SELL, standing=True)


def test_an_instance_runs_while_its_pool_covers_it(scene: Scene):
    scene.bought(1, hours=2)
    instance = scene.market.instances.create(scene.pool, scene.sku, image="i")
    assert instance.status == "awaiting_allocation"
    scene.advance(60)
    assert (instance.status, list(scene.machines.running)) == ("running", [instance.id])
    scene.advance(2 * 3600)
    assert (instance.status, scene.machines.running) == ("terminated", {})


def test_the_least_important_instance_goes_first_when_time_is_sold(scene: Scene):
    scene.bought(3)
    made = [
        scene.market.instances.create(scene.pool, scene.sku, image="i", priority=priority)
        for priority in ("normal", "yield", "critical")
    ]
    scene.advance(60)
    scene.ask("2", 2, side=Side.BUY)
    scene.minute += 2
    sale = Schedule.of(scene.minute, scene.minute + 60, 2)
    scene.exchange.place(Side.SELL, scene.pool, scene.sku, sale, rate_of_gpu_hour(Decimal(1)))
    scene.advance(120)
    assert [each.status for each in made] == ["terminated", "terminated", "running"]


def test_no_more_instances_than_the_pool_will_ever_have_nodes(scene: Scene):
    scene.bought(1)
    scene.market.instances.create(scene.pool, scene.sku, image="i")
    with pytest.raises(OverPoolError):
        scene.market.instances.create(scene.pool, scene.sku, image="i")


def test_terminating_gives_the_node_to_the_next_and_no_money_back(scene: Scene):
    scene.bought(2, hours=1)
    first = scene.market.instances.create(scene.pool, scene.sku, image="i")
    scene.advance(60)
    balance = scene.ledger.balance
    scene.market.instances.terminate(first)
    second = scene.market.instances.create(scene.pool, scene.sku, image="i")
    scene.advance(60)
    assert (second.status, scene.ledger.balance) == ("running", balance)


def test_rates_are_decimal_strings_with_a_point():
    assert format_rate(parse_rate("16.800000")) == "16.800000"
    assert format_rate(parse_rate("16.800031")) == "16.800060"  # to the nearest grain
    for wrong in ("16", "1e3.0", "-1.0", ".5", 16.8, None):
        with pytest.raises(ValueError, match="decimal string"):
            parse_rate(wrong)


def test_the_same_seed_gives_the_same_market_and_another_seed_another():
    def history(seed: int) -> list[str]:
        scene = Scene(Profile.CALM, seed=seed)
        scene.settled(scene.place("3", 2, partial=True))
        scene.advance(6 * 3600)
        return [*scene.lines, *map(str, scene.market.cloud.offers.rows)]

    assert history(1) == history(1) != history(2)


@pytest.mark.parametrize("profile", [Profile.CALM, Profile.SPIKE, Profile.THIN])
def test_strangers_ask_and_bid_around_the_usual_price_and_trade(profile: Profile):
    scene = Scene(profile)
    for _ in range(8):
        scene.advance(3600)
        book = scene.exchange.book(SKU)
        asks, bids = book.orders(Side.SELL), book.orders(Side.BUY)
        assert all(0.4 < each.price / rate_of_gpu_hour(Decimal(2)) < 8 for each in (*asks, *bids))
        if profile is not Profile.THIN:
            minute = scene.market.world.clock.minute
            assert sum(nodes for _, nodes in book.depth(Side.SELL, minute + 1, minute + 61)) > 8
        assert len(asks) < 120
    assert profile is Profile.THIN or any("simulated trade" in line for line in scene.lines)


commands = st.lists(
    st.tuples(
        st.sampled_from(["ask", "bid", "buy", "buy", "sell", "cancel", "wait", "race"]),
        st.integers(150, 250),
        st.integers(1, 5),
        st.integers(1, 6),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(commands)
def test_money_and_time_add_up_whatever_is_done(
    steps: list[tuple[str, int, int, int, bool, bool]],
):
    scene = Scene()
    for do, cents, nodes, hours, standing, partial in steps:
        carry_out(scene, do, f"{cents / 100:.2f}", nodes, hours, standing, partial)
        scene.minute = scene.market.world.clock.minute
        check(scene)
    scene.advance(7 * 3600)
    check(scene)
    assert scene.ledger.holds == {}


def carry_out(
    scene: Scene, do: str, dollars: str, nodes: int, hours: int, standing: bool, partial: bool
) -> None:
    if do in ("ask", "bid"):
        side = Side.SELL if do == "ask" else Side.BUY
        scene.ask(dollars, nodes, hours=hours, side=side)
    elif do in ("buy", "sell"):
        side = Side.BUY if do == "buy" else Side.SELL
        try:
            scene.place(dollars, nodes, side=side, hours=hours, standing=standing, partial=partial)
        except (ShortError, NothingToSellError):
            return
    elif do == "wait":
        scene.advance(nodes * 600)
    else:
        if do == "race":
            scene.market.world.faults.set("cancel_race")
        for order in [o for o in scene.exchange.orders.values() if not o.over][:1]:
            scene.exchange.cancel(order)
    scene.advance(1)


def check(scene: Scene) -> None:
    orders = scene.exchange.orders.values()
    spent = earned = fees = 0
    held = Schedule()
    sold = Schedule()
    for order in orders:
        for fill in order.fills:
            cost = fill.price * fill.schedule.node_minutes
            if order.side is Side.BUY:
                assert fill.price <= order.limit
                spent, held = spent + cost, held.plus(fill.schedule)
            else:
                assert fill.price >= order.limit
                earned, fees, sold = earned + cost, fees + fee_of(cost), sold.plus(fill.schedule)
        assert order.wanted.covers(order.filled)
        assert order.status != "filled" or not order.remaining
    assert scene.ledger.balance == 10_000 * MICRO - spent + earned - fees
    assert scene.ledger.balance == scene.ledger.movements[-1].balance
    assert scene.pool.of(SKU) == held.minus(sold)
    for order_id, hold in scene.ledger.holds.items():
        order = scene.exchange.orders[order_id]
        assert not order.over
        assert hold >= order.limit * order.remaining.node_minutes
    assert scene.ledger.available >= 0
