"""Where the data sets of jobs come from: files below a URL, each with what tells it from another.

Everything here blocks. A source is whatever fsspec reads: file, http(s), s3 and the like.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Protocol

from longshore.activities.node.source_links import MOST_FILES, with_linked
from longshore.activities.node.source_walk import files_below, infos_of, refusal_or
from longshore.activities.node.system import boot_clock
from longshore.activities.own_link import may_read_here
from longshore.activities.storage import SourceError, connect, is_local, speaking, why_away
from longshore.activities.web_files import Look, connect_web
from longshore.models.addresses import file_name, unquoted, without_secrets
from longshore.models.errors import StoreError
from longshore.models.visible import shown

SUMS = "SHA256SUMS"
"""A file at the root of a data set with the digests of others, as `sha256sum` writes it."""
_MOST_OF_SUMS = 200_000_000
"""Bytes of it; a longer one is passed over."""
PIECE = 8_000_000
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", re.ASCII)
_TAGS = ("ETag", "etag", "md5Hash", "Content-MD5", "Last-Modified", "LastModified", "mtime")
"""What file systems tell of a file that changes with its content, the best first."""
_OF_THE_DISK = "lost+found"
"""What file systems have at their top for root alone: a whole disk can be a data set."""
_LEAST, _LEAST_OVER = 1_000, 60.0
"""Bytes a second that a source has to give of a file, over so many seconds of waiting for it. One
that gives less is as good as silent, and would hold up others as long as it likes."""


class ForbiddenError(SourceError):
    """A source that the job may not have: the node would read what only the node may."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set."""

    path: str
    """Below the data set, with slashes."""
    location: str
    size: int | None = None
    """Bytes; None where the source does not say."""
    tag: str = ""
    sha256: str = ""
    executable: bool = False


@dataclass(frozen=True)
class Listing:
    """The files of a data set as they were when somebody looked."""

    source: str
    files: tuple[SourceFile, ...]
    known_as: str = ""
    """Its digest where the source itself was not asked for it."""
    place: str = ""
    """As its source has it."""

    @property
    def digest(self) -> str:
        """What is the same for the same files alone."""
        if self.known_as:
            return self.known_as
        hashed = hashlib.sha256(self.source.encode())
        if self.place:
            hashed.update(f"\0{self.place}".encode(errors="surrogateescape"))
        for file in self.files:
            hashed.update(f"\n{file.path}\0{file.size}\0{file.tag}".encode(errors="replace"))
        return hashed.hexdigest()[:16]

    @property
    def total(self) -> int:
        """Bytes of all files whose size is known."""
        return sum(file.size or 0 for file in self.files)


class Source(Protocol):
    """What data is fetched from. All of it blocks."""

    @property
    def url(self) -> str: ...

    @property
    def local(self) -> Path | None:
        """The path on this machine, without the links that were there; None of another source."""
        ...

    @property
    def place(self) -> str:
        """Where its URL leads, of what not every job may have: the path of this machine behind
        links, or that it may be the machine itself. Empty of what the URL alone says."""
        ...

    def overlaps(self, store: str) -> bool:
        """Return whether a store lies in this source, or the source in it. Raises StoreError."""
        ...

    def look(self) -> Listing:
        """Return what is there. Raises SourceError where nothing is, StoreError otherwise."""
        ...

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """Read a file piece by piece. Raises StoreError, SourceError and DamagedError."""
        ...

    def is_as_listed(self, file: SourceFile) -> bool:
        """Return whether a file is still the one that was listed. Raises StoreError."""
        ...


