"""Finding the programs that are installed beside this Python."""

import os
import shutil
import sys
from pathlib import Path

from longshore.models.errors import StackError


def program(name: str, advice: str = "") -> str:
    """Return the path of a program: beside this Python, else on PATH.

    Raises StackError, with `advice` as another way out, when it is at neither place.
    """
    beside = Path(sys.executable).parent / name
    if os.access(beside, os.X_OK):
        return str(beside)
    if found := shutil.which(name):
        return found
    raise StackError(
        f"the program `{name}` is neither in {beside.parent} nor on PATH. Install again with "
        f"`make install`{advice}."
    )
