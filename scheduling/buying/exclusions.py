"""Offers that would serve and are not bought, and why."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from longshore.models.buying import BuyingPolicy, MarketView, RefusedOffer
from longshore.models.market import InstanceType, NoQuote, Offer, OrderBook

_MOST_SAID = 200
"""Characters of a refusal."""


def why_excluded(offer: Offer, policy: BuyingPolicy) -> str:
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


def why_refused(refused: RefusedOffer) -> str:
    """Return when and why it was refused, as in ``refused at 2026-11-20 12:00 UTC: no``."""
    said = " ".join(refused.said.rpartition("was refused: ")[2].split())
    return f"refused at {refused.at:%Y-%m-%d %H:%M} UTC: {said[:_MOST_SAID]}"


def with_refusal(offer: Offer, refused: Iterable[RefusedOffer]) -> Offer:
    """Return an offer that says when its seller took no order with its image, if that is so."""
    of = offer.provider, offer.seller, offer.image
    known = [each for each in refused if (each.provider, each.seller, each.image) == of]
    return offer.model_copy(update={"refused": why_refused(known[-1])}) if known else offer


def with_refused(book: OrderBook, refused: Iterable[RefusedOffer]) -> OrderBook:
    """Return a book that says of which of its places its market took no order of late."""
    found: dict[str, str] = {}
    for each in refused:
        if each.provider != book.provider or not _is_of(each, book):
            continue
        if each.place is not None:
            found[each.place] = why_refused(each)
        else:
            # The order named no place: the market had the choice of all.
            places = {ask.place or "" for ask in book.asks}
            found |= dict.fromkeys(places, why_refused(each))
    return book.model_copy(update={"refused": {**book.refused, **found}}) if found else book


def _is_of(refused: RefusedOffer, book: OrderBook) -> bool:
    """Return whether it was an order of the type of a book. A market's own name for a type, that
    of none of ours, is another's."""
    try:
        wanted = InstanceType.parse(refused.instance_type)
        return wanted.takes(InstanceType.parse(book.instance_type))
    except ValueError:
        return False


def sells(market: MarketView, policy: BuyingPolicy) -> bool:
    """Return whether node time may be bought at a market with books: it is its own seller."""
    return takes_books_of(market.provider, policy)


def takes_books_of(provider: str, policy: BuyingPolicy) -> bool:
    """Return the same by the market's name."""
    return policy.sellers.takes(provider) and not policy.countries.include


T = TypeVar("T", OrderBook, OrderBook | NoQuote)


def in_allowed_places(answer: T, policy: BuyingPolicy) -> T:
    """Return a book without what its market refused, or is in regions that the policy leaves
    out."""
    if isinstance(answer, NoQuote) or not (policy.regions or answer.refused):
        return answer

    def there(place: str | None) -> bool:
        refused = (place or "") in answer.refused
        return not refused and policy.regions.takes(answer.regions.get(place or ""))

    return answer.model_copy(
        update={
            "asks": tuple(level for level in answer.asks if there(level.place)),
            "bids": tuple(level for level in answer.bids if there(level.place)),
        }
    )


def counted(offers: Iterable[Offer], policy: BuyingPolicy) -> str:
    """Return how many offers are left out, by reason; empty for none."""
    reasons = Counter(filter(None, (why_excluded(offer, policy) for offer in offers)))
    if not reasons:
        return ""
    total = reasons.total()
    said = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"{total} {'offer is' if total == 1 else 'offers are'} left out: {said}"


def excluded_books(markets: Sequence[MarketView], policy: BuyingPolicy) -> str:
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
    refused = {
        (book.provider, ask.place): f"{_called(book, ask.place)}, {why}"
        for market in markets
        for quote in market.quotes
        if isinstance(book := quote.answer, OrderBook)
        for ask in book.asks
        if (why := book.refused.get(ask.place or ""))
    }
    left_out = [f"the books of {name}" for name in names]
    left_out += [f"asks in {', '.join(sorted(places))} (`regions`)"] if places else []
    left_out += [f"asks in {each}" for each in refused.values()]
    return f"left out: {', '.join(left_out)}" if left_out else ""


def _called(book: OrderBook, place: str | None) -> str:
    return book.places.get(place or "") or place or book.provider
