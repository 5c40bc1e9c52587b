"""What this machine knows of folders that it has uploaded: a file that is as it was is not read
again, and a content that was sent is not sent again. Nothing is lost with it but time."""

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from longshore.models.snapshot import Part

TICK = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system. A file that changed so shortly before it was
read may change again within the same tick, and look the same (Git calls it racily clean)."""
_VERSION = 1
_AT_ONCE = 500


class CodeCache:
    """A file of SQLite in the state folder; where that cannot be written, it is forgotten at the
    end. Not safe to use from several threads at once."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = _opened(path)
            damage = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                self._connection.close()
                raise sqlite3.DatabaseError(damage)
        except (OSError, sqlite3.OperationalError):
            # Of somebody else, on a full disk, or in use by another for long: it is whole.
            self._connection = _opened(":memory:")
        except sqlite3.DatabaseError:  # of another version, or damaged: it is a cache
            self._connection = _opened_anew(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def contents(self, folder: Path) -> dict[str, tuple[str, str]]:
        """Return the files of a folder by path: how each looked (`look_of`), and its SHA-256."""
        rows = self._connection.execute(
            "SELECT path, look, sha256 FROM files WHERE folder = ?", (_named(folder),)
        )
        return {path: (look, sha256) for path, look, sha256 in rows}

    def keep_contents(
        self, folder: Path, found: Iterable[tuple[str, str, str]], gone: Iterable[str]
    ) -> None:
        """Keep path, look and SHA-256 of files that were read, and forget those that are gone."""
        with self._connection as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)",
                ((_named(folder), *each) for each in found),
            )
            connection.executemany(
                "DELETE FROM files WHERE folder = ? AND path = ?",
                ((_named(folder), path) for path in gone),
            )

    def parts(self, of: str, contents: Sequence[str]) -> dict[str, dict[int, Part]]:
        """Return where contents lie in a store, by position; `of` names the store and tenant."""
        found: dict[str, dict[int, Part]] = {}
        for at in range(0, len(contents), _AT_ONCE):
            some = contents[at : at + _AT_ONCE]
            marks = ",".join("?" * len(some))
            rows = self._connection.execute(
                "SELECT sha256, position, object, start, size FROM parts"
                f" WHERE store = ? AND sha256 IN ({marks})",
                (of, *some),
            )
            for sha256, position, name, start, size in rows:
                part = Part(object=name, offset=start, size=size)
                found.setdefault(sha256, {})[position] = part
        return found

    def keep_parts(self, of: str, parts: Mapping[str, Mapping[int, Part]]) -> None:
        """Note objects that have arrived."""
        with self._connection as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (of, sha256, position, part.object, part.offset, part.size)
                    for sha256, placed in parts.items()
                    for position, part in placed.items()
                ),
            )

    def forget_contents(self, of: str, contents: Iterable[str]) -> None:
        """Forget where contents lie."""
        with self._connection as connection:
            connection.executemany(
                "DELETE FROM parts WHERE store = ? AND sha256 = ?",
                ((of, sha256) for sha256 in contents),
            )

    def forget_objects(self, of: str, names: Iterable[str]) -> None:
        """Forget objects that the store has no more."""
        with self._connection as connection:
            connection.executemany(
                "DELETE FROM parts WHERE store = ? AND object = ?", ((of, name) for name in names)
            )


def look_of(stat: os.stat_result) -> str:
    """Return what changes with a file's content: size, times of the file system, inode."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def is_settled(stat: os.stat_result) -> bool:
    """Return whether a file that is read from now on shows any later change in how it looks."""
    return max(stat.st_mtime_ns, stat.st_ctime_ns) < time.time_ns() - TICK


def _named(folder: Path) -> str:
    """Return the path of a folder, whose own name need not be UTF-8, as text of a database."""
    return str(folder).encode(errors="backslashreplace").decode()


def _opened(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    try:
        with contextlib.suppress(sqlite3.OperationalError):  # where a file system cannot do it
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version}")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.commit()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _opened_anew(path: Path) -> sqlite3.Connection:
    try:
        path.unlink(missing_ok=True)
        return _opened(path)
    except (OSError, sqlite3.OperationalError):  # in a folder that cannot be written
        return _opened(":memory:")


_TABLES = (
    "CREATE TABLE IF NOT EXISTS files (folder TEXT, path TEXT, look TEXT, sha256 TEXT,"
    " PRIMARY KEY (folder, path)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS parts (store TEXT, sha256 TEXT, position INTEGER, object TEXT,"
    " start INTEGER, size INTEGER, PRIMARY KEY (store, sha256, position)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS parts_by_object ON parts (store, object)",
)


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file. Blocks. Raises OSError."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_if_there(path: str) -> str:
    """Return the SHA-256 of a file, empty where it is gone."""
    try:
        return sha256_of(path)
    except OSError:
        return ""
