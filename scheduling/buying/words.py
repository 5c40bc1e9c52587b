"""A decision about buying in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.buying import Coming, Option, OptionKind, PurchasePlan
from longshore.models.job import ASSUMED_DURATION, Tier
from longshore.models.limit import HeldBy, Limit
from longshore.models.market import NoQuote
from longshore.models.money import CENT
from longshore.models.spending import WARM, PurchaseUnderWay
from longshore.models.text import at_most, count, dollars, format_duration, listed
from longshore.scheduling.buying.repeat_guard import BOUGHT_ONCE
from longshore.scheduling.buying.unverifiable_constraints import CANNOT_MEET

UNUSED = "no job would use it"
NO_LENGTHS: Mapping[str, timedelta] = MappingProxyType({})


class Lost(NamedTuple):
    """Why something is not bought."""

    why: str
    limits: tuple[Limit, ...] = ()
    """What forbids it: with all of these changed it is bought."""
    serves: tuple[str, ...] = ()
    """The jobs for which it would be bought then."""


WAIT = "wait: "
"""How a decision to buy nothing begins."""
NOT_LOST = Lost("")
NO_MARKET = Lost("no market is configured", Limit.at(HeldBy.NO_MARKET))
NOTHING_SERVES = Lost("nothing on the markets can serve these jobs")
NOTHING_LEFT = Lost("nothing on the markets that is not left out can serve these jobs")
_MOST = 3
"""Kinds of machine that are named."""
_AS_SAID = 0.995
"""From this share on jobs run as long as they say."""
_MOST_SHOWN = 6
"""Options of a tier."""


def sentence(
    options: Sequence[Option],
    missing: Sequence[NoQuote],
    lost: Lost,
    lasts: Mapping[str, timedelta] = NO_LENGTHS,
    likely: float = 1.0,
) -> str:
    """Return what was decided and why, in one sentence.

    `lost` is why nothing is bought (`why_not`), `lasts` how long each job may run, `likely`
    the share of their time that jobs of late used.
    """
    bought = [option for option in options if option.chosen and option.plans]
    if bought:
        return "; then ".join(_bought(option, options, lasts, likely) for option in bought)
    again = [option.lost for option in options if option.kind.is_in_vain]
    if again and len(again) == len(options):
        return f"{WAIT}{again[0]}"
    away = f" ({'; '.join(quote.detail for quote in missing[:2])})" if missing else ""
    return f"{WAIT}{'; '.join([lost.why, *again[:1]])}{away}"


def why_not(
    options: Sequence[Option], nothing: Lost, flex_price: int, *, by_size: bool = False
) -> Lost:
    """Return why nothing is bought of these options, none of which was chosen, or nothing but to
    wait; `nothing` where there was none. `flex_price` is the policy's, in micro-dollars; `by_size`
    is whether to wait was compared with none of them, as with the seeds' rule."""
    if options and all(option.kind.is_in_vain for option in options):
        return Lost(options[0].lost)
    refused = [o for o in options if not o.chosen and not o.kind.is_in_vain]
    if not refused or (by_size and all(o.lost == UNUSED for o in refused)):
        return nothing
    ruled_out = [o for o in refused if _tried(o) or o.lost.startswith(CANNOT_MEET)]
    compared = [o for o in refused if o not in ruled_out and o.lost != UNUSED]
    if ruled_out and not compared:
        return Lost(ruled_out[0].lost)
    least = min(compared or refused, key=lambda option: option.total)
    if by_size:
        least = next(filter(_by_cap, compared), least)
        return Lost(least.lost, least.limits, _served(least))
    chosen = (o for o in options if o.chosen and o.kind is OptionKind.WAIT)
    waits = next((o for o in chosen if (o.tier, o.round) == (least.tier, least.round)), None)
    if _by_cap(least) and (waits is None or least.total < waits.total):
        return Lost(least.lost, least.limits, _served(least))
    against = f": {dollars(waits.total)} in all, against {dollars(least.total)}" if waits else ""
    why = f"that costs least{against}"
    if any(option.tier is not Tier.FLEX for option in refused):
        return Lost(why)
    needs = _flex_price_for(least, waits, flex_price) if waits else ""
    return Lost(why, (*Limit.at("flex_price", needs), *least.limits), _served(least))


def _served(option: Option) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job_id for plan in option.plans for job_id in plan.serves))


