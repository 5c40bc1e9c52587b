"""Whether a pool buys what its jobs lack, and where it does not, what would let it."""

from datetime import UTC, datetime
from typing import NamedTuple

from models.pool import PoolSpec
from models.spending import BuyingRecord, HeldBy
from scheduling.buying.words import WAIT


class Standing(NamedTuple):
    """How a pool stands to buying, for a job that waits in it."""

    says: str
    """Such as "buys what is missing", or why it does not; empty where it may not buy at all."""
    helps: str = ""
    """What would let it buy; empty where it does."""

    @property
    def buys(self) -> bool:
        return bool(self.says) and not self.helps


NO_BUYING = Standing("")


def standing_of(
    pool: PoolSpec, stopped: str, last: BuyingRecord | None, since: datetime | None = None
) -> Standing:
    """Return how a pool stands to buying.

    `stopped` is why all buying is stopped now, `last` what the pool decided last. What was decided
    before `since` was decided without the job: of that counts only that there is no market, and a
    spending cap of the same day is told with when it kept the pool from buying.
    """
    if not pool.buying.enabled:
        return NO_BUYING
    if stopped:
        return Standing(
            f"buying is stopped: {stopped}", "let pools buy again: `longshore market resume`"
        )
    held_by = last.held_by if last is not None else ""
    if last is None or held_by in ("", HeldBy.STOPPED):
        return Standing("buys what is missing")
    if held_by == HeldBy.NO_MARKET:
        return Standing(
            "no market is configured to buy at",
            "configure a market where the control worker runs: `LONGSHORE_MARKET` and a token "
            f"(docs/settings.md); or start a node: `longshore agent --pool {pool.name}`",
        )
    if since is None or last.at < since:
        return Standing(f"buys what is missing{_kept_lately(last, since)}")
    says = f"it buys nothing now: {last.reason.removeprefix(WAIT)}"
    if held_by == HeldBy.REFUSED:
        return Standing(says, "raise the cap that is named: `longshore market caps` shows all")
    if held_by == HeldBy.COOLDOWN:
        setting = f"`longshore pool set {pool.name} --buying cooldown=...`"
        return Standing(says, f"wait until then, or make the cooldown shorter: {setting}")
    setting = f"`longshore pool set {pool.name} --buying {held_by}=...`"
    return Standing(says, f"raise `{held_by}`: {setting}")


def _kept_lately(last: BuyingRecord, since: datetime | None) -> str:
    """Return that a spending cap kept the pool from buying for others, on the day of `since`."""
    capped = last.held_by == HeldBy.REFUSED or last.held_by.startswith("caps.")
    if not capped or since is None or last.at.date() != since.astimezone(UTC).date():
        return ""
    return (
        f"; at {last.at:%H:%M} UTC it bought nothing for others: {last.reason.removeprefix(WAIT)}"
    )
