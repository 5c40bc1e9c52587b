"""To which kinds of nodes a job that waits may come.

Envelopes may be for some nodes alone: for a type of GPU, or for labels. Envelopes for different
nodes do not pay for one job together, so each kind is asked for by itself; kinds that no envelope
tells apart which a job may use are one.
"""

from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.facts import Facts, Use, Where
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.rungs import ladder_of

Kinds = tuple[Where, ...]


class PoolKinds:
    """The kinds of nodes of a pool, as far as envelopes tell them apart."""

    def __init__(self, facts: Facts, pool: str) -> None:
        self._facts, self._pool = facts, pool
        # Only labels that envelopes name tell nodes apart: each may have some of its own.
        self._names = {name for owned in facts.envelopes.values() for name in owned.spec.labels}
        self._of: dict[object, Kinds] = {}

    def of(self, job: JobRequest) -> Kinds:
        """Return the kinds of nodes to which a job may come, at least one. Where the pool buys,
        the last stands for nodes that are not there yet, and has no labels (None)."""
        key = job.gpu_type, job.constraints
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._found(job)
        return found

    def reduced(self, where: Where) -> Where:
        """Return the kind of a node."""
        labels = frozenset(each for each in where.labels or () if each[0] in self._names)
        return where._replace(labels=labels)

    def _found(self, job: JobRequest) -> Kinds:
        wants = (job.gpu_type or "").casefold()
        kinds = {
            self.reduced(Where(self._pool, kind.gpu_type, kind.labels))
            for kind in self._facts.kinds
            if wants in ("", kind.gpu_type.casefold()) and _allows(job, dict(kind.labels))
        }
        unknown = Where(self._pool, job.gpu_type, None)
        known = sorted(kinds, key=lambda kind: (kind.gpu_type or "", sorted(kind.labels or ())))
        return (*known, unknown) if self._facts.buys or not known else tuple(known)


def _allows(job: JobRequest, labels: dict[str, str]) -> bool:
    return all(each.allows(labels.get(each.key)) for each in job.constraints)


def at_kind(use: Use, where: Where) -> Use:
    """Return a job that waits as one that comes to nodes of this kind."""
    return use._replace(
        shares=tuple(share._replace(where=where) for share in use.shares), kinds=()
    )


def alike(room: Room, use: Use) -> list[Kinds]:
    """Return the kinds of nodes to which a job may come; those together for which it may use the
    same envelopes."""
    terms = use.terms
    key = "alike", use.tenant, use.kinds, terms.sponsors, use.preemptible
    found = room.ladders.get(key)
    if found is None:
        groups: dict[object, list[Where]] = {}
        for where in use.kinds:
            ladder = ladder_of(room, use.tenant, where, terms, use.preemptible)
            while ladder.more():
                pass
            asked = tuple((rung.steps, rung.lent, *rung.envelopes(room)) for rung in ladder.rungs)
            groups.setdefault((asked, where.labels is None), []).append(where)
        found = room.ladders[key] = [tuple(group) for group in groups.values()]
    return found
