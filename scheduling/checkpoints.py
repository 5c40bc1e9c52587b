"""Which checkpoints count: whole ones, the ones to keep, and what an attempt goes on from."""

from collections.abc import Iterable, Sequence

from longshore.models.base import Frozen
from longshore.models.checkpoint import LocalCheckpoint, ManifestName


class WholeCheckpoint(Frozen):
    """A checkpoint that every rank of its job has stored."""

    manifests: tuple[ManifestName, ...]
    """By rank."""

    @property
    def order(self) -> tuple[int, int]:
        """Newer ones compare greater: by attempt, then by rank 0's number."""
        return self.manifests[0].order

    @property
    def step(self) -> int | None:
        return self.manifests[0].step


class Resume(Frozen):
    """What an attempt begins with, and why."""

    keep_local: bool
    """Leave the folder on the node as it is."""
    reason: str
    anew: bool = False
    """Begin with an empty folder, whatever lies there."""


def whole(names: Iterable[ManifestName]) -> tuple[WholeCheckpoint, ...]:
    """Return the checkpoints that are stored from every rank, newest first."""
    return tuple(
        WholeCheckpoint(manifests=group)
        for group in gathered(names)
        if [name.rank for name in group] == list(range(group[0].ranks))
    )


def gathered(names: Iterable[ManifestName]) -> tuple[tuple[ManifestName, ...], ...]:
    """Return what is stored, a group for each checkpoint, by rank; newest first, whole or not.

    Ranks agree by attempt and step; by attempt and number where they name no step. Of a rank
    that stored the same step twice the later one counts.
    """
    groups: dict[tuple[int, int, bool, int], dict[int, ManifestName]] = {}
    for name in sorted(names, key=lambda name: name.order):
        marked = name.step is not None
        same = name.step if name.step is not None else name.number
        group = groups.setdefault((name.attempt, name.ranks, marked, same), {})
        group[name.rank] = name
    ordered = [tuple(group[rank] for rank in sorted(group)) for group in groups.values()]
    return tuple(sorted(ordered, key=lambda group: group[0].order, reverse=True))


def surplus(
    names: Sequence[ManifestName],
    keep: int,
    rank: int,
    ranks: int,
    unusable: Sequence[ManifestName] = (),
) -> set[str]:
    """Return the manifests that one rank is to remove, so that `keep` whole ones stay.

    Each rank removes its own, and rank 0 also those of ranks that the job no longer has. What is
    newer than the last one to keep stays, whole or not: it may become whole. One that is known to
    be damaged is none to keep: it would take the place of the one that was gone on from.
    """
    stays = [one for one in whole(names) if not set(one.manifests) & set(unusable)][:keep]
    if len(stays) < keep:
        return set()
    last = stays[-1]
    kept = {str(name) for one in stays for name in one.manifests}
    bounds = {name.rank: name.order for name in last.manifests}
    return {
        str(name)
        for name in names
        if (name.rank == rank or (rank == 0 and name.rank >= ranks))
        and str(name) not in kept
        and name.order < bounds.get(name.rank, last.order)
    }


def halvings(which: int, apart: int) -> int:
    """Return how often the saves of a gang can be halved, each second one left out, with this one
    among what is left. Where saves come faster than the store takes them, those with more
    halvings are stored first: ranks find the same ones, and need not talk.

    `which` is its step, or its number where the job tells none. `apart` divides the difference of
    any two of them: so each second one of 999, 1999, 2999 is left out, too.
    """
    its = which // (apart & -apart or 1)
    return (its & -its).bit_length() - 1 if its else 64


def resume(local: LocalCheckpoint | None, stored: WholeCheckpoint | None, ranks: int) -> Resume:
    """Decide whether an attempt goes on from the folder on its node or from the store.

    `local` is None where the folder is not known to hold a checkpoint. A gang takes what is
    stored: only that is the same moment on all of its nodes. Where nothing whole is, all of its
    ranks begin anew: a folder holds what one of them saved, and no rank knows of the others'.
    """
    if stored is None:
        if ranks > 1 or (local is not None and local.ranks > 1):
            why = "no checkpoint is stored from all ranks, so all of them begin anew"
            return Resume(keep_local=False, reason=why, anew=True)
        return Resume(keep_local=True, reason="nothing whole is stored")
    if ranks > 1:
        return Resume(keep_local=False, reason="all ranks go on from the same checkpoint")
    if local is None:
        return Resume(keep_local=False, reason="the folder on this node holds none")
    if local.ranks == 1 and local.order >= stored.order:
        return Resume(keep_local=True, reason="the folder on this node is at least as new")
    return Resume(keep_local=False, reason="the stored one is newer")


def resumes_without_store(local: LocalCheckpoint | None, attempt: int, ranks: int) -> bool:
    """Decide whether an attempt may go on from the folder on its node while the store is away.

    It may where the attempt before it was given that folder: no other node has saved since.
    Otherwise the store may hold a newer checkpoint, which the first one of this attempt would
    displace. Of a gang the folder holds one rank's part.
    """
    if local is None or local.ranks > 1 or ranks > 1:
        return False
    return max(local.ran, local.attempt) >= attempt - 1


def uses_folder(local: LocalCheckpoint | None, ranks: int) -> bool:
    """Decide whether an attempt can go on from the folder on its node where that is older than
    what is stored, and all of that is damaged. One that cannot would begin anew: its first
    checkpoint would displace them, and what the folder of the node holds that saved them."""
    return local is not None and local.ranks == 1 and ranks == 1


def belongs_to(origin: int, rank: int, ranks: int) -> bool:
    """Return whether an unchanged file, which rank `origin` wrote, is for `rank` to publish."""
    return origin % ranks == rank
