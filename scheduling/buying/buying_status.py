"""Whether a pool buys what its jobs lack, and if not, which setting would allow it."""

import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from longshore.models.job import Tier
from longshore.models.limit import HeldBy, Limit
from longshore.models.pool import PoolSpec
from longshore.models.spending import BuyingRecord
from longshore.scheduling.buying.words import WAIT


class BuyingStatus(NamedTuple):
    """Whether a pool buys for a job that waits in it."""

    says: str
    """Such as "buys what is missing", or why it does not; empty where it may not buy at all."""
    helps: str = ""
    """What would let it buy; empty where it does."""
    chosen: bool = False
    """It buys nothing because to wait costs least, or because it has just bought."""
    in_cooldown: bool = False
    """It has just bought."""

    @property
    def buys(self) -> bool:
        return bool(self.says) and not self.helps


NO_BUYING = BuyingStatus("")
_THEN = "what is bought, and what else keeps it, is decided then"
"""Meanwhile no market is asked: nobody knows it."""
_AFTER = "that is for the others, and what it buys for this job is decided after them"
_STAYS = (
    HeldBy.REFUSED, HeldBy.BUDGET, HeldBy.COOLDOWN, HeldBy.MARKET_AWAY, HeldBy.UNREADABLE,
)  # fmt: skip
"""What holds beside caps, whatever the job."""
_OF_PRICES = {Tier.FAST: ("max_price.FAST",), Tier.FLEX: ("max_price.FLEX", "flex_price")}
"""What holds for all jobs of a tier, at the prices of then."""


class Failed(NamedTuple):
    """The newest purchase of a pool, where it has ended and no node came of it."""

    at: datetime
    why: str


def for_job(record: BuyingRecord, job_id: str) -> BuyingRecord:
    """Return what a pool decided as one of its jobs is told it: why nothing is bought for this
    one, and not what is said of other jobs alone."""
    options = tuple(each for each in record.options if each.job_id in ("", job_id))
    update: dict[str, object] = {"options": options}
    if job_id in record.in_vain:
        update |= {"reason": f"{WAIT}{record.in_vain[job_id]}", "limits": ()}
    elif record.why:
        update["reason"] = record.why
    return record.model_copy(update=update)


def buying_status(
    pool: PoolSpec,
    stopped: str,
    last: BuyingRecord | None,
    since: datetime | None = None,
    failed: Failed | None = None,
    tier: Tier | None = None,
    job_id: str = "",
) -> BuyingStatus:
    """Return the buying status of a pool, for a job, or one of a tier, where one is named.

    `stopped` is why all buying is stopped now, `last` what the pool decided last, `failed` what
    became of its newest purchase. What was decided before `since` was decided without the job: of
    that counts only that there is no market. A spending cap, or a price for its tier, that kept
    the pool from buying the same day is told with when it did.
    """
    if not pool.buying.enabled:
        return NO_BUYING
    if stopped:
        return BuyingStatus(
            f"buying is stopped: {stopped}",
            f"let pools buy again: `longshore market resume`; {_THEN}",
        )
    if why := pool.packing.unfunded.get(job_id):
        return BuyingStatus(
            f"nothing is bought for it: {why}",
            f"have a budget pay for it: `longshore fund {job_id or 'JOB'}` says what would",
        )
    if last is not None and _named(last) == [HeldBy.NO_MARKET]:
        return BuyingStatus(
            "no market is configured to buy at",
            "configure a market where the control worker runs: `longshore market simulate`, or "
            "`LONGSHORE_MARKET` and a token (docs/settings.md); or start a node: "
            f"`longshore agent --pool {pool.name}`",
        )
    if last is not None and job_id:
        last = for_job(last, job_id)
    if last is None or since is None or last.at < since:
        vain = f"; {_in_vain(failed)}" if failed else ""
        return BuyingStatus(f"buys what is missing{_kept_lately(last, since, tier)}{vain}")
    for_others = bool(job_id and last.held_for) and job_id not in last.held_for
    of_others = any(_of_another_tier(name, tier) for name in _named(last))
    waits_behind = False
    if (for_others and job_id not in last.in_vain) or of_others:
        waits_behind = job_id in last.lacking
        if not waits_behind:  # something holds it
            last = last.model_copy(update={"limits": (), "reason": ""})
    buys_nothing = last.limits or last.reason.startswith(WAIT)
    if HeldBy.STOPPED in _named(last) or not (buys_nothing or failed):
        return BuyingStatus("buys what is missing")
    whom = ", and decides first about other jobs" if waits_behind else ""
    why = f"it buys nothing now{whom}: {last.reason.removeprefix(WAIT)}"
    says = [why] if buys_nothing else []
    if failed:
        says.append(_in_vain(failed))
    chosen = {*_named(last)} <= {"flex_price", HeldBy.COOLDOWN} and not failed
    helps = _helps(pool, last, failed)
    helps = f"{helps}; {_AFTER}" if waits_behind else helps
    return BuyingStatus("; ".join(says), helps, chosen, HeldBy.COOLDOWN in _named(last))