def _flex_price_for(bought: Option, waits: Option, flex_price: int) -> str:
    """Return the `flex_price` at which to buy this costs less than to wait; empty for none."""
    by_price = waits.hoped - bought.hoped
    if by_price <= 0:
        return ""
    more = -(-flex_price * (bought.total - waits.total) // by_price)
    return at_most(flex_price + more + CENT)  # where both cost the same it waits


def nothing_lacks(coming: Mapping[str, Coming]) -> str:
    """Return why nothing is bought where no job lacks anything: for some it is on its way."""
    purchases = dict.fromkeys(each for of_job in coming.values() for each in of_job.purchases)
    if not purchases:
        return "nothing is lacking"
    jobs = count(len(coming), "job")
    named = listed(list(purchases), _MOST)
    return f"nothing more is lacking: {named}, under way, will hold {jobs}"


def title_of(plans: Sequence[PurchasePlan]) -> str:
    """Return what is bought, in a line: ``2 x 1xH100 (prime row-1), while used + ...``."""
    pods = Counter(_machine(plan) for plan in plans if plan.window is None)
    parts = [f"{count} x {machine}, while used" for machine, count in list(pods.items())[:_MOST]]
    if len(pods) > _MOST:
        parts.append(f"{len(pods) - _MOST} kinds more")
    return " + ".join([*parts, *(_block(plan) for plan in plans if plan.window is not None)])


def under_way(purchases: Iterable[PurchaseUnderWay], *, whose: str = "") -> str:
    """Return what is on its way and when it is there, such as ``purchase p-1 of 1 x 8xH100 at
    prime ($12.00 committed) is under way, ready about 14:05 UTC``; `whose` follows "under way"."""

    def ready(each: PurchaseUnderWay) -> str:
        at = f"{each.ready_at:%H:%M} UTC"
        if each.refused:
            return f"ready after {at} at best: a machine is asked for again, after: {each.refused}"
        return f"{'late: it was to be ' if each.late else ''}ready about {at}"

    return "; ".join(
        f"purchase {each.id} of {each.nodes} x {each.instance_type} at {each.provider}"
        f"{' (simulated)' if each.simulated else ''} "
        f"({dollars(each.committed_micro_usd)} committed) is under way{whose}, {ready(each)}"
        for each in purchases
    )


def best_options(options: Sequence[Option]) -> tuple[Option, ...]:
    """Return the few options that a reader looks for first: what was chosen, to wait, the best."""
    found: list[Option] = []
    for tier in dict.fromkeys(option.tier for option in options):
        mine = [option for option in options if option.tier is tier]
        first = [o for o in mine if o.chosen or o.kind is OptionKind.WAIT or o.kind.is_in_vain]
        others = sorted((o for o in mine if o not in first), key=lambda o: (_by_cap(o), o.total))
        found += [*first, *others][:_MOST_SHOWN]
    return tuple(found)


def line_of(option: Option) -> str:
    """Return an option in a line: ``wait: $304.00 in all (costs $214.70 more)``."""
    if option.kind.is_in_vain:
        return f"{option.tier}, {option.title}: {option.lost}"
    why = "chosen" if option.chosen else option.lost
    return f"{option.tier}, {option.title}: {dollars(option.total)} in all ({why})"


def cost_of_difference(more: int) -> str:
    """Return why an option lost against one that costs so much less, in micro-dollars."""
    return f"costs {dollars(more)} more" if more else "costs the same, and comes later in the list"


def _machine(plan: PurchasePlan) -> str:
    row = f" {plan.offer.id}" if plan.offer else ""
    if plan.nodes > 1:
        fabric = f" with {plan.fabric}" if plan.fabric else ""
        return f"cluster of {plan.nodes} x {plan.instance_type}{fabric} ({plan.provider}{row})"
    return f"{plan.instance_type} ({plan.provider}{row})"


def _block(plan: PurchasePlan) -> str:
    assert plan.window is not None
    length = format_duration(plan.window.length)
    fabric = f" with {plan.fabric}" if plan.fabric else ""
    return f"{plan.provider}: {plan.nodes} x {plan.instance_type}{fabric} for {length}"


def _bought(
    option: Option, options: Iterable[Option], lasts: Mapping[str, timedelta], likely: float
) -> str:
    served = _served(option)
    real = sum(not name.startswith(WARM) for name in served)
    jobs = count(real, "job")
    if lengths := sorted(lasts[job_id] for job_id in served if job_id in lasts):
        first, last = format_duration(lengths[0]), format_duration(lengths[-1])
        jobs += f" of {first}" + (f" to {last}" if last != first else "")
        assumed = f"{format_duration(ASSUMED_DURATION)} is assumed where a job does not say"
        jobs += f" ({assumed})" if ASSUMED_DURATION in lengths else ""
        jobs += f", of which those of late used {likely:.0%}" if likely < _AS_SAID else ""
    if real < len(served):
        jobs = f"{jobs} and the warm target" if real else "the warm target"
    text = f"buy {option.title} for {dollars(option.committed)}, for {jobs}"
    others = [
        other
        for other in options
        if (other.tier, other.round) == (option.tier, option.round) and other is not option
    ]
    waited = next((other for other in others if other.kind is OptionKind.WAIT), None)
    if waited is None:
        return text
    against = f"against {dollars(waited.total)} for waiting"
    less = f" and without {dollars(option.leftover)} left over" if option.leftover else ""
    return f"{text}; with delay{less} {dollars(option.total)} in all, {against}"


def _tried(option: Option) -> bool:
    return option.lost.startswith(BOUGHT_ONCE)


def _by_cap(option: Option) -> bool:
    return bool(option.limits)
