"""How the functions of the pass are compiled.

None of them makes an array or keeps one, so numba counts no references to arrays (`_nrt`): to
count them for the groups of arrays that functions hand on took longer than the work.

numba keeps what it compiled by the file of each function: after a change to a file, clear the
cache, for functions of other files that call its own have them in themselves.
"""

from typing import Any

from numba import njit

_njit: Any = njit
entry: Any = _njit(cache=True, error_model="numpy", _nrt=False)
"""A function that Python calls."""
inner: Any = _njit(
    cache=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
)
"""One that only other compiled functions call: without the way in from Python, which takes longer
to compile than the function where that has groups of arrays."""
