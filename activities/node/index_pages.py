"""Files below a URL of HTTP, by the links of index pages as browsers read them.

fsspec takes links as they are written: `a&amp;b.csv` is no file that a server has.
"""

import re
from functools import cache
from html.entities import html5
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

_LINKS_OF = frozenset({"text/html", "application/xhtml+xml"})
_NAMED = re.compile("&([A-Za-z0-9]+)([;=]?)")
"""What may be a reference to a character by its name."""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found = dict[str, None]()
        self.base: str | None = None
        """What links are relative to, where the page says so: the first one counts."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if tag == "a" and name == "href" and value:
                self.found[value.strip()] = None
            elif tag == "base" and name == "href" and self.base is None:
                self.base = (value or "").strip()

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """HTML has none: it is a comment until the next `>`. Python refuses most of them."""
        return self.parse_bogus_comment(i)


def links_below(page: str, url: str) -> list[str]:
    """Return the URLs below another one to which its page has links."""
    folder = f"{url.rstrip('/')}/"
    links = _Links()
    links.feed(_NAMED.sub(_as_in_attributes, page))
    links.close()
    base = _joined(folder, links.base or "") or folder
    found: dict[str, None] = {}
    for link in links.found:
        target = _joined(base, link)
        # A page may say http of what is https.
        if (path := _path(target).removeprefix(_path(folder))) not in ("", _path(target)):
            found[f"{folder}{path}"] = None
    return list(found)


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


@cache
def index_pages() -> Any:
    """Return the class of the file system: what it is made of takes 0.1 s to load."""
    from fsspec.implementations.http import HTTPFileSystem

    class IndexPages(HTTPFileSystem):
        async def _ls_real(self, url: str, detail: bool = True, **kwargs: Any) -> Any:
            session = await self.set_session()
            async with session.get(self.encode_url(url), **{**self.kwargs, **kwargs}) as answer:
                self._raise_not_found_for_status(answer, url)
                kind = answer.headers.get("Content-Type", "text/html").partition(";")[0]
                is_page = kind.strip().lower() in _LINKS_OF
                page = await answer.text(errors="ignore") if is_page else ""
            found = links_below(page, url)
            if not detail:
                return sorted(found)
            return [
                {"name": each, "size": None, "type": "directory" if each[-1] == "/" else "file"}
                for each in found
            ]

    return IndexPages
