"""What holds for every purchase, whatever waits and whatever the markets show."""

from datetime import timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import (
    BuyDecision,
    CapacityUnderWay,
    MarketView,
    Option,
    OptionKind,
    UnmetJob,
)
from longshore.models.job import Tier
from longshore.models.market import NoQuote
from longshore.models.money import MICRO
from longshore.scheduling.buying.caps import counted_by_tenant
from longshore.scheduling.buying.costs import UNSERVED
from tests.support.buying import (
    NOW,
    a_job,
    a_release,
    away_exchange,
    book_of,
    caps_left,
    cloud,
    decided,
    exchange,
    with_book,
)
from tests.support.searches import examples

HOUR = timedelta(hours=1)
STARTUP, MARGIN, IDLE = timedelta(minutes=5), timedelta(minutes=5), timedelta(minutes=10)
FAST_DELAY = 10 * MICRO

cents = st.integers(100, 400)


@st.composite
def queues(draw: st.DrawFn, most: int = 6) -> list[UnmetJob]:
    sizes = st.sampled_from((1, 1, 2, 3, 4, 8, 8))
    hours = st.sampled_from((0.5, 1, 2, 3.5, 7))
    return [
        a_job(
            f"j{number}", draw(sizes), draw(hours), tier=draw(st.sampled_from(Tier)),
            priority=draw(st.integers(0, 10)), tenant=draw(st.sampled_from(("red", "blue"))),
        )
        for number in range(draw(st.integers(0, most)))
    ]  # fmt: skip


@st.composite
def markets(draw: st.DrawFn) -> list[MarketView]:
    asks = draw(st.lists(st.tuples(cents, st.integers(1, 40)), max_size=5))
    bids = draw(st.lists(st.tuples(st.integers(50, 300), st.integers(1, 40)), max_size=3))
    rows = draw(st.lists(st.tuples(cents, st.sampled_from((1, 2, 4, 8))), max_size=5))
    return [
        exchange(
            *((f"{price / 100}", gpus) for price, gpus in asks),
            bids=[(f"{price / 100}", gpus) for price, gpus in bids],
        ),
        cloud(*((f"{price / 100}", gpus) for price, gpus in rows)),
    ]