class DataSource:
    """The files below one URL."""

    def __init__(self, url: str, *, for_image: bool = False) -> None:
        """With `for_image` nothing is read from this machine's own addresses over HTTP.

        Raises StoreError where it is no URL, or what reads such a one is not installed.
        """
        self.url = url
        self._is_http = url.startswith(("http:", "https:"))
        if self._is_http:
            # Files of any size: `read` sees to how fast they come.
            here = may_read_here(url, for_image=for_image)
            self._fs, self._root = connect_web(url, total=None, here=here)
            self.place = "here" if here else ""
        else:
            try:
                self._fs, self._root = connect(url)
            except StoreError as error:
                raise StoreError(f"{without_secrets(url)} cannot be read: {error}") from None
            self.place = ""
        self.local = Path(os.path.realpath(self._root)) if is_local(self._fs) else None
        """The path on this machine, without the links that were there; None of another source."""
        if self.local is not None and str(self.local) != os.path.abspath(self._root):  # noqa: PTH100 (a Path keeps a `..`)
            self.place = str(self.local)

    def overlaps(self, store: str) -> bool:
        """Return whether a store lies in this source, or the source in it. Raises StoreError."""
        fs, root = connect(store)
        if not isinstance(self._fs, type(fs)):
            return False
        ours, theirs = self._root, root
        if is_local(fs):
            ours, theirs = os.path.realpath(ours), os.path.realpath(theirs)
        ours, theirs = f"{ours.strip('/')}/", f"{theirs.strip('/')}/"
        return ours.startswith(theirs) or theirs.startswith(ours)

    def look(self) -> Listing:
        """Return what is there. Raises SourceError where nothing is, StoreError otherwise."""
        look = Look(self.url, MOST_FILES)
        with speaking("source", self.url, "listed"):
            try:
                files = self._files(look)
            except FileNotFoundError as error:
                if why_away(error):
                    raise refusal_or(error, without_secrets(self.url)) from None
                files = []
            except Exception as error:  # a file system may raise anything
                raise refusal_or(error, without_secrets(self.url)) from None
        if not files:
            raise SourceError(f"there is nothing at {without_secrets(self.url)}")
        if len(files) > MOST_FILES:
            raise self._too_many()
        sums = self._sums(files, look)
        files = [_with_sum(file, sums) for file in files]
        found = tuple(sorted(files, key=lambda file: file.path))
        return Listing(self.url, found, place=self.place)

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """Read a file piece by piece. Raises StoreError, and SourceError for what leads out."""
        with (
            speaking("source", self.url, f"read ({file.path})"),
            self._open(file) as opened,
        ):
            waited, came = 0.0, 0
            while True:
                began = boot_clock()
                piece = opened.read(PIECE)
                if not piece:
                    return
                waited, came = waited + boot_clock() - began, came + len(piece)
                if waited > _LEAST_OVER:
                    if came < _LEAST * waited:
                        raise StoreError(
                            f"{without_secrets(self.url)} gives less than {_LEAST:,} bytes a "
                            f"second ({file.path})"
                        )
                    waited, came = 0.0, 0
                yield piece

    def is_as_listed(self, file: SourceFile) -> bool:
        """Return whether a file is still the one that was listed. Raises StoreError."""
        with speaking("source", self.url, f"read ({file.path})"):
            try:
                return _tag_of(self._fs.info(file.location)) == file.tag
            except FileNotFoundError as error:
                if away := why_away(error):
                    raise away from None
                return False

    def _open(self, file: SourceFile) -> Any:
        if self.local is not None:
            return self._open_here(file)
        if self._is_http:
            return self._fs.stream(file.location)
        return self._fs.open(file.location, "rb", block_size=PIECE, cache_type="none")

    def _open_here(self, file: SourceFile) -> IO[bytes]:
        """Open a regular file below the source, whatever links somebody makes there meanwhile."""
        # A pipe would hold up whoever opens it.
        fd = os.open(file.location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        opened = os.fdopen(fd, "rb")
        try:
            self._refuse_outside(file.path, str(Path(f"/proc/self/fd/{fd}").readlink()))
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{shown(file.path)} is no file")
        except BaseException:
            opened.close()
            raise
        return opened

    def _refuse_outside(self, path: str, real: str) -> None:
        root = self.local
        if root is not None and not Path(real).is_relative_to(root):
            raise SourceError(f"{shown(path)} is a link that leads out of the data set")

    def _files(self, look: Look) -> list[SourceFile]:
        if not self.url.endswith("/"):
            info = self._fs.info(self._root)
            if info.get("type") != "directory":
                name = file_name(self.url)
                refuse_name(self.url, name)
                return [self._file(name, self._root, info)]
        if self._is_http or is_local(self._fs):
            top = f"{self._root}/" if self._is_http else self._root
            how = {"look": look} if self._is_http else {}
            found: dict[str, Any] = {}
            for location, info in files_below(self._fs, top, self._enters, **how):
                found[location] = info
                # Cut off, it would count as whole: links to nowhere are left out below.
                if len(found) > MOST_FILES:
                    raise self._too_many()
        else:  # a bucket, which lists all that it has at once
            found = self._fs.find(self._root, detail=True)
        there: dict[str, str] = {}
        links: dict[str, str] = {}
        for location, info in sorted(found.items(), key=itemgetter(0)):
            path = self._path(location)
            if not path or path.endswith("/"):
                continue  # the object that stands for a folder of a bucket
            if self._is_http:
                path = self._decoded(path)
            refuse_name(self.url, path)
            if info.get("islink"):
                real = os.path.realpath(location)
                self._refuse_outside(path, real)
                links[path] = os.path.relpath(real, self.local)
                continue
            there[path] = location
        if self._is_http:  # an index page tells no size
            found = infos_of(self._fs, list(there.values()), look)
        files = {path: self._file(path, at, found[at]) for path, at in there.items()}
        linked = with_linked(files, links) if links else files
        return [file if file.path == path else replace(file, path=path)
                for path, file in linked.items()]  # fmt: skip

    def _path(self, location: str) -> str:
        return location.removeprefix(self._root).lstrip("/")

    def _enters(self, location: str) -> bool:
        return self._is_http or self._path(location) != _OF_THE_DISK

    def _too_many(self) -> SourceError:
        where = without_secrets(self.url)
        return SourceError(f"{where} has over {MOST_FILES:,} files: pack them, as in tar")

    def _decoded(self, path: str) -> str:
        """Return the path that a link of an index page means. Raises SourceError."""
        parts = [unquoted(part) for part in path.split("/")]
        if any("/" in part for part in parts):
            raise _unnameable(self.url, path)
        return "/".join(parts)

    def _file(self, path: str, location: str, info: dict[str, Any]) -> SourceFile:
        size = info.get("size")
        known = None if size is None else int(size)
        return SourceFile(path, location, known, _tag_of(info), executable=_is_program(info))

    def _sums(self, files: list[SourceFile], look: Look) -> dict[str, str]:
        """Return the digests that the data set has of its own files."""
        for file in files:
            if file.path == SUMS and (file.size or 0) <= _MOST_OF_SUMS:
                return self._sums_in(file, {each.path for each in files}, look)
        return {}

    def _sums_in(self, file: SourceFile, paths: set[str], look: Look) -> dict[str, str]:
        """Return the digests of these paths. Raises SourceError where there is no end of them."""
        sums, size, rest = dict[str, str](), 0, b""
        for piece in chain(self.read(file), (b"\n",)):
            look.left()
            size += len(piece)
            if size > _MOST_OF_SUMS:
                where = without_secrets(self.url)
                raise SourceError(f"{SUMS} of {where} has over {_MOST_OF_SUMS:,} bytes")
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                text = line.removesuffix(b"\r").decode(errors="surrogateescape")
                if (found := _SUM.fullmatch(text)) and found[2] in paths:
                    sums[found[2]] = found[1].lower()
        return sums


def _tag_of(info: dict[str, Any]) -> str:
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    return f"{tag} program" if _is_program(info) else tag


def _is_program(info: dict[str, Any]) -> bool:
    """Return whether a file of this machine may be executed; nothing else tells a mode."""
    return bool(info.get("mode", 0) & 0o100)


def _with_sum(file: SourceFile, sums: dict[str, str]) -> SourceFile:
    if digest := sums.get(file.path):
        return replace(file, sha256=digest)
    return file


def refuse_name(url: str, path: str) -> None:
    """Raise SourceError where a path is none of a file below the data set."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\n" in part for part in parts):
        raise _unnameable(url, path)


def _unnameable(url: str, path: str) -> SourceError:
    return SourceError(
        f"{without_secrets(url)} has a file whose name no node can give: {shown(path)}"
    )
