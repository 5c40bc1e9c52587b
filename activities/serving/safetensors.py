"""Read the header of a safetensors file, in memory and time that no header can exceed.

A header is JSON of one form: a tensor is a mapping without mappings or braces in it. So it is read
an entry at a time, and never as a whole, which could be a hundred times as large in memory.
"""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from longshore.models.errors import DamagedError

MOST_BYTES = 100_000_000
"""Of a header (safetensors/src/tensor.rs, MAX_HEADER_SIZE)."""
_MOST_TENSORS = 2**18
_MOST_NOTES = 2**16
"""Entries of `__metadata__`, which nobody asks for."""
_MOST_DIMENSIONS = 32
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip
"""By type. One that is not here has as many bytes as its tensor says."""

# Without a way back (*+): a text that does not fit is refused in one pass.
_SPACE = re.compile(rb"[ \t\r\n]*+")
_NAME = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.){0,4096}+"')
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TENSOR = re.compile(rb"\{[^{}]{2,2000}+\}")
_TYPE = re.compile(r"[A-Z0-9_]{1,20}", re.ASCII)


class NotSafetensorsError(DamagedError):
    """A file is no safetensors file, or its header cannot be true; one sentence."""


@dataclass(frozen=True)
class SafetensorsHeader:
    """What the header of one file says."""

    weights: Counter[str]
    """Bytes by type."""
    tensors: int
    length: int
    """Bytes of the header."""


def read_header(file: BinaryIO, size: int, name: str) -> SafetensorsHeader:
    """Read the header of a file of `size` bytes; `name` is what errors call it.

    Raises NotSafetensorsError.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8:
        raise _wrong(name, f"it has {len(start)} bytes")
    if length > MOST_BYTES:
        raise _wrong(name, f"its header has {length:,} bytes; {MOST_BYTES:,} are the most")
    if length > size - 8:
        raise _wrong(name, f"its header has {length:,} bytes, and the file ends before")
    parts: list[bytes] = []
    missing = length
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise _wrong(name, f"reading stopped {missing:,} bytes before the end of its header")
    return _Header(b"".join(parts), size - 8 - length, name).read()


def _wrong(name: str, what: str) -> NotSafetensorsError:
    return NotSafetensorsError(f"{name} cannot be read as a safetensors file: {what}")


class _Header:
    """The text of a header, read from its start to its end."""

    def __init__(self, text: bytes, data: int, name: str) -> None:
        self._text = text
        self._data = data
        """Bytes behind the header."""
        self._name = name
        self._at = 0

    def read(self) -> SafetensorsHeader:
        weights = Counter[str]()
        ranges: list[tuple[int, int]] = []
        names = set[str]()
        self._expect(b"{", "does not begin with {")
        while not self._passes(b"}"):
            if names and not self._passes(b","):
                raise self._wrong("has no comma between two tensors", here=True)
            name = self._key()
            if name in names:
                raise self._wrong(f"has the tensor {name!r} twice")
            names.add(name)
            if name == "__metadata__":
                self._pass_metadata()
                continue
            if len(ranges) == _MOST_TENSORS:
                raise self._wrong(f"has more than {_MOST_TENSORS:,} tensors")
            kind, begin, end = self._tensor(name)
            weights[kind] += end - begin
            ranges.append((begin, end))
        self._skip_space()
        if self._at < len(self._text):
            raise self._wrong("goes on behind its end", here=True)
        self._check(ranges)
        return SafetensorsHeader(weights, len(ranges), len(self._text))

    def _check(self, ranges: list[tuple[int, int]]) -> None:
        """Refuse tensors that overlap, leave a hole or end elsewhere than the file."""
        last = 0
        for begin, end in sorted(ranges):
            if begin != last:
                raise self._wrong(
                    f"has a tensor that begins at byte {begin:,} and not at {last:,}"
                )
            last = end
        if last != self._data:
            raise self._wrong(
                f"says that its tensors have {last:,} bytes, and the file has {self._data:,} of "
                "them: it is not whole, or not this one"
            )

    def _tensor(self, name: str) -> tuple[str, int, int]:
        """Return type, begin and end of a tensor."""
        self._skip_space()
        found = _TENSOR.match(self._text, self._at)
        if found is None:
            raise self._wrong(f"has no tensor behind the name {name!r}", here=True)
        self._at = found.end()
        try:
            read = cast("dict[str, Any]", json.loads(found.group()))
        except (ValueError, RecursionError):
            raise self._wrong(f"has no JSON behind the name {name!r}") from None
        kind = read.get("dtype")
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise self._wrong(f"has no type (dtype) of the tensor {name!r}")
        shape = _sizes(read.get("shape"))
        if shape is None or len(shape) > _MOST_DIMENSIONS:
            raise self._wrong(f"has no shape of the tensor {name!r}")
        offsets = _sizes(read.get("data_offsets"))
        if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._wrong(f"does not say where the tensor {name!r} is (data_offsets)")
        begin, end = offsets
        bits = _BITS.get(kind)
        if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
            raise self._wrong(
                f"says that the tensor {name!r} of shape {shape} and type {kind} has "
                f"{end - begin:,} bytes"
            )
        return kind, begin, end

    def _pass_metadata(self) -> None:
        self._expect(b"{", "has no mapping behind __metadata__")
        number = 0
        while not self._passes(b"}"):
            if number and not self._passes(b","):
                raise self._wrong("has no comma in __metadata__", here=True)
            number += 1
            if number > _MOST_NOTES:
                raise self._wrong(f"has more than {_MOST_NOTES:,} entries of __metadata__")
            self._pass_text()
            self._expect(b":", "has no colon in __metadata__")
            self._pass_text()

    def _pass_text(self) -> None:
        self._skip_space()
        found = _TEXT.match(self._text, self._at)
        if found is None:
            raise self._wrong("has no text in __metadata__", here=True)
        self._at = found.end()

    def _key(self) -> str:
        self._skip_space()
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._wrong("has no name of a tensor", here=True)
        self._at = found.end()
        try:
            name = json.loads(found.group())
        except ValueError:
            raise self._wrong("has a name that is no text in UTF-8", here=True) from None
        self._expect(b":", f"has no colon behind {name!r}")
        return name

    def _expect(self, sign: bytes, otherwise: str) -> None:
        if not self._passes(sign):
            raise self._wrong(otherwise, here=True)

    def _passes(self, sign: bytes) -> bool:
        """Go beyond a sign, and spaces before it, and return whether it was there."""
        self._skip_space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += 1
        return True

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _wrong(self, what: str, *, here: bool = False) -> NotSafetensorsError:
        where = f", at byte {8 + self._at:,}" if here else ""
        return _wrong(self._name, f"its header {what}{where}")


def _sizes(value: Any) -> list[int] | None:
    """Return a list of whole numbers that a file can have; None of another value."""
    if not isinstance(value, list):
        return None
    numbers = cast("list[Any]", value)
    return numbers if all(type(n) is int and 0 <= n < 2**63 for n in numbers) else None
