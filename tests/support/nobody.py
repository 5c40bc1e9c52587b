"""What a user who is not root does: root may read and write everywhere."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_of_nobody() -> Iterator[Path]:
    """A folder of a user who is not root, and the test as that user; no time."""
    rights = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # that of pytest is closed to others
        if rights == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(rights)
