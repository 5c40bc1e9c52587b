"""The log store: what jobs wrote, as parts under an fsspec URL.

A part holds the bytes of one stream from one offset on, and is written once:

    JOB/ATTEMPT/NODE/stdout.000000000000
    JOB/ATTEMPT/NODE/stdout.000000004096
    JOB/ATTEMPT/NODE/times.000000000000      when the streams had which sizes, line by line
    JOB/ATTEMPT/NODE/end                     after the last part of all streams

Parts of one stream may overlap (a part that was written again after an error); they never
contradict each other.
"""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longshore.activities.storage import connect, put_whole, speaking

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
Shipped = Literal["stdout", "stderr", "times"]
SHIPPED: tuple[Shipped, ...] = (*STREAMS, "times")
"""In this order: times tell of what is stored already."""
END = "end"

_PART = re.compile(r"(stdout|stderr|times)\.(\d{12})")


@dataclass(frozen=True)
class LogPiece:
    """Bytes of one stream and where the next ones begin."""

    data: bytes
    next_offset: int
    attempt: int | None
    """Whose bytes they are; None when nothing of the job has been stored."""
    ended: bool
    """True when no more will come after `data`."""


class LogStore:
    """Logs under one fsspec URL. Its methods block. Safe to use from threads."""

    def __init__(self, url: str) -> None:
        fs, root = connect(url)
        self._url = url
        self._fs: Any = fs
        self._root: str = root

    def read(
        self,
        job_id: str,
        attempt: int | None = None,
        stream: Shipped = "stdout",
        from_offset: int = 0,
        limit: int = 64 * 2**20,
        node_id: str | None = None,
    ) -> LogPiece:
        """Return about `limit` bytes from `from_offset` on; of the latest attempt without one.

        Of a gang `node_id` says whose. Raises StoreError when the store cannot be read.
        """
        attempt = self.latest_attempt(job_id) if attempt is None else attempt
        folder = self._node_folder(job_id, attempt, node_id) if attempt is not None else None
        if folder is None:
            return LogPiece(b"", from_offset, attempt, ended=False)
        # The end marker is looked for first: what it promises is then in the list of parts.
        with self._reading():
            ended = bool(self._fs.exists(f"{folder}/{END}"))
        data, position = bytearray(), from_offset
        for offset, size, path in self._parts(folder, stream):
            if offset + size <= position:
                continue
            if len(data) >= limit:
                return LogPiece(bytes(data), position, attempt, ended=False)
            with self._reading():
                content: bytes = self._fs.cat_file(path)
            data += content[max(position - offset, 0) :]
            position = offset + len(content)
        return LogPiece(bytes(data), position, attempt, ended)

    def attempts(self, job_id: str) -> list[int]:
        """Return the attempts of which something is stored, in order."""
        return sorted(int(name) for name in self._names(self._path(job_id)) if name.isdigit())

    def latest_attempt(self, job_id: str) -> int | None:
        return max(self.attempts(job_id), default=None)

    def nodes(self, job_id: str, attempt: int | None = None) -> list[str]:
        """Return the nodes from which something of an attempt is stored, by name."""
        attempt = self.latest_attempt(job_id) if attempt is None else attempt
        return sorted(self._names(self._path(job_id, attempt))) if attempt is not None else []

    def write(
        self, job_id: str, attempt: int, node_id: str, stream: Shipped, offset: int, data: bytes
    ) -> None:
        """Store one part as a whole. Raises what the store raises when it cannot."""
        self._put(self._path(job_id, attempt, node_id, f"{stream}.{offset:012}"), data)

    def write_end(self, job_id: str, attempt: int, node_id: str) -> None:
        """Store that nothing more will come from this attempt."""
        self._put(self._path(job_id, attempt, node_id, END), b"")

    def stored(self, job_id: str, attempt: int, node_id: str, stream: Shipped) -> int:
        """Return the offset up to which a stream is stored."""
        parts = self._parts(self._path(job_id, attempt, node_id), stream)
        return max((offset + size for offset, size, _ in parts), default=0)

    def _node_folder(self, job_id: str, attempt: int, node_id: str | None) -> str | None:
        if node_id is not None:
            return self._path(job_id, attempt, node_id)
        nodes = self.nodes(job_id, attempt)
        return self._path(job_id, attempt, nodes[-1]) if nodes else None

    def _parts(self, folder: str, stream: Shipped) -> list[tuple[int, int, str]]:
        """Return (offset, size, path) of the stored parts of a stream, in order."""
        found: list[tuple[int, int, str]] = []
        for entry in self._list(folder):
            match = _PART.fullmatch(Path(entry["name"]).name)
            if match and match.group(1) == stream:
                found.append((int(match.group(2)), entry["size"], entry["name"]))
        return sorted(found)

    def _names(self, folder: str) -> list[str]:
        return [Path(entry["name"]).name for entry in self._list(folder)]

    def _list(self, folder: str) -> list[dict[str, Any]]:
        with self._reading():
            try:
                return self._fs.ls(folder, detail=True)
            except FileNotFoundError:
                return []

    def _reading(self) -> AbstractContextManager[None]:
        return speaking("log store", self._url, "read")

    def _put(self, path: str, data: bytes) -> None:
        put_whole(self._fs, path, data)

    def _path(self, *parts: object) -> str:
        return "/".join([self._root, *map(str, parts)])
