"""Whether the paths of a snapshot fit together, and stay in its folder."""

from collections.abc import Sequence
from typing import Protocol

from longshore.models.snapshot import SnapshotLink

_MOST_LINKS = 40
"""Links on one way, as in Linux."""


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...


class Paths(Protocol):
    """A snapshot, or what is to become one."""

    @property
    def files(self) -> Sequence[_HasPath]: ...
    @property
    def links(self) -> Sequence[SnapshotLink]: ...
    @property
    def folders(self) -> Sequence[str]: ...


def mistake_of(snapshot: Paths) -> str:
    """Return why a snapshot cannot be unpacked into a folder; empty where it can.

    No path may come twice or lie below a file or a link, and no link may lead out of the folder,
    also not by way of others.
    """
    links = {link.path: link.target for link in snapshot.links}
    ends = [file.path for file in snapshot.files] + list(links)
    taken = set(ends)
    if len(taken) < len(ends):
        twice = next(path for path in ends if ends.count(path) > 1)
        return f"{twice} is there twice"
    folders = set(snapshot.folders)
    if both := taken & folders:
        return f"{min(both)} is both a folder and something else"
    above: set[str] = set()
    for path in (*ends, *folders):
        if path != "/".join(part for part in path.split("/") if part not in ("", ".")):
            return f"{path} is not written plainly"
        folder = path
        while (folder := folder.rpartition("/")[0]) and folder not in above:
            if folder in taken:
                return f"{path} lies below {folder}, which is no folder"
            above.add(folder)
    for path in links:
        if not _stays(path, links):
            return f"the link {path} leads to {links[path]}, out of the folder"
    return ""


def _stays(path: str, links: dict[str, str]) -> bool:
    """Follow a link as the system would; return whether it never leaves the folder."""
    here: list[str] = []
    ahead = path.split("/")[::-1]
    followed = 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return False
            here.pop()
            continue
        target = links.get("/".join([*here, part]))
        if target is None:
            here.append(part)
            continue
        followed += 1
        if followed > _MOST_LINKS:
            return True  # in a circle: it leads nowhere
        if target.startswith("/") or "\0" in target:
            return False
        ahead += target.split("/")[::-1]
    return True
