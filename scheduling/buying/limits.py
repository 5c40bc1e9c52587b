"""The limits of what is bought: near to what was decided, whatever the book becomes meanwhile.

A limit is at most the recommended one, at most the policy's slippage above the last GPU's price
(`prices.py`), and at most what makes its option cost as much as the next best one: beyond that
the other would have been chosen.
"""

from collections.abc import Iterable
from fractions import Fraction

from models.buying import Option, PurchasePlan


def below_the_next(best: Option, options: Iterable[Option]) -> Option:
    """Return an option with limits at which it costs no more than the next best of `options`.

    Never below the price of the last GPU. What the option may cost more is spread evenly over the
    GPU-hours of its orders.
    """
    others = [option.total for option in options if option is not best and not option.lost]
    hours = sum(_gpu_hours(plan) for plan in best.plans)
    if not others or not hours:
        return best
    more = Fraction(min(others) - best.total) / hours
    plans = tuple(_bounded(plan, more) for plan in best.plans)
    return best.model_copy(
        update={"plans": plans, "max_total": sum(plan.max_total for plan in plans)}
    )


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
