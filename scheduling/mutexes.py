"""Mutexes: which of the jobs that wait for the same name is submitted next, and what it waits for.

A job asks for its mutexes once all its other conditions hold, and takes them all at once. Those
behind it wait for it, also while it waits for another of its mutexes: it would never have all of
them at once otherwise. The order is the same for every mutex, so nobody waits in a circle.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Waiter:
    """A job of a DAG that is not submitted, and whose other conditions hold."""

    dag_id: str
    name: str
    mutexes: tuple[str, ...]
    priority: int
    """Its class; a higher one goes first."""
    since: datetime
    """When its other conditions held."""

    @property
    def step(self) -> str:
        """The job as people call it before it has an id: ``DAG.JOB``."""
        return f"{self.dag_id}.{self.name}"


@dataclass(frozen=True)
class Holder:
    """A job that has a mutex."""

    job_id: str
    queued: bool = False
    """It stands in a queue, and holds no GPU."""


def in_order(waiters: Iterable[Waiter]) -> tuple[Waiter, ...]:
    """Return who comes first: by class, then by when the other conditions held."""
    return tuple(
        sorted(waiters, key=lambda each: (-each.priority, each.since, each.dag_id, each.name))
    )


def grants(waiters: Iterable[Waiter], held: Collection[str]) -> tuple[Waiter, ...]:
    """Return who takes all its mutexes now. `held` has the names of those that jobs have."""
    claimed, granted = set(held), list[Waiter]()
    for each in in_order(waiters):
        if claimed.isdisjoint(each.mutexes):
            granted.append(each)
        claimed.update(each.mutexes)
    return tuple(granted)


def next_dags(waiters: Sequence[Waiter], names: Collection[str]) -> frozenset[str]:
    """Return the DAGs of those that come first for these mutexes: they are to look again."""
    first: dict[str, str] = {}
    for each in in_order(waiters):
        for name in each.mutexes:
            if name in names:
                first.setdefault(name, each.dag_id)
    return frozenset(first.values())


def waits_for_mutex(
    waiter: Waiter, waiters: Iterable[Waiter], holders: Mapping[str, Holder]
) -> str:
    """Return ``waits for mutex db, which nightly-abc.load holds``, of the first that it has to
    wait for; empty where it takes all of them next."""
    for name in waiter.mutexes:
        if (holder := holders.get(name)) is not None:
            queued = ", and waits in a queue itself" if holder.queued else ""
            return f"waits for mutex {name}, which {holder.job_id} holds{queued}"
    for other in in_order(waiters):
        if other == waiter:
            return ""
        shared = set(waiter.mutexes) & set(other.mutexes)
        if shared:
            return f"waits for mutex {min(shared)}, for which {other.step} waits before it"
    return ""
