"""How the functions of the pass are compiled, and when what was compiled is out of date.

None of them makes an array or keeps one, so numba counts no references to arrays (`_nrt`): to
count them for the groups of arrays that functions hand on took longer than the work.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from longshore.scheduling.placement.headroom import TINY
from longshore.scheduling.placement.keep_room import EMPTIER
from longshore.scheduling.placement.layouts import FITS
from longshore.scheduling.placement.slots import EPSILON


def entry(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls."""
    return _kept(_njit(cache=True, error_model="numpy", _nrt=False)(function))


def inner(function: Callable[..., Any]) -> Any:
    """Compile one that only other compiled functions call: without the way in from Python, which
    takes longer to compile than the function where that has groups of arrays."""
    plain = _njit(
        cache=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )  # fmt: skip
    return _kept(plain(function))


_njit: Any = njit


def _sources() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return f"{digest.hexdigest()} {FITS} {EPSILON} {TINY} {EMPTIER}"


_STAMP = _sources()


def _kept(compiled: Any) -> Any:
    """Have what is on the disk hold for these sources alone.

    numba looks at the file of a function, but a function has those of other files that it calls in
    itself: after an update it would go on with the old ones.
    """
    file = getattr(compiled._cache, "_cache_file", None)
    if file is not None:
        file._source_stamp = _STAMP
    return compiled
