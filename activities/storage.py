"""What every store under an fsspec URL needs: objects that are there whole or not at all."""

import os
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem


def is_local(fs: Any) -> bool:
    """Return whether a store is a folder of this machine."""
    return isinstance(fs, LocalFileSystem)


def put_whole(fs: Any, path: str, data: bytes, *, durable: bool = False) -> None:
    """Store `data` at `path`: readers see all of it or none.

    With `durable` it is on the disk when this returns. Raises OSError, or what the store raises.
    """
    if not is_local(fs):
        fs.pipe_file(path, data)  # an object store shows an object whole or not at all
        return
    target = Path(path)
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
