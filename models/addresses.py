"""Addresses of our own small HTTP endpoints, and URLs as they may be shown."""

import ipaddress
import posixpath
import re
from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

from pydantic import BeforeValidator

from longshore.models.visible import shown

CONSOLE_PAGES = (
    ("/orderbook", "Order book"),
    ("/nodes", "Nodes"),
    ("/jobs", "Jobs"),
    ("/queue", "Queue"),
    ("/dags", "DAGs"),
    ("/schedules", "Schedules"),
    ("/services", "Services"),
    ("/purchases", "Purchases"),
    ("/blocks", "Blocks"),
    ("/costs", "Costs"),
    ("/budgets", "Budgets"),
    ("/cycles", "Cycles"),
)
"""Path and name of each page of the console, in the order of its navigation."""
LOOPBACK = "127.0.0.1"
LOCALHOST = "localhost"
LOOPBACK_6 = "::1"
_HOST = re.compile(
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::\d{0,5})?", re.ASCII
)
_PASSWORD = re.compile(r"""(?<=://)([^/?#@\s:"']*):([^/?#\s"']*)@""")
_USER_OF_HTTP = re.compile(r"""(https?://)[^/?#\s"']+@""", re.IGNORECASE)
_PARAMETER = re.compile(r"[?&]([^?&=\s]*)=")
_WHOLE_VALUE = re.compile(r"""(?:[^&#\s"'\\]|\\++(?!["']))*""")
"""A backslash before a quote is of the JSON or the Python around it."""
_VALUE = re.compile(r"""(?:[^?&#\s"'\\]|\?(?![^?&=\s]*=)|\\++(?!["']))*""")
"""Up to the query of a URL that is in it as it is."""
_ESCAPED = 4
"""So many times a URL may be escaped in the query of another, and is searched still."""
_SECRET_NAME = re.compile(
    r"passw|pwd|secret|token|key|signature|(?<![a-z])sig$|auth(?!ors?(?![a-z]))"
    r"|access|credential|jwt|hmac|hdn|session",
    re.IGNORECASE,
)
_LONG = re.compile(r"[\w.+/%=-]{24,}+", re.ASCII)
"""As long as a token: a parameter may have any name, and a sentence may go on behind it."""
_BETWEEN_WORDS = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|%[0-9a-f]{2}|[^a-z0-9]", re.IGNORECASE
)
"""A UUID says no more than a word does."""
_WORD = re.compile(r"\d*+(?:[A-Z]?[a-z]++|[A-Z]++)?\d*+", re.ASCII)
_EXTENSION = re.compile(r"\.(?:[a-z]{1,11}\d?|[A-Z]{2,5})$", re.ASCII)
"""A token of several parts, between dots, may end as short as one, but in capitals and digits
too."""


def parse_address(value: object) -> object:
    """Return ``HOST:PORT`` from that or from a port, which then is one of this machine alone.

    ``off`` is None; None and what is no text stay as they are. Raises ValueError with the
    accepted forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "off":
        return None
    host, _, port = value.strip().rpartition(":")
    host = {"": LOOPBACK, LOCALHOST: LOOPBACK}.get(host, host)
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError(port)
    except ValueError:
        raise ValueError(
            "must be a port, an IP address with a port such as 0.0.0.0:9100, or off, "
            f"got {shown(value)}"
        ) from None
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an `Address`, the host without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def host_of(named: str) -> str | None:
    """Return the host that a `Host` header names, in small letters and without its port; None
    where it is none.

    A page of a browser cannot choose it: it is what the page's own address names.
    """
    found = _HOST.fullmatch(named)
    return found and (found["ip6"] or found["name"]).lower()


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def url_of(address: str) -> str:
    """Return the URL of an `Address`, as a browser on this machine reaches it."""
    host, port = host_and_port(address)
    host = {"0.0.0.0": LOOPBACK, "::": LOOPBACK_6}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def file_name(url: str) -> str:
    """Return the name under which a node stores the one file at a URL.

    Over HTTP without the query: what is signed or asked for changes. "" where a folder is named.
    """
    if url.endswith("/"):
        return ""
    if not url.startswith(("http:", "https:")):
        return posixpath.basename(unquoted(url) if url.startswith("file:") else url)
    parts = urlsplit(url)
    return posixpath.basename(unquoted(parts.path).rstrip("/")) or parts.hostname or "file"


def unquoted(text: str) -> str:
    """Return a part of a URL as it means it."""
    return unquote(text, errors="surrogateescape")


def without_secrets(text: str) -> str:
    """Return the text with the passwords of its URLs, and secrets in their query, masked; over
    HTTP the user too, which may be a token. Also of URLs that are in the query of others, as they
    are or escaped."""
    return _masked(text, _ESCAPED)


def _masked(text: str, escaped: int) -> str:
    """Return the text without secrets, also of what is `escaped` so many times in it."""
    text = _PASSWORD.sub(r"\1:***@", _USER_OF_HTTP.sub(r"\1***@", text))
    parts, end = list[str](), 0
    while found := _PARAMETER.search(text, end):
        of_name = _SECRET_NAME.search(found[1])
        value = (_WHOLE_VALUE if of_name else _VALUE).match(text, found.end())
        assert value is not None
        parts += text[end : found.end()], "***" if of_name else _shown(value[0], escaped)
        end = value.end()
    return "".join([*parts, text[end:]])


def _shown(value: str, escaped: int) -> str:
    """Return the value of a parameter whose name does not say that it is secret, without what
    looks so."""
    if escaped and "%" in value:
        plain = unquote(value)
        if (masked := _masked(plain, escaped - 1)) != plain:
            as_it_was = {letter for letter in value if letter.isascii()} - {"%", "\\"}
            value = quote(masked, safe="*:@" + "".join(as_it_was), errors="replace")
    return _LONG.sub(_without_token, value)


def _without_token(found: re.Match[str]) -> str:
    """Return a long piece of a value where it is made of words and numbers or names a file; else
    it may be a token."""
    text = found[0].rstrip(".")
    is_name = _EXTENSION.search(text) or all(map(_WORD.fullmatch, _BETWEEN_WORDS.split(text)))
    return found[0] if is_name else f"***{found[0][len(text) :]}"


Address = Annotated[str | None, BeforeValidator(parse_address, json_schema_input_type=str | int)]
"""``HOST:PORT`` where something listens; a port alone is one of this machine; None for nowhere."""
