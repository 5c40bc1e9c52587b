"""The files of a model at a path or fsspec URL, of which only the headers are read."""

import glob
import hashlib
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from longshore.activities.own_link import may_read_here
from longshore.activities.serving.gguf import MOST_TENSORS, NotGGUFError, read_header
from longshore.activities.storage import address, connect, is_local, speaking, why_away
from longshore.activities.web_files import connect_web
from longshore.models.addresses import without_secrets
from longshore.models.errors import NotFoundError, StoreError
from longshore.models.gguf import GGUFHeader, Tensor
from longshore.models.serving import MOST_FILES, SPLIT, files_of
from longshore.models.text import listed
from longshore.models.visible import shown

_MOST_HEADERS = 128 * 2**20
"""Bytes of the headers of all files of a model: the first alone has a vocabulary."""
_PIECE = 2**20
_SAMPLES, _SAMPLE = 32, 4096
"""Pieces of a model, and the bytes of each."""
_OF_EACH = 2
"""Pieces at least of each of its files."""
_ANSWERS_WITHIN = 60.0
"""Seconds, of each piece."""
_PIECE_WITHIN = 2 * _PIECE / 1_000
"""Seconds, of a piece and what is read ahead of the next one, at 1 kB a second."""


def is_here(path: str) -> bool:
    """Return whether this machine has a path, or any file of a model that is split."""
    if Path(path).exists():
        return True
    found = SPLIT.fullmatch(path)
    if found is None:
        return False
    stem, _, number = found.groups()
    folder = Path(path).parent
    return any(folder.glob(f"{glob.escape(posixpath.basename(stem))}-*-of-{number}.gguf"))


def read_model(url: str) -> GGUFHeader:
    """Return the header of a model, of all its files where it is split as llama.cpp splits.

    Blocks. Raises NotFoundError, NotGGUFError, and StoreError where a file cannot be read.
    """
    header = _read_all(url)
    # Of several files the first may have keys alone.
    if not header.tensors:
        raise NotGGUFError(
            f"{header.files[0]} has no tensor: it is the header of a model without the model"
        )
    return header


def files_in(url: str) -> tuple[Any, list[str]]:
    """Return the file system of a GGUF model and its files. Raises as `read_model`."""
    fs, path = connect_model(url)
    return fs, _parts(fs, path)


