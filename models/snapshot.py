"""A snapshot of a folder: the files that a job is to find, and where the store keeps them.

Small files lie together in packs, large ones in chunks; both are objects of the artifact store.
What a snapshot *is* (its digest) follows from the files alone, and not from how they are packed.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from longshore.models.base import Wire
from longshore.models.checkpoint import PathWithin
from longshore.models.code import Sha256

ObjectName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}\.[0-9a-f]{8}$")]
"""The checksum of an object's bytes, and eight random digits: an object that is removed and one
that is stored again meanwhile have different names."""


class Part(Wire):
    """Bytes of an object."""

    object: ObjectName
    offset: int = Field(default=0, ge=0)
    size: int = Field(ge=0)


class SnapshotFile(Wire):
    """One file of a snapshot."""

    path: PathWithin
    """Below the folder, with slashes."""
    size: int = Field(ge=0)
    """Bytes."""
    sha256: Sha256
    executable: bool = False
    parts: tuple[Part, ...] = ()
    """Its content, in order; none where it is empty."""

    @model_validator(mode="after")
    def _parts_are_all_of_it(self) -> Self:
        if sum(part.size for part in self.parts) != self.size:
            raise ValueError(f"the parts of {self.path} have other bytes than the file")
        return self


class SnapshotLink(Wire):
    """A symbolic link that stays in the folder."""

    path: PathWithin
    target: str


class Snapshot(Wire):
    """What a folder held. Stored after its objects: without it nothing of them counts."""

    version: int = 1
    files: tuple[SnapshotFile, ...]
    """By path."""
    links: tuple[SnapshotLink, ...] = ()
    folders: tuple[PathWithin, ...] = ()
    """Those that hold nothing."""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of what it holds: paths, contents, executable or not."""
        files = ((file.path, file.sha256, file.executable) for file in self.files)
        return digest_of(files, ((link.path, link.target) for link in self.links), self.folders)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def objects(self) -> frozenset[str]:
        """The names of the objects that its files lie in."""
        return frozenset(part.object for file in self.files for part in file.parts)


def digest_of(
    files: Iterable[tuple[str, str, bool]],
    links: Iterable[tuple[str, str]],
    folders: Iterable[str],
) -> str:
    """Return the digest of a snapshot with these files (path, SHA-256, executable or not), links
    (path, target) and empty folders, in any order."""
    held = [sorted(files), sorted(links), sorted(folders)]
    written = json.dumps(held, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()
