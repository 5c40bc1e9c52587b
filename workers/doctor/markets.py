"""Check of the markets: which may be used, whether they answer, and who we are there."""

from functools import partial

from longshore.activities.providers.base import Provider
from longshore.activities.providers.registry import configured
from longshore.client.markets import ProviderState, open_markets, states
from longshore.models.addresses import without_secrets
from longshore.models.settings import Settings
from longshore.models.text import format_dollars
from longshore.workers.doctor.findings import Check, Finding, fail, ok, warn

ANSWER_WITHIN = 8.0
"""Seconds that each market has: less than a check may take as a whole."""
_CHECK = "markets"


def checks(settings: Settings) -> dict[str, Check]:
    """Return each check by its name."""
    return {_CHECK: partial(_look, settings)}


async def _look(settings: Settings) -> list[Finding]:
    if settings.market == "off":
        return [ok(_CHECK, "they are off: nothing is looked at and nothing bought")]
    if not configured(settings):
        return [_none(settings)]
    async with open_markets(settings) as markets:
        found = await states(markets, within=ANSWER_WITHIN)
        return [_found(state, market) for state, market in zip(found, markets, strict=True)]


def _none(settings: Settings) -> Finding:
    if settings.market == "real":
        return warn(
            _CHECK,
            "real markets may be used, and there is no token for one",
            "Set LONGSHORE_SFCOMPUTE_TOKEN or LONGSHORE_PRIME_TOKEN, or LONGSHORE_MARKET=off.",
        )
    return ok(
        _CHECK,
        "none is configured, only simulated ones may be used; `longshore market simulate` "
        "starts one",
    )


def _found(state: ProviderState, market: Provider) -> Finding:
    if state.account is None:
        says = without_secrets(state.trouble) or f"{market.name} does not answer"
        return fail(_CHECK, says, f"Check the token and the address of {market.name}.")
    kind = "simulated" if state.account.simulated else "real: money is spent there"
    known = f"{market.name} ({kind}) knows us as {state.account.id}"
    balance = state.account.balance
    if state.no_buying:
        why, _, mend = state.no_buying.partition(": ")
        return warn(_CHECK, f"{known}, and {why}", f"{mend[:1].upper()}{mend[1:]}.")
    if balance is None:
        return ok(_CHECK, known)
    if balance <= 0:
        return warn(
            _CHECK,
            f"{known}, and the balance is {format_dollars(balance)}",
            "Pay something in: nothing can be bought.",
        )
    return ok(_CHECK, f"{known}; the balance is {format_dollars(balance)}")