def sampled(fs: Any, paths: Sequence[str]) -> str:
    """Return a digest of pieces that are spread over files, and of the files' sizes: a training
    changes weights everywhere. Blocks. Raises StoreError."""
    # The first piece of a file is of its header: the same after a training.
    digest, number = hashlib.sha256(), max(_SAMPLES // len(paths), _OF_EACH)
    for path in paths:
        with speaking("model", address(fs, path), "read"), opened(fs, path, far="none") as found:
            file, size = found
            digest.update(size.to_bytes(8, "big"))
            for piece in range(number):
                file.seek(size * piece // number)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def connect_model(url: str, *, whole: bool = False) -> tuple[Any, str]:
    """Return the file system of a model's file or folder, and its path there. Raises StoreError.

    Over HTTP each question ends after a minute, however slowly the answer comes: whoever adds a
    model would wait for as long as its server likes. Pieces of a `whole` file may come as slowly
    as data may.
    """
    if url.startswith(("http:", "https:")):
        within = _PIECE_WITHIN if whole else _ANSWERS_WITHIN
        return connect_web(url, total=within, here=may_read_here(url))
    try:
        return connect(url)
    except StoreError as error:
        raise StoreError(f"{without_secrets(url)} cannot be read: {error}") from None


def _read_all(url: str) -> GGUFHeader:
    fs, path = connect_model(url)
    parts = _parts(fs, path)
    if len(parts) == 1:
        header = _read(fs, parts[0])
        _check_whole(header)
        return header
    return _joined(len(parts), (_read(fs, part) for part in parts))


def _parts(fs: Any, path: str) -> list[str]:
    """Return the files of a model, of which one is named."""
    found = SPLIT.fullmatch(path)
    if found is None:
        return [path]
    number = found[3]
    if not 1 <= int(number) <= MOST_FILES:
        raise NotGGUFError(f"{shown(path)}: a model has 1 to {MOST_FILES:,} files, not {number}")
    parts = list(files_of(path).values())
    with speaking("model", address(fs, path), "looked for"):
        missing = [part for part in parts if not fs.exists(part)]
    if path in missing:
        _read(fs, path)  # it says more, as that a server does not answer
    if missing:
        named = listed([shown(posixpath.basename(each)) for each in missing], 3)
        are = "is" if len(missing) == 1 else "are"
        raise NotFoundError(f"the model has {len(parts)} files, and {named} {are} not there")
    return parts


def _read(fs: Any, path: str) -> GGUFHeader:
    name = shown(posixpath.basename(path))
    with (
        speaking("model", address(fs, path), "read"),
        suppress(FileNotFoundError),
        opened(fs, path) as (file, size),
    ):
        return read_header(file, size, name)
    raise NotFoundError(f"there is no file {shown(without_secrets(address(fs, path)))}")


@contextmanager
def opened(fs: Any, path: str, *, far: str | None = None) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file to be read, and yield it with its bytes. Of a file that is `far` away more is
    read than is asked for, with "none" no more. Raises what the store raises, and NotGGUFError for
    what is no file."""
    if is_local(fs):
        # A pipe would hold up whoever opens it.
        if Path(path).is_dir():
            raise NotGGUFError(f"{shown(path)} is a folder: name the .gguf file in it")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise NotGGUFError(f"{shown(path)} is no file")
            yield file, found.st_size
        return
    with _opened_far(fs, path, far) as file:
        if not isinstance(file.size, int):
            raise StoreError(f"{without_secrets(address(fs, path))} does not say how long it is")
        yield file, file.size


def _opened_far(fs: Any, path: str, cache: str | None) -> Any:
    kept = {} if cache is None else {"cache_type": cache}
    try:
        return fs.open(path, "rb", block_size=_PIECE, **kept)
    except FileNotFoundError as error:
        if (away := why_away(error)) is None:
            raise
        raise away from None


def _joined(number: int, parts: Iterable[GGUFHeader]) -> GGUFHeader:
    """Return one header for all files: the first has the keys, each has some of the tensors.

    Each is looked at before the next is read: a thousand together have no end.
    """
    first: GGUFHeader | None = None
    tensors = dict[str, Tensor]()
    files: list[str] = []
    file_size = length = 0
    for at, part in enumerate(parts):
        first = first or part
        said = (part.keys.get("split.count"), part.keys.get("split.no"))
        if said != (number, at):
            raise NotGGUFError(
                f"{part.files[0]} says that it is file {said[1]} of {said[0]}, and not {at} of "
                f"{number} (split.no, split.count)"
            )
        there = len(tensors)
        tensors |= {tensor.name: tensor for tensor in part.tensors}
        if len(tensors) < there + len(part.tensors):
            raise NotGGUFError(
                f"{first.files[0]} and the files after it have the same tensor twice"
            )
        if len(tensors) > MOST_TENSORS:
            raise NotGGUFError(
                f"{first.files[0]} and the files after it have more than {MOST_TENSORS:,} tensors"
            )
        files += part.files
        file_size += part.file_size
        length += part.length
        if length > _MOST_HEADERS:
            raise NotGGUFError(
                f"the headers of {first.files[0]} and of the files after it have more than "
                f"{_MOST_HEADERS // 2**20} MiB"
            )
    assert first is not None
    said = first.keys.get("split.tensors.count")
    if said is not None and said != len(tensors):
        raise NotGGUFError(
            f"{first.files[0]} says that all files have {said} tensors: they have {len(tensors)}"
        )
    return replace(
        first, tensors=tuple(tensors.values()), files=tuple(files), file_size=file_size,
        length=length,
    )  # fmt: skip


def _check_whole(header: GGUFHeader) -> None:
    number = header.keys.get("split.count", 1)
    if number not in (0, 1):
        raise NotGGUFError(
            f"{header.files[0]} is one of {number} files: name them as llama.cpp does, "
            "NAME-00001-of-00003.gguf and so on"
        )