def _of_another_tier(held_by: str, tier: Tier | None) -> bool:
    """Return whether a setting holds for jobs of another tier alone."""
    others = [other for other in Tier if tier and other is not tier]
    return any(held_by in _OF_PRICES[o] or held_by.endswith(f".{o}") for o in others)


def _in_vain(failed: Failed) -> str:
    return f"its last purchase, {failed.at:%H:%M} UTC, came to nothing: {failed.why}"


def _named(last: BuyingRecord) -> list[str]:
    return [limit.name for limit in last.limits]


def _helps(pool: PoolSpec, last: BuyingRecord, failed: Failed | None) -> str:
    """Return what would let the pool buy: all of it."""
    if not last.limits:
        look = "`longshore purchases --all`" if failed else _dry_run(pool)
        return f"see {'what was tried' if failed else 'what is for sale'}: {look}"
    return what_helps(pool, last.limits)


def what_helps(pool: PoolSpec, limits: Sequence[Limit]) -> str:
    """Return what would let a pool buy that all of these keep from it, with commands."""
    own = [each for each in limits if each.name not in tuple(HeldBy)]
    helps = [_helps_beside(pool, each) for each in limits if each not in own]
    if own:
        names = " and ".join(f"`{each.name}`" for each in own)
        helps.insert(0, f"raise {names}{_command(pool, own)}")
    # Where a cap keeps it as well, the tier alone does not help.
    alone = [each.name for each in limits] == ["flex_price"]
    tier = "; or give the job the tier FAST" if alone else ""
    return f"{'; and '.join(helps)}{tier}"


def _helps_beside(pool: PoolSpec, limit: Limit) -> str:
    """Return what helps against what is no setting of the pool's policy."""
    match limit.name:
        case HeldBy.BUDGET:
            # What the database refused names whose it is, and not to what it would have to be.
            which = limit.needs or "the money of the budget that is named"
            return f"raise {which} in its budget file: `longshore budget apply FILE`"
        case HeldBy.REFUSED if limit.needs:
            return f"raise the cap: `longshore market caps {_quoted(limit.needs)}`"
        case HeldBy.REFUSED:
            return "raise the cap that is named: `longshore market caps` shows all"
        case HeldBy.COOLDOWN:
            shorter = _command(pool, [limit])
            return f"wait until then, or make the cooldown shorter{shorter}; {_THEN}"
        case HeldBy.UNREADABLE:
            return "see `longshore doctor`: correct the row, or run the version that stored it"
        case _:
            return f"see what the markets say: `longshore doctor`, {_dry_run(pool)}"


def _command(pool: PoolSpec, limits: Iterable[Limit]) -> str:
    values = (shlex.quote(f"{each.name}={each.needs}") for each in limits if each.needs)
    given = "".join(f" --buying {value}" for value in values)
    return f": `longshore pool set {pool.name}{given}`" if given else ""


def _quoted(words: str) -> str:
    return " ".join(shlex.quote(word) for word in words.split())


def _dry_run(pool: PoolSpec) -> str:
    return f"`longshore buy --dry-run --pool {pool.name}`"


def _kept_lately(last: BuyingRecord | None, since: datetime | None, tier: Tier | None) -> str:
    """Return what kept the pool from buying for others, on the day of `since`, and may still."""
    if last is None or since is None or last.at.date() != since.astimezone(UTC).date():
        return ""
    stays = (*_STAYS, *(_OF_PRICES[tier] if tier else ()))
    if not any(name in stays or name.startswith("caps.") for name in _named(last)):
        return ""
    return (
        f"; at {last.at:%H:%M} UTC it bought nothing for others: {last.reason.removeprefix(WAIT)}"
    )
