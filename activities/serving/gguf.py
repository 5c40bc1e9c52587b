"""Read the header of a GGUF file, in memory and time that no header can exceed.

The package `gguf` makes an array of every value: 9 s for a vocabulary of 128,000 tokens. This
passes over what nobody asks for.
"""

import math
import struct
from dataclasses import dataclass, replace
from typing import BinaryIO

from longshore.models.errors import DamagedError
from longshore.models.gguf import TENSOR_TYPES, GGUFHeader, Tensor, Value
from longshore.models.visible import name_of_place

_MOST_BYTES = 64 * 2**20
"""Of a header. Those of large models have 5 to 20 MB, nearly all of it vocabulary."""
_MOST_ENTRIES = 2**22
"""Of a list. The largest vocabularies have 260,000 tokens, and twice as many merges."""
_MOST_KEYS = 65_536
MOST_TENSORS = 65_536
_LONGEST_NAME = 65_535  # docs/gguf.md
_LONGEST_TEXT = 4_096
"""Bytes of a text that is kept; templates of chats are longer, and nobody asks for them."""
_LONGEST_LIST = 4_096
"""Entries of a list that is kept: one for a layer."""
_MOST_KEPT = 2**20
"""Bytes of all values that are kept; of numbers in Python twenty times as many. Those of large
models have some thousands."""
_PIECE = 2**20
_STRING, _ARRAY = 8, 9
_NUMBERS: dict[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""By type of a value: its letter for `struct`."""


class NotGGUFError(DamagedError):
    """A file is no GGUF file, or its header cannot be true; one sentence."""


def read_header(file: BinaryIO, size: int, name: str) -> GGUFHeader:
    """Read the header of one file of `size` bytes; `name` is what errors call it.

    Raises NotGGUFError.
    """
    read = _Reader(file, size, name)
    magic = read.take(4)
    if magic != b"GGUF":
        raise read.wrong(f"it begins with {magic!r} and not with b'GGUF'")
    version = read.number("I")
    if version & 0xFFFF == 0 and version:
        raise read.wrong("it is written for big-endian machines")
    if version not in (2, 3):
        raise read.wrong(f"it has version {version}; 2 and 3 can be read")
    tensors, keys = read.number("Q"), read.number("Q")
    # Twelve bytes are the least that a key takes, and 24 a tensor.
    read.check_count("keys", keys, _MOST_KEYS, 12)
    read.check_count("tensors", tensors, MOST_TENSORS, 24)
    values: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key = read.text(_LONGEST_NAME, "a key")
        if key in values or key in lengths:
            raise read.wrong(f"the key {key!r} is there twice")
        value, length = read.value(key)
        if value is not None:
            values[key] = value
        if length is not None:
            lengths[key] = length
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise read.wrong(f"general.alignment is {alignment!r}: it must be a power of two")
    found = _tensors(read, tensors, alignment)
    return GGUFHeader(values, lengths, found, (name,), size, read.position)


def _tensors(read: "_Reader", number: int, alignment: int) -> tuple[Tensor, ...]:
    """Read what a header says of its tensors, and check that the file has all of them."""
    found: dict[str, Tensor] = {}
    end = 0
    for _ in range(number):
        tensor, offset = _tensor(read)
        if tensor.name in found:
            raise read.wrong(f"the tensor {tensor.name!r} is there twice")
        if offset != end:
            raise read.wrong(
                f"the tensor {tensor.name!r} begins at byte {offset} and not at {end}"
            )
        found[tensor.name] = tensor
        end += -(-tensor.size // alignment) * alignment
    _check_counted(read, number, end)
    begin = -(-read.position // alignment) * alignment
    if found:
        # The last one need not be filled up.
        last = found[next(reversed(found))]
        end -= -last.size % alignment
    if begin + end > read.size:
        raise read.wrong(
            f"its tensors end at byte {begin + end}, and it has {read.size}: it is not whole"
        )
    return tuple(found.values())


def _tensor(read: "_Reader") -> tuple[Tensor, int]:
    """Read what a header says of one tensor, and where it says that its data begins."""
    name = read.text(_LONGEST_NAME, "the name of a tensor")
    dimensions = read.number("I")
    if not 1 <= dimensions <= 4:
        raise read.wrong(f"the tensor {name!r} has {dimensions} dimensions: 1 to 4 are right")
    shape = tuple(read.number("Q") for _ in range(dimensions))
    kind, offset = read.number("I"), read.number("Q")
    if kind not in TENSOR_TYPES:
        raise read.wrong(f"the tensor {name!r} has type {kind}, which nobody knows here")
    if min(shape) < 1 or math.prod(shape) >= 2**63:
        raise read.wrong(f"the tensor {name!r} has the shape {list(shape)}")
    label, block, _ = TENSOR_TYPES[kind]
    if shape[0] % block:
        raise read.wrong(
            f"the tensor {name!r} has rows of {shape[0]}: {label} has blocks of {block}"
        )
    return Tensor(name, shape, kind), offset


def _check_counted(read: "_Reader", number: int, end: int) -> None:
    """Refuse a header that tells of a tensor more than it counts: an engine would take what it
    says of that for data, and lack the tensor.

    Behind the last one is data, or zeros: neither is a tensor that begins where the last one ends.
    """
    beyond = replace(read)
    try:
        tensor, offset = _tensor(beyond)
    except NotGGUFError:
        return
    if offset == end:
        raise read.wrong(
            f"its number of tensors is {number:,}, and it tells of another behind them, "
            f"{tensor.name!r}, at byte {read.position:,}"
        )


@dataclass
class _Reader:
    """Reads a file from its start to the end of its header, a piece at a time."""

    file: BinaryIO
    size: int
    name: str
    _piece: bytes = b""
    _begin: int = 0
    """Where the piece begins in the file."""
    _at: int = 0
    """The next byte, in the piece."""
    _values: int = 0
    """Bytes of the values that are kept."""

    @property
    def position(self) -> int:
        return self._begin + self._at

    def wrong(self, what: str) -> NotGGUFError:
        return NotGGUFError(f"{self.name} cannot be read as a GGUF file: {what}")

    def check_count(self, of: str, number: int, most: int, each: int) -> None:
        """Refuse a number of things that the rest of the file, or any model, cannot have."""
        if number * each > self.size - self.position:
            raise self.wrong(f"its number of {of} is {number:,}, and the file ends before")
        if number > most:
            raise self.wrong(f"its number of {of} is {number:,}; {most:,} are the most")

    def take(self, number: int) -> bytes:
        """Return the next bytes; `number` is small."""
        at = self._at
        if at + number > len(self._piece):
            self._more(number)
            at = 0
        self._at = at + number
        return self._piece[at : at + number]

    def number(self, letter: str) -> int:
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def text(self, most: int, what: str) -> str:
        length = self.number("Q")
        if length > most:
            raise self.wrong(f"{what} has {length} bytes; {most} are the most")
        raw = self.take(length)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.wrong(f"{what} is no UTF-8: {raw[:40]!r}") from None

    def value(self, key: str) -> tuple[Value | None, int | None]:
        """Return a value as far as it is kept, and how many entries it has, if it is a list."""
        kind = self.number("I")
        if kind == _STRING:
            length = self.number("Q")
            if length > _LONGEST_TEXT:
                self.skip(length)
                return None, None
            return self._kept(length).decode(errors="replace"), None
        if kind != _ARRAY:
            return self._numbers(key, kind, 1)[0], None
        kind, number = self.number("I"), self.number("Q")
        if kind == _STRING:
            self.check_count(f"entries of {name_of_place(key)}", number, _MOST_ENTRIES, 8)
            self._skip_texts(number)
            return None, number
        letter = self._letter(key, kind)
        each = struct.calcsize("<" + letter)
        self.check_count(f"entries of {name_of_place(key)}", number, _MOST_ENTRIES, each)
        if number > _LONGEST_LIST:
            self.skip(number * each)
            return None, number
        return self._numbers(key, kind, number), number

    def _letter(self, key: str, kind: int) -> str:
        letter = _NUMBERS.get(kind)
        if letter is None:
            raise self.wrong(f"the key {key!r} has a value of type {kind}")
        return letter

    def _numbers(self, key: str, kind: int, number: int) -> tuple[int | float | bool, ...]:
        form = f"<{number}{self._letter(key, kind)}"
        return struct.unpack(form, self._kept(struct.calcsize(form)))

    def _kept(self, number: int) -> bytes:
        """Return the next bytes, of a value that is kept."""
        self._values += number
        if self._values > _MOST_KEPT:
            raise self.wrong(f"its values have more than {_MOST_KEPT // 2**20} MiB")
        return self.take(number)

    def skip(self, number: int) -> None:
        """Pass over bytes, without reading those beyond the piece."""
        self._need(number)
        self._at += number
        if self._at > len(self._piece):
            self._begin += self._at
            self._piece, self._at = b"", 0

    def _skip_texts(self, number: int) -> None:
        """Pass over texts. A vocabulary has hundreds of thousands: no call for each."""
        while number:
            piece, at = self._piece, self._at
            last = len(piece) - 8
            while number and at <= last:
                following = at + 8 + int.from_bytes(piece[at : at + 8], "little")
                if following > len(piece):
                    break
                at = following
                number -= 1
            self._at = at
            if number:
                self.skip(self.number("Q"))
                number -= 1

    def _need(self, number: int) -> None:
        """Refuse to go beyond the end of the file, or farther than a header may."""
        end = self.position + number
        if end > self.size:
            raise self.wrong(f"it ends in its header: byte {end} is needed, it has {self.size}")
        if end > _MOST_BYTES:
            raise self.wrong(f"its header is longer than {_MOST_BYTES // 2**20} MiB")

    def _more(self, number: int) -> None:
        self._need(number)
        begin = self.position
        rest = self._piece[self._at :]
        if not rest:
            self.file.seek(begin)
        wanted = min(max(_PIECE, number), self.size - begin) - len(rest)
        parts = [rest]
        while wanted > 0:
            part = self.file.read(wanted)
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
        self._piece, self._begin, self._at = b"".join(parts), begin, 0
        if len(self._piece) < number:
            raise self.wrong(f"reading stopped at byte {begin + len(self._piece)}")
