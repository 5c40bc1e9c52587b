"""Both streams of an attempt in the order in which they were written.

Each stream is a file of its own; when they had which sizes is noted beside them, about ten times a
second while a job writes (`activities.node.output_times`). What came between two such looks is of
one moment: there stdout goes first, line by line whole.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from longshore.activities.logstore import STREAMS, LogStore, Stream

Sizes = tuple[int, int]
"""Bytes of stdout and of stderr."""
_WINDOW = 64 * 1024
_LIMIT = 8 * 2**20
_LONG_BAR = 2**20
"""Bytes without an end of a line, of what writes over itself, before which nobody looks for one:
a progress bar writes some 100 MB a day."""
_NO_END = 2**60


@dataclass(frozen=True)
class Chunk:
    """Bytes of one stream that follow each other."""

    stream: Stream
    data: bytes
    at: datetime | None = None
    """When they were there; None where nobody noted it."""


class Look(NamedTuple):
    """How many bytes the streams had."""

    millis: int
    """Since 1970."""
    stdout: int
    stderr: int

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.millis / 1000, UTC)

    def of(self, stream: Stream) -> int:
        return self.stdout if stream == "stdout" else self.stderr


def looks_in(data: bytes) -> list[Look]:
    """Return the looks of whole lines, without those that a full disk cut off."""
    found: list[Look] = []
    for line in data.split(b"\n")[:-1]:
        words = line.split()
        if len(words) != 3 or not all(word.isdigit() and len(word) < 18 for word in words):
            continue
        look = Look(*map(int, words))
        if not found or (look.stdout >= found[-1].stdout and look.stderr >= found[-1].stderr):
            found.append(look)
    return found


class OrderedOutput:
    """Reads what is stored of one attempt, on one node, from where it was read last.

    Blocks, and raises StoreError where the store cannot be read.
    """

    def __init__(
        self,
        store: LogStore,
        job_id: str,
        attempt: int,
        node_id: str,
        *,
        begin: Sizes = (0, 0),
        only: Stream | None = None,
    ) -> None:
        """`begin` says where in stdout and stderr; with `only` one of them is read."""
        self._store = store
        self._key = (job_id, attempt)
        self._node_id = node_id
        self._at = _by_stream(begin)
        self._until: dict[Stream, int] = _by_stream((_NO_END, _NO_END))
        for stream in STREAMS:
            if only not in (None, stream):
                self._until[stream] = 0
        self._one = only is not None
        self._looks: list[Look] = []
        self._times = 0
        self._rest = b""

    def end_at(self, until: Sizes) -> None:
        """Read no further than to these bytes of stdout and stderr."""
        for stream, size in _by_stream(until).items():
            self._until[stream] = min(self._until[stream], size)

    def start_at(self, since: datetime) -> None:
        """Leave out what was there before this time, by the looks; nothing where none are."""
        self._read_times()
        if before := [look for look in self._looks if look.at < since]:
            self._at = _at_least(self._at, before[-1])

    def last(self, lines: int) -> tuple[Chunk, ...]:
        """Return the last lines that are stored, and go to what comes behind them; fewer, where a
        progress bar is in front of them that is longer than anybody reads."""
        self._read_times()
        sizes = self._until.copy()
        for stream in STREAMS:
            stored = self._store.stored(*self._key, self._node_id, stream)
            sizes[stream] = min(stored, sizes[stream])
        first, looks, window, before = dict(self._at), tuple(self._looks), _WINDOW, -1
        while True:
            self._at, self._looks = _before_the_last(window, first, sizes, looks), list(looks)
            begun = dict(self._at)
            chunks = self.all_of_it()
            ended = sum(chunk.data.count(b"\n") for chunk in chunks)
            is_bar = window > _LONG_BAR and ended == before and b"\r" in chunks[0].data
            if begun == first or ended > lines or is_bar:
                return last_lines(chunks, lines)
            window, before = window * 4, ended

    def all_of_it(self) -> tuple[Chunk, ...]:
        """Return all that is stored, also what no look has seen yet."""
        found: list[Chunk] = []
        while chunks := self.read(all_of_it=True)[0]:
            found += chunks
        return tuple(found)

    def read(self, *, all_of_it: bool = False) -> tuple[tuple[Chunk, ...], bool]:
        """Return what has come, in order, and whether no more will come.

        What no look has seen yet stays for the next time, unless `all_of_it` is wanted, the
        attempt has ended, or its agent notes no looks.
        """
        data: dict[Stream, bytes] = {}
        ends: list[bool] = []
        for stream in STREAMS:
            most = max(min(self._until[stream] - self._at[stream], _LIMIT), 0)
            piece = self._store.read(
                *self._key, stream, self._at[stream], most, node_id=self._node_id
            )
            data[stream] = piece.data[:most]
            ends.append(piece.ended)
        self._read_times()
        # What the first of the reads says of the end holds for both.
        rest = all_of_it or ends[0] or self._one or not self._times
        more = {stream for stream in STREAMS if len(data[stream]) >= _LIMIT}
        return tuple(self._merge(data, rest, more)), ends[0] and not more

    def _merge(
        self, data: dict[Stream, bytes], rest: bool, more: Container[str]
    ) -> Iterator[Chunk]:
        """Yield what is in order; with `rest` all, as far as it was read of streams of which there
        is `more` to be read."""
        while self._looks:
            look = self._looks[0]
            for stream in STREAMS:
                if (size := look.of(stream) - self._at[stream]) > 0 and data[stream]:
                    yield self._take(stream, size, data, look.at)
            if any(
                self._at[s] < look.of(s)
                and self._at[s] < self._until[s]
                and (s in more or not rest)
                for s in STREAMS
            ):
                return
            self._looks.pop(0)
        for stream in STREAMS if rest else ():
            if data[stream]:
                yield self._take(stream, len(data[stream]), data, None)
            if stream in more:
                return  # what follows of it goes before the other stream

    def _take(
        self, stream: Stream, size: int, data: dict[Stream, bytes], at: datetime | None
    ) -> Chunk:
        taken, data[stream] = data[stream][:size], data[stream][size:]
        self._at[stream] += len(taken)
        return Chunk(stream, taken, at)

    def _read_times(self) -> None:
        while True:
            piece = self._store.read(*self._key, "times", self._times, node_id=self._node_id)
            if not piece.data:
                return
            self._times = piece.next_offset
            lines, newline, self._rest = (self._rest + piece.data).rpartition(b"\n")
            self._looks += looks_in(lines + newline)


_LONGEST_LINE = 2**20
"""Bytes without an end of line that are held: a binary file on a terminal may have none."""


class WholeLines:
    """Puts chunks together so that no line of one stream is cut by the other, up to 1 MB."""

    def __init__(self) -> None:
        self._held: dict[Stream, Chunk] = {}

    def of(self, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Yield what is whole by now; what a progress bar writes counts as a line."""
        for chunk in chunks:
            held = self._held.pop(chunk.stream, None)
            data = (held.data if held else b"") + chunk.data
            cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - cut > _LONGEST_LINE:
                cut = len(data)
            if data[:cut]:
                yield Chunk(chunk.stream, data[:cut], chunk.at)
            if data[cut:]:
                self._held[chunk.stream] = Chunk(chunk.stream, data[cut:], chunk.at)

    def rest(self) -> Iterator[Chunk]:
        """Yield the lines that are not whole."""
        yield from self._held.values()
        self._held = {}


