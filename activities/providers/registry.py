"""Finds the markets that there are clients for, and those that can be used with the settings.

A provider is an entry point of the group `longshore.providers`: its name, and a function that
takes the settings and returns its client, or None when there is no token for it.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata

from longshore.activities.providers.base import Provider
from longshore.models.errors import CredentialsError, NoProviderError, RefusedError
from longshore.models.settings import Settings

GROUP = "longshore.providers"
Factory = Callable[[Settings], Provider | None]
_log = logging.getLogger(__name__)


def known() -> tuple[str, ...]:
    """Return the names of all providers, used or not."""
    return tuple(sorted(_entry_points()))


def configured(settings: Settings) -> tuple[str, ...]:
    """Return the names of the providers that `connect` gives a client of."""
    if settings.market == "off":
        return ()
    return tuple(name for name in known() if _is_configured(settings, name))


def connect(settings: Settings, name: str) -> Provider:
    """Return a client; close it after use (`aclose`).

    Raises NoProviderError for a name that nobody knows, CredentialsError when there is no token,
    RefusedError when the settings do not allow that market.
    """
    if settings.market == "off":
        raise RefusedError("markets are off: set LONGSHORE_MARKET to simulated or real to use one")
    provider = _factory(name)(settings)
    if provider is None:
        raise CredentialsError(name, _how_to_configure(settings, name))
    return provider


def connect_all(settings: Settings) -> Mapping[str, Provider]:
    """Return a client of every configured provider, by name."""
    return {name: connect(settings, name) for name in configured(settings)}


@cache
def _entry_points() -> Mapping[str, metadata.EntryPoint]:
    """Return what is installed. Read once: each read takes 14 ms of a processor."""
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _factory(name: str) -> Factory:
    points = _entry_points()
    if name not in points:
        raise NoProviderError(f"no provider {name} (known: {', '.join(sorted(points)) or 'none'})")
    return points[name].load()


def _is_configured(settings: Settings, name: str) -> bool:
    """Return whether there is a client. It opens nothing before its first call."""
    try:
        return _factory(name)(settings) is not None
    except RefusedError as error:
        _log.info("%s is not used: %s", name, error)
        return False


def _how_to_configure(settings: Settings, name: str) -> str:
    token = f"LONGSHORE_{name.upper()}_TOKEN"
    if settings.market == "real":
        return f"there is no token for it: set {token}"
    return (
        "no simulated market runs that would bring its token: start one with `longshore market "
        f"simulate`, or set {token}"
    )
