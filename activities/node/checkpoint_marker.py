"""Which checkpoint the folder on a node holds: a small file in the job's own folder."""

import contextlib
from pathlib import Path

from pydantic import ValidationError

from longshore.activities.node.public_files import open_public, replace_public
from longshore.models.checkpoint import LocalCheckpoint

_LARGEST = 64 * 2**20
"""Bytes: it names files, of which there may be many."""


def read_marker(path: Path, folder: Path) -> LocalCheckpoint | None:
    """Return what `folder` holds; None where that is not known, or nothing is there."""
    with contextlib.suppress(OSError, ValidationError):
        with open_public(path) as file:
            found = LocalCheckpoint.model_validate_json(file.read(_LARGEST))
        if found.folder == str(folder) and any(folder.iterdir()):
            return found
    return None


def write_marker(path: Path, local: LocalCheckpoint) -> None:
    """Store what the folder holds, at a path without links. Raises OSError."""
    replace_public(path, local.model_dump_json())