def last_lines(chunks: Sequence[Chunk], lines: int) -> tuple[Chunk, ...]:
    """Return the last lines of chunks; one that is not ended yet counts as a line.

    All that a progress bar writes is one line, as it is on a terminal, and stands where it ends.
    """
    found = list[Chunk]()
    open_lines: dict[Stream, list[bytes]] = {}
    for chunk in chunks:
        *ended, rest = chunk.data.split(b"\n")
        for line in ended:
            begun = open_lines.pop(chunk.stream, [])
            found.append(Chunk(chunk.stream, b"".join([*begun, line, b"\n"]), chunk.at))
        if rest:
            open_lines.setdefault(chunk.stream, []).append(rest)
    found += [Chunk(stream, b"".join(begun)) for stream, begun in open_lines.items()]
    return tuple(_end_of_bar(each) for each in found[-lines:]) if lines else ()


def _end_of_bar(line: Chunk) -> Chunk:
    """Return the end of a long line that was written over again and again: a terminal has no more
    of it in the end, and its updates may be 100 MB."""
    if len(line.data) <= _WINDOW or b"\r" not in line.data[-_WINDOW:-2]:
        return line
    return Chunk(line.stream, line.data[-_WINDOW:].partition(b"\r")[2], line.at)


def _before_the_last(
    window: int,
    first: dict[Stream, int],
    sizes: dict[Stream, int],
    looks: Sequence[Look],
) -> dict[Stream, int]:
    """Return where to begin so that about `window` bytes follow, in order; at least at `first`."""
    if not looks:
        return _at_least(first, Look(0, sizes["stdout"] - window, sizes["stderr"] - window))
    most = sum(sizes.values()) - window
    found = [look for look in looks if look.stdout + look.stderr <= most]
    return _at_least(first, found[-1] if found else Look(0, 0, 0))


def _at_least(first: dict[Stream, int], look: Look) -> dict[Stream, int]:
    return _by_stream((max(first["stdout"], look.stdout), max(first["stderr"], look.stderr)))


def _by_stream(sizes: Sizes) -> dict[Stream, int]:
    return dict(zip(STREAMS, sizes, strict=True))
