"""What every store under an fsspec URL needs: objects that are there whole or not at all."""

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from longshore.models.addresses import without_secrets
from longshore.models.errors import DamagedError, StoreError

_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})


class GivenUp(Exception):
    """Nobody waits for this any more."""


class SourceError(Exception):
    """A source has not what a job asks for, and will not have it by itself; one sentence."""


def connect(url: str, **options: Any) -> tuple[Any, str]:
    """Return the file system of an fsspec URL, and the path of the store in it; `options` are
    those of such a file system.

    What others have written is seen at once: listings are not kept. Raises StoreError when
    the package of such a store is not installed, or nobody knows the scheme.
    """
    if url.startswith("file:"):
        url = unquote(url)  # fsspec takes a %20 for three letters of the path
    try:
        if url.startswith(("http:", "https:")):  # fsspec takes the `::` of an address for a chain
            kind = url.partition(":")[0]
            fs, root = fsspec.filesystem(kind, use_listings_cache=False, **options), url
        else:
            fs, root = fsspec.url_to_fs(url, use_listings_cache=False, **options)
    except (ImportError, ValueError) as error:
        raise StoreError(
            f"the store {without_secrets(url)} cannot be opened: {error}. Install what it needs "
            "in Longshore's environment (for s3:// `pip install -e '.[s3]'`), or correct the "
            "setting log_store, checkpoint_store or artifact_store"
        ) from error
    return fs, root.rstrip("/")


def why_away(error: FileNotFoundError) -> Exception | None:
    """Return why a store did not say whether a file is there; None where it said that it is not.

    Of an HTTP server that does not answer, or refuses, fsspec says that there is no file.
    """
    cause = error.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, FileNotFoundError):
        return None
    return None if getattr(cause, "status", None) in (404, 410) else cause


def make_folder(fs: Any, path: str) -> None:
    """Make a folder where a store has folders. Raises what the store raises.

    An object store has none: it would make a bucket of a mistyped name instead.
    """
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if not protocols & _WITHOUT_FOLDERS:
        fs.makedirs(path, exist_ok=True)


def is_local(fs: Any) -> bool:
    """Return whether a store is a folder of this machine."""
    return isinstance(fs, LocalFileSystem)


def address(fs: Any, path: str) -> str:
    """Return a path in a store as people write it: with its scheme, unless it is of this
    machine."""
    return path if is_local(fs) else str(fs.unstrip_protocol(path))


@contextlib.contextmanager
def speaking(name: str, url: str, done: str) -> Iterator[None]:
    """Turn whatever a store raises into a StoreError: this store cannot be `done`."""
    try:
        yield
    except (StoreError, SourceError, DamagedError, GivenUp, GeneratorExit):
        raise
    except Exception as error:  # a store may raise anything
        why = without_secrets(_why(error))
        raise StoreError(f"the {name} {without_secrets(url)} cannot be {done}: {why}") from error


def _why(error: Exception) -> str:
    """Return why a store cannot be used, with what helps where its own words do not say that."""
    kind = type(error).__name__
    if kind == "NoCredentialsError":  # of botocore, which need not be installed
        return (
            "no credentials were found for it. Give them in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY) or in ~/.aws/credentials"
        )
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time"
    if kind in ("ClientConnectorError", "ClientConnectorDNSError"):  # of aiohttp, likewise
        found: Any = error
        return f"nothing answers at {found.host}:{found.port} ({_of_system(found.os_error)})"
    return f"{kind}: {error}"


def _of_system(error: OSError) -> str:
    """Return ``Connection refused``, without numbers and addresses."""
    if isinstance(error, socket.gaierror) or not error.errno or error.errno < 0:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def put_whole(fs: Any, path: str, data: bytes, *, durable: bool = False) -> None:
    """Store `data` at `path`: readers see all of it or none.

    With `durable` it is on the disk when this returns. Raises OSError, or what the store raises.
    """
    if not is_local(fs):
        fs.pipe_file(path, data)  # an object store shows an object whole or not at all
        return
    put_local(Path(path), data, durable=durable)


def put_local(target: Path, data: bytes, *, durable: bool = False) -> None:
    """The same, of a file of this machine. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
