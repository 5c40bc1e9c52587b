"""What descends from a process, and a signal for all of it; from the standard library alone.

Where /proc is missing (macOS) nothing is found: who asks knows one group at least.
"""

import contextlib
import os
from collections.abc import Container, Iterable

from longshore.activities.node.system import processes


def descendants(of: int, without: Container[int] = ()) -> list[tuple[int, int]]:
    """Return (pid, group) of all that descends from a process, but for some of its children."""
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, group in processes():
        children.setdefault(parent, []).append((pid, group))
    found: list[tuple[int, int]] = []
    parents = [of]
    while parents:
        below = [
            child
            for child in children.pop(parents.pop(), list[tuple[int, int]]())
            if child[0] not in without
        ]
        found += below
        parents += [pid for pid, _ in below]
    return found


def signal_groups(groups: Iterable[int], number: int) -> None:
    """Signal each process of some groups, once.

    By their groups, for what a process forks at this moment is in its group, and in no list. Only
    descendants of a job are in one: it has a session of its own, and so has who leaves that.
    """
    for group in set(groups) - {os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
