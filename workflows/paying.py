"""What a job knows of who pays for it, for the Temporal UI. Nobody tells it where its tenant has
no budget."""

from datetime import datetime

from longshore.models.funding import FundingClass, PaidFor


class Paying:
    """Who pays for the attempt that runs."""

    def __init__(self, listed: str | None) -> None:
        """`listed` is the class that the search attribute tells."""
        self.listed = listed
        self._now: PaidFor | None = None
        self._since: datetime | None = None
        self._had_payer = False
        self._says = ""

    @property
    def funding(self) -> FundingClass | None:
        """Return of which class those of its GPUs are that it would lose first."""
        return self._now.funding if self._now else None

    @property
    def words(self) -> str:
        """Return who pays, in a sentence; empty where nobody has told."""
        if self._now is None or self._since is None:
            return ""
        return f"{self._says} (since {self._since:%Y-%m-%d %H:%M:%S} UTC)"

    def heard(self, told: PaidFor, at: datetime) -> None:
        """Hear who pays from now on."""
        is_funded = told.funding is not FundingClass.UNFUNDED
        lost_it = self._now is not None and self._now.funding is FundingClass.UNFUNDED
        again = is_funded and lost_it and self._had_payer
        self._says = f"funded again: {told.says}" if again else told.says
        self._now, self._since = told, told.since or at
        self._had_payer = self._had_payer or is_funded

    def forget(self) -> None:
        """The attempt has ended: who pays for the next one is not known yet."""
        self._now, self._since, self._had_payer, self._says = None, None, False, ""