@examples(6)
@given(queues(), markets(), st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_no_purchase_is_over_a_cap(
    jobs: list[UnmetJob], seen: list[MarketView], purchase: int, day: int, tenant: int
):
    caps = caps_left(purchase=purchase * MICRO, day=day * MICRO, red=tenant * MICRO)
    highest = {Tier.FAST: 3 * MICRO, Tier.FLEX: 2 * MICRO}
    decision = decided(jobs, *seen, caps=caps, max_price=highest)
    assert decision.max_total <= day * MICRO
    assert counted_by_tenant(jobs, decision.plans).get("red", 0) <= tenant * MICRO
    for plan in decision.plans:
        assert plan.expected_cost <= plan.max_total <= purchase * MICRO
        assert plan.limit <= highest[plan.tier]


@examples(6)
@given(queues(), markets())
def test_windows_cover_what_they_are_bought_for_and_lots_are_whole(
    jobs: list[UnmetJob], seen: list[MarketView]
):
    by_id = {job.request.id: job.request for job in jobs}
    decision = decided(jobs, *seen, flex_price=3 * MICRO)
    for option in decision.options:
        starts = {served.job_id: served.start for served in option.starts}
        for plan in option.plans:
            assert plan.serves
            if plan.window is None:
                assert plan.offer is not None
                assert plan.gpus == plan.offer.gpus
                continue
            assert plan.gpus % 8 == 0
            for job_id in plan.serves:
                start = starts[job_id]
                assert start is not None
                assert start >= plan.ready_at
                assert start + by_id[job_id].expected_duration + MARGIN <= plan.window.end


@given(queues(), markets(), st.integers(1, 4))
def test_nothing_is_bought_for_jobs_that_fit_on_what_is_there_or_comes(
    jobs: list[UnmetJob], seen: list[MarketView], minutes: int
):
    at = NOW + timedelta(minutes=minutes)
    nodes = len(jobs)  # one for each
    coming = [
        CapacityUnderWay(
            id=f"p-{tier}", tier=tier, instance_type="8xH100-80GB", nodes=nodes, expected_at=at
        )
        for tier in Tier
        if nodes
    ]
    assert decided(jobs, *seen, under_way=coming).plans == ()
    there = [a_release(f"{tier}-{number}", tier=tier) for tier in Tier for number in range(nodes)]
    assert decided(jobs, *seen, releases=there).plans == ()


@given(markets(), st.sampled_from(("seed", "least-cost")))
def test_nothing_is_bought_for_nobody(seen: list[MarketView], rule: str):
    assert decided([], *seen, rule=rule).plans == ()


@given(queues())
def test_away_markets_are_waited_for_with_their_reason(jobs: list[UnmetJob]):
    decision = decided(jobs, away_exchange())
    assert decision.plans == ()
    assert [type(quote) for quote in decision.waits_for] == [NoQuote]
    assert all(option.kind is OptionKind.WAIT for option in decision.options)


@examples(6)
@given(queues(), markets())
def test_the_chosen_option_costs_least_and_its_terms_are_right(
    jobs: list[UnmetJob], seen: list[MarketView]
):
    decision = decided(jobs, *seen)
    by_id = {job.request.id: job for job in jobs}
    taken = 0
    rounds = dict.fromkeys((option.tier, option.round) for option in decision.options)
    for tier, number in rounds:
        listed = [o for o in decision.options if (o.tier, o.round) == (tier, number)]
        (best,) = (option for option in listed if option.chosen)
        assert best.total == min(option.total for option in listed)
        for option in listed:
            assert option.committed == money(option, seen, taken)
            assert 0 <= option.leftover <= option.committed
            assert option.delay == sum(
                delay(by_id[served.job_id], served.start) for served in option.starts
            )
        taken += blocks_of(best)


@given(
    st.integers(1, 8), st.integers(1, 80), cents,
    st.dictionaries(st.sampled_from((1, 2, 4, 8)), cents), st.integers(0, 50),
)  # fmt: skip
def test_for_one_job_nothing_costs_less_than_what_is_chosen(
    gpus: int, quarters: int, ask: int, rows: dict[int, int], delay_dollars: int
):
    job = a_job(gpus=gpus, hours=quarters / 4)
    seen = [
        exchange((f"{ask / 100}", 64)),
        cloud(*((f"{price / 100}", size) for size, price in rows.items())),
    ]
    decision = decided([job], *seen, fast_delay_price=delay_dollars * MICRO)
    length = STARTUP + quarters * HOUR / 4 + MARGIN
    late = Fraction(delay_dollars * gpus * 5, 60)
    every = [Fraction(delay_dollars * gpus * 24)]  # waiting
    every += [
        Fraction(ask * 8 * nodes, 100) * Fraction(lasts, 4) + late
        for nodes in (1, 2, 3)
        for lasts in range(1, 97)
        if lasts * HOUR / 4 >= max(length, HOUR)
    ]
    used = Fraction((STARTUP + quarters * HOUR / 4 + IDLE) // timedelta(minutes=1), 60)
    every += [Fraction(p * size, 100) * used + late for size, p in rows.items() if size >= gpus]
    (best,) = (option for option in decision.options if option.chosen and option.round == 0)
    assert abs(best.total - min(every) * MICRO) <= 2  # rounding


@examples(6)
@given(queues(4), markets(), st.integers(10, 99))
def test_lower_prices_never_buy_less_for_more(
    jobs: list[UnmetJob], seen: list[MarketView], percent: int
):
    high, low = decided(jobs, *seen), decided(jobs, *(cheaper(m, percent) for m in seen))
    for tier in Tier:
        fewer = gpu_hours(low, tier) < gpu_hours(high, tier)
        assert not (fewer and total(low, tier) > total(high, tier) + 1)


def money(option: Option, seen: list[MarketView], taken: int) -> int:
    """Return what an option costs, walking the asks one node at a time from `taken` on."""
    (book,) = (book_of(market) for market in seen if market.quotes)
    nodes = sorted(ask.price for ask in book.asks for _ in range(ask.gpus // 8))
    cost = 0
    for plan in option.plans:
        if plan.window is None:
            cost += plan.expected_cost
            continue
        hours = Fraction(plan.window.length // timedelta(seconds=1), 3600)
        cost -= -sum(nodes[taken : taken + plan.nodes]) * 8 * hours // 1
        taken += plan.nodes
    return cost


def blocks_of(option: Option) -> int:
    """Return how many nodes are bought from the book."""
    return sum(plan.nodes for plan in option.plans if plan.window is not None)


def delay(job: UnmetJob, start) -> int:
    request = job.request
    if request.tier is Tier.FAST:
        waited = UNSERVED if start is None else start - NOW
        return FAST_DELAY * request.gpus * (waited // timedelta(seconds=1)) // 3600
    if start is not None and start <= NOW + 24 * HOUR:
        return 0
    return int(2 * MICRO * request.gpus * (request.expected_duration / HOUR))


def cheaper(market: MarketView, percent: int) -> MarketView:
    def lower(item):
        return item.model_copy(update={"price": max(item.price * percent // 100, 1)})

    if market.quotes:
        return with_book(market, asks=tuple(map(lower, book_of(market).asks)))
    return market.model_copy(update={"offers": tuple(map(lower, market.offers))})


def gpu_hours(decision: BuyDecision, tier: Tier) -> float:
    return sum(
        plan.gpus * (plan.window.hours if plan.window else 1)
        for plan in decision.plans
        if plan.tier is tier
    )


def total(decision: BuyDecision, tier: Tier) -> int:
    """Return what a tier costs in all: what was bought in each round, and the delay in the end."""
    chosen: list[Option] = [o for o in decision.options if o.chosen and o.tier is tier]
    spent = sum(option.committed - option.leftover for option in chosen)
    return spent + (chosen[-1].delay if chosen else 0)
