"""What of a running malleable job may be taken, where nobody pays for a part of it.

It keeps the largest of its sizes that is paid for: what somebody pays for is stopped for no other
payer's job. So it is shrunk, and not stopped whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

from longshore.models.funding import ITSELF, Payer, PoolFunding
from longshore.models.placement import RunningJob
from longshore.models.preemption import RunningWork
from longshore.scheduling.funding.sizes import held_at
from longshore.scheduling.preemption.costs import shrinks_in_place
from longshore.scheduling.ranks import staying

KEPT = "\0kept"
"""What a job keeps has an id of its own, so that nobody takes it away."""


class Parts(NamedTuple):
    """A job that gives up a part at most."""

    taken: tuple[RunningJob, ...]
    kept: tuple[RunningJob, ...]

    @property
    def spares_alone(self) -> bool:
        """Whether the job goes on as it is."""
        return all(share.spare for share in self.taken)

    @property
    def most(self) -> int:
        """The most GPUs that it gives up."""
        return sum(len(share.gpu_indices) for share in self.taken)

    @property
    def shares(self) -> tuple[RunningJob, ...]:
        """Both, as of two jobs of which the other can be taken away."""
        kept = (share.job_id + KEPT for share in self.kept)
        renamed = (
            share.model_copy(update={"job_id": name})
            for share, name in zip(self.kept, kept, strict=True)
        )
        return (*self.taken, *renamed)


def parts_of(work: RunningWork, funding: PoolFunding | None) -> Parts | None:
    """Return what a job may lose and what it keeps; None where it may be stopped whole."""
    if funding is None or work.malleable is None:
        return None
    payer = funding.of(work.id)
    if payer is ITSELF or not payer.keeps:
        return None
    size = _largest(work, payer.keeps)
    return shrunk_to(work, size, payer) if size is not None else None


def shrunk_to(work: RunningWork, size: int, payer: Payer) -> Parts | None:
    """Return what a malleable job loses that shrinks to one of its sizes, and what it keeps; None
    where it has no more than that."""
    held = sum(len(share.gpu_indices) for share in work.shares)
    more = held - held_at(work.request, size)
    if more <= 0:
        return None
    return _without(work, _whole_ranks(work, payer, size) or _gpus(work, payer, more))


def size_without(work: RunningWork, lost: int) -> int | None:
    """Return the largest of its sizes that a malleable job can have, with the spares of that,
    once it has lost so many GPUs; None where there is none."""
    return _largest(work, sum(len(share.gpu_indices) for share in work.shares) - lost)


def size_paid_for(work: RunningWork, size: int, asking: str, funding: PoolFunding) -> int:
    """Return the size with which a malleable job goes on, of which another job that is `asking`
    leaves it so many GPUs.

    In place it goes on with all of them. Where it is stopped to shrink it starts on the largest
    that somebody pays for, as any job does (`scheduling.funding.sizes`); where nobody pays for its
    fewest GPUs then, it runs on all.
    """
    payer = funding.of(work.id)
    if _stays_in_place(work, payer, size):
        return size
    held = sum(len(share.gpu_indices) for share in work.shares)
    loses = funding.loses.get(asking, {}).get(work.id, 0)
    paid = _largest(work, (held if payer.funded else payer.keeps) - loses)
    return size if paid is None else min(size, paid)


def _largest(work: RunningWork, gpus: int) -> int | None:
    """Return the largest size of a job that takes no more GPUs than these, with its spares."""
    sizes = work.malleable.sizes if work.malleable is not None else ()
    fits = [size for size in sizes if held_at(work.request, size) <= gpus]
    return fits[-1] if fits else None


def _stays_in_place(work: RunningWork, payer: Payer, size: int) -> bool:
    return shrinks_in_place(work) and bool(_whole_ranks(work, payer, size))


def spares_of(work: RunningWork) -> Parts | None:
    """Return what stands by for a gang as what it may lose; None where nothing does."""
    spares = {
        (share.node_id, gpu) for share in work.shares if share.spare for gpu in share.gpu_indices
    }
    return _without(work, spares) if spares else None


def _without(work: RunningWork, taken: set[tuple[str, int]]) -> Parts:
    gone: list[RunningJob] = []
    stays: list[RunningJob] = []
    for share in work.shares:
        lost = tuple(gpu for gpu in share.gpu_indices if (share.node_id, gpu) in taken)
        gone += _only(share, lost)
        stays += _only(share, tuple(gpu for gpu in share.gpu_indices if gpu not in lost))
    return Parts(tuple(gone), tuple(stays))


def _whole_ranks(work: RunningWork, payer: Payer, size: int) -> set[tuple[str, int]]:
    """Return the GPUs of the ranks that leave where a job shrinks in place; none where it does
    not."""
    assert work.malleable is not None
    held = {share.node_id: share.gpu_indices for share in work.shares}
    # By their ids where their ranks are not known: at worst it is stopped to shrink.
    ranks = [node for node, _ in payer.ranks if node in held] or list(held)
    if not work.malleable.in_place or len(ranks) < len(held):
        return set()
    gpus = {rank: len(held[node]) for rank, node in enumerate(ranks)}
    stay = staying(gpus, work.malleable, size)
    if not stay:
        return set()
    leave = [node for rank, node in enumerate(ranks) if rank not in stay]
    return {(node, gpu) for node in leave for gpu in held[node]}


def _gpus(work: RunningWork, payer: Payer, most: int) -> set[tuple[str, int]]:
    """Return so many GPUs, those first that nobody pays for, of the last ranks."""
    held = {(share.node_id, gpu) for share in work.shares for gpu in share.gpu_indices}

    def in_order() -> Iterator[tuple[str, int]]:
        for node, gpus in reversed(payer.ranks):
            yield from ((node, gpu) for gpu in reversed(gpus))
        yield from sorted(held, reverse=True)

    return set([gpu for gpu in dict.fromkeys(in_order()) if gpu in held][:most])


def _only(share: RunningJob, gpus: tuple[int, ...]) -> list[RunningJob]:
    """Return what a job has of a node with these of its GPUs."""
    if len(gpus) == len(share.gpu_indices):
        return [share]
    part = len(gpus) / len(share.gpu_indices)
    host = {name: getattr(share, name) * part for name in ("cpus", "ram", "storage", "power")}
    return [share.model_copy(update={"gpu_indices": gpus, **host})] if gpus else []
