"""Queues, markets and policies for tests of buying. Prices are dollars per GPU-hour."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.models.buying import (
    BookQuote,
    BuyDecision,
    BuyingPolicy,
    CapacityUnderWay,
    MarketView,
    Release,
    Unmet,
    UnmetJob,
)
from longshore.models.caps_left import CapLeft, CapOf, CapsLeft
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.market import Capabilities, Level, NoQuote, NoQuoteReason, Offer, OrderBook
from longshore.models.money import micro_of
from longshore.models.node import GPU, Node
from longshore.models.placement import PackingPolicy, RunningJob
from longshore.models.pool import PoolPacking
from longshore.scheduling.buying.start_below import decide_below
from longshore.scheduling.buying.state import BuyingState

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
EXCHANGE = Capabilities(
    order_book=True, fixed_window=True, resellable=True, idempotent=True, fast_fabric=True,
    lot_gpus=8, grain=timedelta(minutes=1),
)  # fmt: skip
CLOUD = Capabilities(offer_list=True, interruptible=True)


def a_job(name: str = "a", gpus: int = 1, hours: float = 1, **fields: Any) -> UnmetJob:
    of_job = {key: fields.pop(key) for key in ("tenant", "start_by") if key in fields}
    defaults: dict[str, Any] = {
        "tier": Tier.FAST, "gpu_type": "H100", "vram_per_gpu": 80, "submitted_at": NOW,
    }  # fmt: skip
    request = JobRequest(
        id=name, gpus=gpus, expected_duration=timedelta(hours=hours), **{**defaults, **fields}
    )
    return UnmetJob(request=request, **of_job)


def exchange(
    *asks: tuple[str, int], bids: Sequence[tuple[str, int]] = (), **fields: Any
) -> MarketView:
    """Return a market of 8xH100 in whole nodes; asks and bids are dollars and GPUs."""
    book = OrderBook(
        provider="exchange", instance_type="8xH100-80GB", lot=8, observed_at=NOW,
        asks=tuple(Level(price=micro_of(price), gpus=gpus) for price, gpus in asks),
        bids=tuple(Level(price=micro_of(price), gpus=gpus) for price, gpus in bids),
    )  # fmt: skip
    quote = BookQuote(instance_type="8xH100-80GB", answer=book)
    return MarketView(
        provider="exchange", capabilities=EXCHANGE, quotes=(quote,), observed_at=NOW, **fields
    )


def cloud(
    *offers: tuple[str, int],
    startup: timedelta | None = None,
    kind: str = "H100-80GB",
    **fields: Any,
) -> MarketView:
    """Return a market with offers of H100, or another kind: dollars per GPU-hour, and GPUs."""
    return MarketView(
        provider="cloud", capabilities=CLOUD, observed_at=NOW,
        offers=tuple(
            Offer(
                provider="cloud", id=f"o{number}", instance_type=f"{gpus}x{kind}", gpus=gpus,
                price=micro_of(price), startup=startup, **fields,
            )
            for number, (price, gpus) in enumerate(offers)
        ),
    )  # fmt: skip


def book_of(market: MarketView) -> OrderBook:
    (quote,) = market.quotes
    assert isinstance(quote.answer, OrderBook)
    return quote.answer


def with_book(market: MarketView, **changes: Any) -> MarketView:
    """Return the market with other fields of its one book."""
    book = book_of(market).model_copy(update=changes)
    quote = market.quotes[0].model_copy(update={"answer": book})
    return market.model_copy(update={"quotes": (quote,)})


def away_exchange() -> MarketView:
    return MarketView(
        provider="exchange", capabilities=EXCHANGE, observed_at=NOW, away="no answer within 15 s"
    )


def empty_exchange() -> MarketView:
    answer = NoQuote(reason=NoQuoteReason.EMPTY, detail="the book has no asks")
    quote = BookQuote(instance_type="8xH100-80GB", answer=answer)
    return MarketView(provider="exchange", capabilities=EXCHANGE, quotes=(quote,), observed_at=NOW)


def a_release(
    name: str = "n1", gpus: int = 8, busy_hours: float | None = None, **fields: Any
) -> Release:
    """Return a node of H100; all of it is held for so many hours."""
    node = Node(
        id=name, gpu_type="H100", gpus=tuple(GPU(index=i, vram=80) for i in range(gpus)),
        cpus=64, ram=512, **fields,
    )  # fmt: skip
    if busy_hours is None:
        return Release(node=node)
    job = RunningJob(
        job_id=f"on-{name}", node_id=name, gpu_indices=tuple(range(gpus)), vram_per_gpu=80,
        cpus=1, ram=1, expected_end=NOW + timedelta(hours=busy_hours),
    )  # fmt: skip
    return Release(node=node, running=(job,))


def caps_left(**lefts: int) -> CapsLeft:
    """Return what is left of a pool's own caps: ``purchase``, ``day``, ``FAST``, or a tenant's;
    in micro-dollars."""
    kinds = {"purchase": CapOf.PURCHASE, "day": CapOf.DAY, "FAST": CapOf.TIER, "FLEX": CapOf.TIER}
    caps = (
        CapLeft(
            of=(of := kinds.get(name, CapOf.TENANT)), most=left, left=left,
            name="" if of in (CapOf.PURCHASE, CapOf.DAY) else name,
        )
        for name, left in lefts.items()
    )  # fmt: skip
    return CapsLeft(caps=tuple(caps))


def limits_of(decision: BuyDecision) -> dict[str, str]:
    """Return what keeps from buying, with what each would have to be."""
    return {limit.name: limit.needs for limit in decision.limits}


def decided(
    jobs: Iterable[UnmetJob],
    *markets: MarketView,
    under_way: Sequence[CapacityUnderWay] = (),
    releases: Sequence[Release] = (),
    caps: CapsLeft | None = None,
    now: datetime = NOW,
    unmet: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    packing: PackingPolicy | None = None,
    **fields: Any,
) -> BuyDecision:
    """Decide with buying switched on; `policy` and the rest are fields of the policy."""
    state = BuyingState(
        unmet=Unmet(jobs=tuple(jobs), **(unmet or {})), packing=packing or PoolPacking(),
        under_way=under_way, releases=releases, markets=markets, caps_left=caps or CapsLeft(),
    )  # fmt: skip
    usual = {"enabled": True, "fast_delay_price": "$10.00", "idle_after": "10m"}
    return decide_below(state, BuyingPolicy(**{**usual, **(policy or {}), **fields}), now)
