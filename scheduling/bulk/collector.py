"""Python's collector of cyclic garbage, out of the way of a long plan."""

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def paused() -> Generator[None]:
    """Have no garbage collected meanwhile.

    A plan of thousands of jobs makes many models, none of them in a cycle; the collector would
    look at all nodes of the pool again and again, which takes longer than the decisions.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
