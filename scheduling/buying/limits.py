"""The limits of what is bought: near to what was decided, whatever the book becomes meanwhile.

A limit is at most the recommended one, at most the policy's slippage above the last GPU's price
(`prices.py`), and where costs were compared at most what makes its option cost as much as the next
best one: beyond that the other would have been chosen.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from longshore.models.buying import Option, PurchasePlan


def below_the_next(best: Option, options: Iterable[Option]) -> Option:
    """Return an option with limits at which it costs no more than the next best of `options`."""
    others = [option.total for option in options if option is not best and not option.lost]
    if not others:
        return best
    plans = bounded(best.plans, min(others) - best.total)
    return best.model_copy(
        update={"plans": plans, "max_total": sum(plan.max_total for plan in plans)}
    )


def bounded(plans: Sequence[PurchasePlan], more: int) -> tuple[PurchasePlan, ...]:
    """Return orders with limits at which they may cost so many micro-dollars more than expected.

    Never below the price of the last GPU. What they may cost more is spread evenly over the
    GPU-hours of node time; a machine that is billed as it runs keeps its limit.
    """
    hours = sum(_gpu_hours(plan) for plan in plans)
    if not hours:
        return tuple(plans)
    return tuple(_bounded(plan, Fraction(more) / hours) for plan in plans)


def _bounded(plan: PurchasePlan, more: Fraction) -> PurchasePlan:
    hours = _gpu_hours(plan)
    if plan.marginal is None or not hours:
        return plan
    limit = max(plan.marginal, min(plan.limit, int(plan.expected_cost / hours + more)))
    return plan.model_copy(update={"limit": limit, "max_total": -(-limit * hours // 1)})


def _gpu_hours(plan: PurchasePlan) -> Fraction:
    """Return the GPU-hours of an order of node time; 0 for a machine that is billed as it runs."""
    if plan.window is None:
        return Fraction(0)
    seconds = -(-plan.window.length.total_seconds() // 1)
    return Fraction(int(seconds), 3600) * plan.gpus
