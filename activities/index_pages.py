"""Files below a URL of HTTP, by the links of index pages as browsers read them.

fsspec takes links as they are written: `a&amp;b.csv` is no file that a server has. A page is what
a tenant names, and is read for all of a node: its bytes and its time are bounded, and it is looked
over once from its beginning to its end. Python's own parser goes back over tags that do not end.
"""

import math
import re
from collections.abc import Iterator
from html import unescape
from html.entities import html5
from typing import Any
from urllib.parse import urljoin

from longshore.activities.node.system import boot_clock
from longshore.activities.storage import SourceError
from longshore.models.addresses import without_secrets

MOST_BYTES = 16_000_000
"""Of a page: over 100,000 links of most servers."""
LONGEST_LINK = 4_096
_LINKS_OF = frozenset({"text/html", "application/xhtml+xml"})
_NAMED = re.compile("&([A-Za-z0-9]+)([;=]?)")
"""What may be a reference to a character by its name."""
_SPACE = r"[ \t\n\f\r]"
_TAG = re.compile(r"<(/?)([A-Za-z][^ \t\n\f\r/>]*+)")
_ATTRIBUTE = re.compile(
    rf"(?:{_SPACE}|/)*+(?:(?P<end>>)|(?P<name>[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+)"
    rf"(?:{_SPACE}*+={_SPACE}*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'"
    r"|(?P<bare>(?![\"'])[^ \t\n\f\r>]*+))|(?!" + _SPACE + r"*+=)))"
)
_TEXT_ONLY = {
    name: re.compile(rf"</{name}(?![A-Za-z0-9])", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp")
}
"""Elements in which nothing is a tag but their own end."""


def links_below(page: str, url: str, until: float = math.inf) -> list[str]:
    """Return the URLs below another one to which its page has links. Raises TimeoutError where
    that lasts until so late of `boot_clock`."""
    folder = f"{url.rstrip('/')}/"
    links, said = dict[str, None](), None
    for tag, link in _links(page):
        if tag == "base":
            said = link if said is None else said  # the first one counts
        elif link:
            links[link] = None
    base = _joined(folder, said or "") or folder
    found: dict[str, None] = {}
    for link in links:
        if boot_clock() > until:
            raise TimeoutError
        target = _joined(base, link)
        # A page may say http of what is https.
        path = _path(target).removeprefix(_path(folder))
        if path not in ("", _path(target)) and not _leads_on(path):
            found[f"{folder}{path}"] = None
    return list(found)


def _leads_on(path: str) -> bool:
    """Return whether a link is none to a file below its page, as one that sorts this."""
    return path.startswith("../") or path == ".." or "?" in path or "#" in path


def _links(page: str) -> Iterator[tuple[str, str]]:
    """Yield each `href` of a tag `a` or `base`; one that no path is as long as is left out."""
    at = page.find("<")
    while at >= 0:
        if page.startswith("<!--", at):
            ends = page.startswith((">", "->"), at + 4)
            at = page.find(">" if ends else "-->", at + 4)
        elif page.startswith(("<!", "<?"), at):  # HTML has no others: a comment until the next >
            at = page.find(">", at + 2)
        elif tag := _TAG.match(page, at):
            name, at = tag[2].lower(), tag.end()
            while (found := _ATTRIBUTE.match(page, at)) and not found["end"]:
                at = found.end()
                is_link = not tag[1] and name in ("a", "base") and found["name"].lower() == "href"
                value = found["double"] or found["single"] or found["bare"] or ""
                if is_link and len(value) <= LONGEST_LINK:
                    yield name, unescape(_NAMED.sub(_as_in_attributes, value)).strip()
            if found is None:
                return  # the page ends in a tag
            at = found.end()
            if not tag[1] and (end := _TEXT_ONLY.get(name)):
                if (closed := end.search(page, at)) is None:
                    return
                at = closed.start()
        else:
            at += 1
        at = page.find("<", at) if at >= 0 else at


def _as_in_attributes(reference: re.Match[str]) -> str:
    """Escape what is no reference in an attribute: one without a semicolon, before a letter, a
    digit or `=`. Python 3.11 reads it as in text: `data&section.csv` as `data§ion.csv`."""
    name, end = reference.groups()
    is_one = f"{name};" in html5 if end == ";" else name in html5 and end != "="
    return reference[0] if is_one else f"&amp;{reference[0][1:]}"


def _joined(base: str, link: str) -> str:
    try:
        return urljoin(base, link)
    except ValueError:  # of another host, which has brackets
        return ""


def _path(url: str) -> str:
    return url.partition("://")[2]


async def text_of(answer: Any, url: str) -> str:
    """Return the page of an answer of aiohttp; nothing of what is none. Raises SourceError where
    it is too long, or packed: it could be of any size then."""
    kind = answer.headers.get("Content-Type", "text/html").partition(";")[0]
    if kind.strip().lower() not in _LINKS_OF:
        return ""
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise refused_page(url, "is sent packed, and was asked for as it is")
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > MOST_BYTES:
            raise refused_page(url, f"has over {MOST_BYTES:,} bytes: pack the files, as in tar")
    try:
        return data.decode(answer.get_encoding(), errors="ignore")
    except (LookupError, RuntimeError):
        return data.decode(errors="ignore")


def refused_page(url: str, why: str) -> SourceError:
    """Return the refusal of a page."""
    return SourceError(f"{page_named(url)} {why}")


def page_named(url: str) -> str:
    """Return how a page is named where one is told of it."""
    return f"the index page {without_secrets(url)}"
