"""What is below a folder of a file system, all of it or an error.

fsspec's own walk leaves out what it cannot list below the top, and says nothing. Everything here
blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from longshore.activities.storage import SourceError, why_away
from longshore.activities.web_files import Look
from longshore.models.addresses import without_secrets
from longshore.models.visible import shown

_DEEPEST = 500
"""Folders in each other; a server that has whatever it is asked for has no end."""


def files_below(
    fs: Any, top: str, enters: Callable[[str], bool], **how: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield location and facts of each file below a folder, in the folders that it `enters`.

    `how` is what `fs.ls` gets besides. Raises FileNotFoundError where the top is not there,
    SourceError as `infos_of`, and what the file system raises.
    """
    folders, seen = [(top, 1)], {top}
    while folders:
        folder, depth = folders.pop()
        try:
            # By the name that was listed: a server may have `part1/`, and no `part1`.
            entries: list[dict[str, Any]] = fs.ls(folder, detail=True, **how)
        except Exception as error:  # a file system may raise anything
            if folder == top:
                raise
            raise _of_listed(folder, error) from None
        for info in entries:
            location = str(info["name"])
            if info["type"] != "directory":
                yield location, info
            elif location not in seen and enters(location):
                if depth == _DEEPEST:
                    where = shown(without_secrets(top))
                    raise SourceError(f"{where} has over {_DEEPEST} folders in each other")
                seen.add(location)
                folders.append((location, depth + 1))


def infos_of(fs: Any, locations: Sequence[str], look: Look) -> dict[str, dict[str, Any]]:
    """Return the facts of files that were listed over HTTP. Raises SourceError where one is not
    there or may not be read, StoreError after the time of the look, and what the file system
    raises."""
    infos: list[dict[str, Any] | Exception | None] = fs.infos(locations, look)
    found: dict[str, dict[str, Any]] = {}
    for location, info in zip(locations, infos, strict=True):
        if isinstance(info, Exception):
            raise _of_listed(location, info) from None
        if info is not None:
            found[location] = info
    return found


def _of_listed(location: str, error: Exception) -> Exception:
    """Return what to raise for what was listed and cannot be had."""
    if isinstance(error, FileNotFoundError) and why_away(error) is None:
        return SourceError(f"{shown(without_secrets(location))} is listed, and is not there")
    return refusal_or(error, f"{shown(without_secrets(location))} is listed, and")


def refusal_or(error: Exception, what: str) -> Exception:
    """Return SourceError where a source is there and refuses `what`, else why that cannot be had.

    One that refuses is not away, and what was fetched of it before is not what it has now.
    """
    if isinstance(error, FileNotFoundError):
        error = why_away(error) or error
    status = getattr(error, "status", None)
    if status in (404, 410):
        return SourceError(f"{what} is not there")
    if isinstance(error, PermissionError) or status in (401, 403):
        return SourceError(f"{what} may not be read")
    return error
