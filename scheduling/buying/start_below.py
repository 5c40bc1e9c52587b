"""Buying beside thresholds: nothing is bought for a job above the price below which it starts.

One order may serve several jobs. So it is decided in turns: first for those without a threshold of
their own, then for them and those with the highest, and so on down; in each turn nothing costs
more than the threshold of any job that is in it. The first turn that buys is the decision; the
others come with the next.
"""

from dataclasses import replace
from datetime import datetime

from longshore.models.buying import BuyDecision, BuyingPolicy, Unmet
from longshore.scheduling.buying.plan import decide
from longshore.scheduling.buying.state import BuyingState

_MOST_TURNS = 4
"""Each is a whole decision. Of more thresholds those between are counted as the next lower."""


def decide_below(state: BuyingState, policy: BuyingPolicy, now: datetime) -> BuyDecision:
    """Return `decide` for jobs of which some have a threshold; `policy.below` is that of all."""
    unmet = state.unmet
    turns = _turns(unmet, policy.below)
    if turns == [policy.below]:
        return decide(state, policy, now)
    first: BuyDecision | None = None
    for below in turns:
        jobs = tuple(job for job in unmet.jobs if _may_pay(job.request.start_below, below))
        asked = replace(state, unmet=unmet.model_copy(update={"jobs": jobs}))
        found = decide(asked, policy.model_copy(update={"below": below}), now)
        if found.plans:
            return found
        if first is None or (lacks_nothing(first) and not lacks_nothing(found)):
            first = found
        else:
            first = first.model_copy(update={"coming": found.coming})
    assert first is not None
    return first


def lacks_nothing(decision: BuyDecision) -> bool:
    """Return whether nothing was looked for, or only what is bought for nobody now."""
    return all(option.kind.is_in_vain for option in decision.options)


def _turns(unmet: Unmet, of_pool: int | None) -> list[int | None]:
    own = {job.request.start_below for job in unmet.jobs} - {None}
    lower = sorted(
        (each for each in own if each is not None and (of_pool is None or each < of_pool)),
        reverse=True,
    )
    if len(lower) > _MOST_TURNS:
        lower = [*lower[: _MOST_TURNS - 1], lower[-1]]
    return [of_pool, *lower]


def _may_pay(own: int | None, below: int | None) -> bool:
    return own is None or (below is not None and below <= own)
