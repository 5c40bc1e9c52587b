"""A decision about buying in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

from models.buying import Option, OptionKind, PurchasePlan
from models.market import NoQuote
from models.money import about as about
from models.units import format_duration
from scheduling.buying.again import BOUGHT_ONCE

NO_LENGTHS: Mapping[str, timedelta] = MappingProxyType({})
_MOST = 3
"""Kinds of machine that are named."""
_MOST_SHOWN = 6
"""Options of a tier."""


def sentence(
    options: Sequence[Option],
    missing: Sequence[NoQuote],
    dear: Sequence[str] = (),
    lasts: Mapping[str, timedelta] = NO_LENGTHS,
) -> str:
    """Return what was decided and why, in one sentence.

    `dear` is what a cap kept out, `lasts` how long each job is taken to run.
    """
    bought = [option for option in options if option.chosen and option.plans]
    if bought:
        return "; then ".join(_bought(option, options, lasts) for option in bought)
    again = [option.lost for option in options if option.kind.is_in_vain]
    if again and len(again) == len(options):
        return f"wait: {again[0]}"
    refused = [o for o in options if not o.chosen and not o.kind.is_in_vain]
    nothing = "nothing on the markets can serve these jobs"
    why = "it costs least" if refused else ": ".join([nothing, *dear[:1]])
    if refused and all(_by_cap(option) or _tried(option) for option in refused):
        why = refused[0].lost
    away = f" ({'; '.join(quote.detail for quote in missing[:2])})" if missing else ""
    return f"wait: {'; '.join([why, *again[:1]])}{away}"


def title_of(plans: Sequence[PurchasePlan]) -> str:
    """Return what is bought, in a line: ``2 x 1xH100 (prime row-1), while used + ...``."""
    pods = Counter(_machine(plan) for plan in plans if plan.window is None)
    parts = [f"{count} x {machine}, while used" for machine, count in list(pods.items())[:_MOST]]
    if len(pods) > _MOST:
        parts.append(f"{len(pods) - _MOST} kinds more")
    return " + ".join([*parts, *(_block(plan) for plan in plans if plan.window is not None)])


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
    return f"{option.tier}, {option.title}: {about(option.total)} in all ({why})"


def cost_of_difference(more: int) -> str:
    """Return why an option lost against one that costs so much less, in micro-dollars."""
    return f"costs {about(more)} more" if more else "costs the same, and comes later in the list"


def _machine(plan: PurchasePlan) -> str:
    row = f" {plan.offer.id}" if plan.offer else ""
    return f"{plan.instance_type} ({plan.provider}{row})"


def _block(plan: PurchasePlan) -> str:
    assert plan.window is not None
    length = format_duration(plan.window.length)
    return f"{plan.provider}: {plan.nodes} x {plan.instance_type} for {length}"


def _bought(option: Option, options: Iterable[Option], lasts: Mapping[str, timedelta]) -> str:
    served = dict.fromkeys(job_id for plan in option.plans for job_id in plan.serves)
    jobs = "1 job" if len(served) == 1 else f"{len(served)} jobs"
    if lengths := sorted(lasts[job_id] for job_id in served if job_id in lasts):
        first, last = format_duration(lengths[0]), format_duration(lengths[-1])
        jobs += f" of {first}" + (f" to {last}" if last != first else "")
    text = f"buy {option.title} for {about(option.committed)}, for {jobs}"
    others = [
        other
        for other in options
        if (other.tier, other.round) == (option.tier, option.round) and other is not option
    ]
    waited = next((other for other in others if other.kind is OptionKind.WAIT), None)
    if waited is None:
        return text
    against = f"against {about(waited.total)} for waiting"
    return f"{text}; with delay {about(option.total)} in all, {against}"


def _tried(option: Option) -> bool:
    return option.lost.startswith(BOUGHT_ONCE)


def _by_cap(option: Option) -> bool:
    return " over " in option.lost
