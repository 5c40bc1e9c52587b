"""What is below a folder of a file system, all of it or an error.

fsspec's own walk leaves out what it cannot list below the top, and says nothing. Everything here
blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any

from longshore.activities.storage import why_away
from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError
from longshore.models.visible import shown

_DEEPEST = 500
"""Folders in each other; a server that has whatever it is asked for has no end."""


def files_below(
    fs: Any, top: str, enters: Callable[[str], bool], **how: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield location and facts of each file below a folder, in the folders that it `enters`.

    `how` is what `fs.ls` gets besides. Raises FileNotFoundError where the top is not there,
    StoreError where another folder is not that was listed, and what the file system raises.
    """
    folders, seen = [(top, 1)], {top}
    while folders:
        folder, depth = folders.pop()
        try:
            # By the name that was listed: a server may have `part1/`, and no `part1`.
            entries: list[dict[str, Any]] = fs.ls(folder, detail=True, **how)
        except FileNotFoundError:
            if folder == top:
                raise
            raise _not_there(folder) from None
        for info in entries:
            location = str(info["name"])
            if info["type"] != "directory":
                yield location, info
            elif location not in seen and enters(location):
                if depth == _DEEPEST:
                    where = shown(without_secrets(top))
                    raise StoreError(f"{where} has over {_DEEPEST} folders in each other")
                seen.add(location)
                folders.append((location, depth + 1))


def info_of(fs: Any, location: str) -> dict[str, Any]:
    """Return the facts of a file that was listed. Raises StoreError where it is not there, and
    what the file system raises."""
    try:
        return fs.info(location)
    except FileNotFoundError as error:
        raise (why_away(error) or _not_there(location)) from None


def _not_there(location: str) -> StoreError:
    return StoreError(f"{shown(without_secrets(location))} is listed, and is not there")
