"""What would serve and is not bought: the policy leaves it out, or nothing of ours works there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from models.buying import BuyingPolicy, MarketView
from models.market import NoQuote, Offer, OrderBook


def why_left_out(offer: Offer, policy: BuyingPolicy) -> str:
    """Return why an offer is not taken, as in ``3 offers of community hosts``; empty for none."""
    if offer.unusable:
        return offer.unusable
    if offer.refused:
        return f"of {offer.seller or offer.provider} with image {offer.image}, {offer.refused}"
    if not policy.sellers.takes(offer.seller or offer.provider):
        return "of sellers that the policy leaves out (`sellers`)"
    if offer.community and not policy.community:
        return "of community hosts (`community`)"
    if not policy.regions.takes(offer.region):
        return "in regions that the policy leaves out (`regions`)"
    if not policy.countries.takes(offer.country):
        return "in countries that the policy leaves out (`countries`)"
    return ""


def sells(market: MarketView, policy: BuyingPolicy) -> bool:
    """Return whether node time may be bought at a market with books: it is its own seller."""
    return policy.sellers.takes(market.provider) and not policy.countries.include


T = TypeVar("T", OrderBook, OrderBook | NoQuote)


def in_allowed_places(answer: T, policy: BuyingPolicy) -> T:
    """Return a book without what is in regions that the policy leaves out."""
    if isinstance(answer, NoQuote) or not policy.regions:
        return answer

    def there(place: str | None) -> bool:
        return policy.regions.takes(answer.regions.get(place or ""))

    return answer.model_copy(
        update={
            "asks": tuple(level for level in answer.asks if there(level.place)),
            "bids": tuple(level for level in answer.bids if there(level.place)),
        }
    )


def counted(offers: Iterable[Offer], policy: BuyingPolicy) -> str:
    """Return how many offers are left out, by reason; empty for none."""
    reasons = Counter(filter(None, (why_left_out(offer, policy) for offer in offers)))
    if not reasons:
        return ""
    total = reasons.total()
    said = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"{total} {'offer is' if total == 1 else 'offers are'} left out: {said}"


def books_left_out(markets: Sequence[MarketView], policy: BuyingPolicy) -> str:
    """Return which books are left out, and why; empty for none."""
    names = dict.fromkeys(
        market.provider
        for market in markets
        if market.capabilities.fixed_window and market.quotes and not sells(market, policy)
    )
    places = dict.fromkeys(
        book.regions.get(ask.place or "") or "a region that is not named"
        for market in markets
        if market.capabilities.fixed_window and sells(market, policy)
        for quote in market.quotes
        if isinstance(book := quote.answer, OrderBook)
        for ask in book.asks
        if not policy.regions.takes(book.regions.get(ask.place or ""))
    )
    left_out = [f"the books of {name}" for name in names]
    left_out += [f"asks in {', '.join(sorted(places))} (`regions`)"] if places else []
    return f"left out: {', '.join(left_out)}" if left_out else ""
