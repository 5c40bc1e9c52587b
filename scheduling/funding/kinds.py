"""To which kinds of nodes a job that waits may come.

Envelopes may be for some nodes alone: for a type of GPU, or for labels. Envelopes for different
nodes do not pay for one job together, so each kind is asked for by itself; kinds that no envelope
tells apart which a job may use are one.
"""

from collections.abc import Collection, Iterator

from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.facts import Facts, Kind, Use, Where
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.rungs import ladder_of

Kinds = tuple[Where, ...]
_NO_LABELS: frozenset[tuple[str, str]] = frozenset()


class PoolKinds:
    """The kinds of nodes of a pool, as far as envelopes tell them apart."""

    def __init__(self, facts: Facts, pool: str) -> None:
        self._facts, self._pool = facts, pool
        # Only labels that envelopes name tell nodes apart: each may have some of its own.
        self._names = {name for owned in facts.envelopes.values() for name in owned.spec.labels}
        self._of: dict[object, Kinds] = {}

    def of(self, job: JobRequest) -> Kinds:
        """Return the kinds of nodes to which a job may come, at least one. Where the pool buys,
        those that envelopes are for, and those that none is for alone, are among them."""
        key = job.types, job.constraints
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._found(job)
        return found

    def held_on(self, job: JobRequest) -> tuple[int, ...]:
        """Return the GPUs that a sensitive job holds, all of its nodes, on nodes of each kind to
        which it may come: on the smallest, of nodes of several sizes. Empty for any other.

        Whether somebody pays for a larger one is known when it has its nodes."""
        if not job.sensitive:
            return ()
        return tuple(min(self._sizes(job, where), default=job.gpus_held) for where in self.of(job))

    def fewest(self, job: JobRequest) -> int:
        """Return the fewest GPUs that a sensitive job holds, all of its nodes."""
        job = job.smallest
        sizes = [size for where in self.of(job) for size in self._sizes(job, where) or (0,)]
        return max(min(sizes, default=0), job.gpus_held)

    def _sizes(self, job: JobRequest, where: Where) -> list[int]:
        """Return how many GPUs it may hold on nodes of a kind; none where no node is known."""
        wants = job.gpus_held
        sizes = {
            size
            for kind, each in self._facts.sizes.items()
            if self.place(kind) == where
            for size in each
        }
        if job.gang is not None:
            return [-(-wants // size) * size for size in sizes]
        return [size for size in sizes if size >= wants]

    def place(self, kind: Kind) -> Where:
        """Return where nodes of this pool are that have this type and labels."""
        return self.reduced(Where(self._pool, kind.gpu_type, kind.labels))

    def reduced(self, where: Where) -> Where:
        """Return the kind of a node."""
        labels = frozenset(each for each in where.labels or () if each[0] in self._names)
        return where._replace(labels=labels)

    def _found(self, job: JobRequest) -> Kinds:
        kinds = {
            self.place(kind)
            for kind in self._facts.kinds
            if job.takes(kind.gpu_type) and _allows(job, dict(kind.labels))
        }
        if self._facts.buys:
            kinds.update(self._bought(job))
        return tuple(sorted(kinds, key=_order)) or (Where(self._pool, job.gpu_type, None),)

    def _bought(self, job: JobRequest) -> Iterator[Where]:
        """Yield nodes that may be bought, which have what an envelope asks for and no more."""
        specs = (owned.spec for owned in self._facts.envelopes.values())
        selectors = {(spec.gpu_type or "", frozenset(spec.labels.items())) for spec in specs}
        asked = {
            each.key: each.values[0]
            for each in job.constraints
            if each.values and not each.negated and each.key in self._names
        }
        for gpu_type, labels in selectors | {("", _NO_LABELS)}:
            has = asked | dict(labels)
            if not _allows(job, has, self._names):
                continue
            for wants in job.types or ("",):
                if not (wants and gpu_type) or wants.casefold() == gpu_type.casefold():
                    of_type = gpu_type or wants
                    yield Where(self._pool, of_type, frozenset(has.items()), there=False)


def _order(where: Where) -> tuple[bool, str, list[tuple[str, str]]]:
    return not where.there, where.gpu_type or "", sorted(where.labels or ())


def _allows(job: JobRequest, labels: dict[str, str], names: Collection[str] | None = None) -> bool:
    """Return whether a job may come to a node with these labels; of these `names` alone."""
    return all(
        each.allows(labels.get(each.key))
        for each in job.constraints
        if names is None or each.key in names
    )


def at_kind(use: Use, where: Where) -> Use:
    """Return a job that waits as one that comes to nodes of this kind."""
    shares = tuple(share._replace(where=where) for share in use.shares)
    if use.gpus_on:
        held = use.gpus_on[use.kinds.index(where)]
        shares = tuple(share._replace(gpus=tuple(range(held))) for share in shares)
    return use._replace(shares=shares, kinds=(), gpus_on=())


def alike(room: Room, use: Use) -> list[Kinds]:
    """Return the kinds of nodes to which a job may come; those together for which it may use the
    same envelopes."""
    terms = use.terms
    key = "alike", use.tenant, use.kinds, terms.sponsors, use.preemptible, use.gpus_on
    found = room.ladders.get(key)
    if found is None:
        groups: dict[object, list[Where]] = {}
        for where, held in zip(use.kinds, use.gpus_on or (0,) * len(use.kinds), strict=True):
            ladder = ladder_of(room, use.tenant, where, terms, use.preemptible)
            while ladder.more():
                pass
            asked = tuple((rung.steps, rung.lent, *rung.envelopes(room)) for rung in ladder.rungs)
            groups.setdefault((asked, where.there, held), []).append(where)
        found = room.ladders[key] = [tuple(group) for group in groups.values()]
    return found
