"""What a client may talk to, and with which token: one rule for every market."""

import ipaddress
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
from pydantic import SecretStr, ValidationError

from longshore.models.errors import RefusedError
from longshore.models.settings import MarketInfo, Settings


@dataclass(frozen=True)
class Access:
    """Where a market is and how we sign in there."""

    url: str
    token: SecretStr
    mode: str
    """The setting `market`: off, simulated or real."""


def access(settings: Settings, url: str, token: SecretStr | None) -> Access | None:
    """Return how to reach a market whose settings are `url` and `token`; None when it is not used.

    With `market = simulated`, an address on this machine with its token comes first, then the
    running simulated market; a token for a real market stays where it is. Raises RefusedError when
    there is nothing but a real address, and when markets are off.
    """
    if settings.market == "simulated" and not (token and is_loopback(url)):
        simulated = running_market(settings)
        if simulated is not None:
            return Access(simulated.url, SecretStr(simulated.token), settings.market)
    if token is None or not token.get_secret_value():
        return None
    check_allowed(url, settings.market)
    return Access(url, token, settings.market)


def running_market(settings: Settings) -> MarketInfo | None:
    """Return what the simulated market of this state folder says of itself, if one runs."""
    try:
        info = MarketInfo.model_validate(json.loads(settings.market_file.read_text()))
    except (OSError, ValueError, ValidationError):
        return None
    return info if psutil.pid_exists(info.pid) else None


def check_allowed(url: str, mode: str) -> None:
    """Raise RefusedError when nothing may be sent to `url`."""
    if mode == "off":
        raise RefusedError("markets are off: set LONGSHORE_MARKET to simulated or real to use one")
    if is_loopback(url):
        return
    if mode != "real":
        raise RefusedError(
            f"{host_of(url)} is not this machine, and only simulated markets on it may be talked "
            "to. Set LONGSHORE_MARKET=real to use real markets, where money is spent."
        )
    if not url.startswith("https://"):
        raise RefusedError(
            f"{host_of(url)} would get the token unencrypted: its address must begin with https://"
        )


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine."""
    host = host_of(url)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""
