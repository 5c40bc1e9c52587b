"""How good recommended limits were: each is held against the market's prices in the hour after.

The later prices of a need are those of the later recommendations for the same need: same market,
type, size, length of window. The watch of the markets makes one for each of its sizes all the
time.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta

from longshore.models.market_memory import Judged, Quality, Recommendation

HORIZON = timedelta(hours=1)
"""For how long a limit may wait for its fill."""
_SIZES = ((8, "1-8"), (64, "9-64"))
_LARGER = "65+"

Need = tuple[str, str, int, timedelta | None, bool]


def judge(
    recommendations: Iterable[Recommendation], horizon: timedelta = HORIZON
) -> tuple[Judged, ...]:
    """Return each recommendation with how it turned out, oldest first."""
    by_need: dict[Need, list[Recommendation]] = defaultdict(list)
    for each in recommendations:
        by_need[_need(each)].append(each)
    judged: list[Judged] = []
    for made in by_need.values():
        made.sort(key=lambda each: each.made_at)
        times = [each.made_at for each in made]
        for each in made:
            first = bisect_right(times, each.made_at)
            last = bisect_right(times, each.made_at + horizon)
            judged.append(_judge_one(each, made[first:last]))
    return tuple(sorted(judged, key=lambda each: each.recommendation.made_at))


def summarize(judged: Iterable[Judged]) -> tuple[Quality, ...]:
    """Return the quality by market, type, size and whether it is simulated, in that order."""
    groups: dict[tuple[str, str, str, bool], list[Judged]] = defaultdict(list)
    for each in judged:
        of = each.recommendation
        groups[of.provider, of.instance_type, size_class(of.gpus), of.simulated].append(each)
    return tuple(_quality(key, groups[key]) for key in sorted(groups))


def size_class(gpus: int) -> str:
    """Return the class of a size: ``1-8``, ``9-64``, ``65+`` GPUs."""
    return next((name for most, name in _SIZES if gpus <= most), _LARGER)


def _need(made: Recommendation) -> Need:
    length = made.window.length if made.window else None
    return made.provider, made.instance_type, made.gpus, length, made.simulated


def _judge_one(made: Recommendation, later: Sequence[Recommendation]) -> Judged:
    best = min((quote.average for quote in later if quote.average is not None), default=None)
    filled = next((quote for quote in (made, *later) if _covers(made.limit, quote)), None)
    return Judged(
        recommendation=made,
        quotes=len(later),
        at_once=filled is made,
        filled_after=filled.made_at - made.made_at if filled else None,
        best_later=best,
        over_best=_over(filled.average if filled else None, best),
    )


def _covers(limit: int, quote: Recommendation) -> bool:
    """Return whether an order with this limit would have got all its GPUs."""
    return quote.sufficient and quote.marginal is not None and quote.marginal <= limit


def _quality(key: tuple[str, str, str, bool], all_of: Sequence[Judged]) -> Quality:
    provider, instance_type, size, simulated = key
    judged = [each for each in all_of if each.quotes]
    made = [each.recommendation for each in all_of]
    return Quality(
        provider=provider,
        instance_type=instance_type,
        size=size,
        simulated=simulated,
        made=len(all_of),
        judged=len(judged),
        at_once=sum(each.at_once for each in judged),
        in_time=sum(each.filled_after is not None for each in judged),
        over_best=_mean([each.over_best for each in judged]),
        headroom=_mean([_over(each.limit, each.average) for each in made if each.sufficient]),
    )


def _over(price: int | None, reference: int | None) -> float | None:
    """Return (price - reference) / reference; None where that says nothing."""
    if price is None or not reference:
        return None
    return (price - reference) / reference


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
