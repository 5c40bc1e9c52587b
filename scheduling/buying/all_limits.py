"""What would let a pool buy, all of it: behind one limit there may be others."""

from collections.abc import Callable, Iterable, Mapping

from longshore.models.buying import BuyDecision
from longshore.models.buying_policy import BuyingPolicy
from longshore.models.job import Tier
from longshore.models.limit import HeldBy, Limit
from longshore.scheduling.buying.words import WAIT

_MOST_ROUNDS = 3
"""Each is a whole decision."""


def with_all_limits(
    decision: BuyDecision, policy: BuyingPolicy, again: Callable[[BuyingPolicy], BuyDecision]
) -> BuyDecision:
    """Return a decision to buy nothing with everything that keeps from buying.

    What is over a limit on prices or on start-up is not compared with others, nor held against
    the caps. So it is decided `again` with a policy that has the value which that limit needs.
    Where it would wait even then, to raise the limit does not help, and the reason says so.
    """
    limits, held_for = _by_what(decision.limits), decision.held_for

    def with_all() -> BuyDecision:
        found = {"limits": tuple(limits.values()), "held_for": held_for}
        return decision.model_copy(update=found)

    last = decision
    for _ in range(_MOST_ROUNDS):
        liftable = next(filter(_can_lift, last.limits), None)
        if liftable is None:
            return with_all()
        policy = _lifted(policy, liftable)
        last = again(policy)
        if last.plans:
            held_for = tuple(dict.fromkeys(each for plan in last.plans for each in plan.serves))
            return with_all()
        if not last.limits:
            return _waits_too(decision, limits, last)
        limits |= _by_what(last.limits)
        held_for = last.held_for
    lifted = next(filter(_can_lift, last.limits), None)
    if lifted is not None:  # no value of it is known to do
        limits |= {(lifted.name, ""): lifted.model_copy(update={"needs": ""})}
    return with_all()


def _by_what(limits: Iterable[Limit]) -> dict[tuple[str, str], Limit]:
    """Return limits by what has to be changed: caps of several scopes, and the money of several
    budgets, have one name, and what they need begins with whose it is."""
    kinds = tuple(HeldBy)
    return {
        (each.name, each.needs.rpartition(" ")[0] if each.name in kinds else ""): each
        for each in limits
    }


def _can_lift(limit: Limit) -> bool:
    return bool(limit.needs) and limit.name.split(".")[0] in ("max_price", "startup_limit")


def _lifted(policy: BuyingPolicy, limit: Limit) -> BuyingPolicy:
    name, _, tier = limit.name.partition(".")
    value = {tier: limit.needs} if tier else limit.needs
    read = getattr(BuyingPolicy.model_validate({name: value}), name)
    # What the other tier may pay stays as it is.
    value = {**policy.max_price, Tier(tier): read[Tier(tier)]} if tier else read
    return policy.model_copy(update={name: value})


def _waits_too(
    decision: BuyDecision, limits: Mapping[tuple[str, str], Limit], last: BuyDecision
) -> BuyDecision:
    """Return it with the reason to wait beyond the limits; none of them is what has to change."""
    values = " and ".join(f"{limit.name}={limit.needs}" for limit in limits.values())
    too = f"; with {values} it would wait too: {(last.why or last.reason).removeprefix(WAIT)}"
    why = f"{decision.why}{too}" if decision.why else ""
    return decision.model_copy(
        update={"limits": (), "held_for": (), "reason": f"{decision.reason}{too}", "why": why}
    )
