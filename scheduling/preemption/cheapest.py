"""The set of jobs to stop for one that waits that costs least."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from longshore.models.job_request import JobRequest
from longshore.models.preemption import RunningWork
from longshore.models.topology import Gang
from longshore.scheduling.placement.state import Need
from longshore.scheduling.preemption.candidates import Candidate, Candidates, least_cost
from longshore.scheduling.preemption.search import EXACT, Best, search
from longshore.scheduling.preemption.what_if import WhatIfCluster
from longshore.scheduling.topology import DomainKey, domain_of


class CheapestSets:
    """What looks for such sets, on the nodes as they are when it is asked."""

    def __init__(self, cluster: WhatIfCluster, candidates: Candidates) -> None:
        self._cluster = cluster
        self._candidates = candidates

    def of(self, job: JobRequest, names: tuple[str, ...], most: int) -> tuple[Candidate, ...]:
        """Return the set of jobs to stop that costs least; none where no set suffices."""
        best = Best(most)
        if job.gang is not None:
            self._search_domains(job, job.gang, names, best)
        else:
            self._search_nodes(job, names, best)
        return self._necessary(job, best.chosen)

    def _search_nodes(self, job: JobRequest, names: tuple[str, ...], best: Best) -> None:
        need = Need.of(job, self._cluster.packing)
        for least, name in self._candidates.cheapest_first(job, names):
            if best.beats(least, 1):
                return
            here = self._candidates.on(name, job)
            missing = job.gpus - self._cluster.free_gpus(name) if job.gpu.whole else 0
            if job.gpus == 1 and len(here) > EXACT:  # jobs that share a GPU go together
                for gpu in self._cluster.node(name).gpus:
                    some = [one for one in here if _holds(one.work, name, gpu.index)]
                    search(some, partial(self._cluster.node_fits, name, need), best, missing)
            search(here, partial(self._cluster.node_fits, name, need), best, missing)

    def _search_domains(
        self, job: JobRequest, gang: Gang, names: tuple[str, ...], best: Best
    ) -> None:
        """Look in each domain, and where there are several in all of them together."""
        of = {
            name: domain_of(self._cluster.node(name), unlabelled=gang.unlabelled_nodes)
            for name in names
        }
        scopes: dict[DomainKey | None, list[str]] = {}
        for name, domain in of.items():
            scopes.setdefault(domain, []).append(name)
        known = self._candidates.among(job, names)
        candidates = [self._candidates.cost(one, job) for one in known]
        inside: dict[DomainKey | None, list[Candidate]] = {domain: [] for domain in scopes}
        for one in candidates:
            for domain in {of[name] for name in one.work.nodes if name in of}:
                inside[domain].append(one)
        looks: list[tuple[float, int, Sequence[str], list[Candidate]]] = []
        for domain, scope in [*scopes.items(), (None, names)][: None if len(scopes) > 1 else 1]:
            here = candidates if scope is names else inside[domain]
            missing = job.gpus - sum(map(self._cluster.free_gpus, scope))
            least = least_cost([(one.cost, one.frees) for one in here], missing)
            looks.append((least, missing, scope, here))
        for least, missing, scope, here in sorted(looks, key=itemgetter(0)):
            if best.beats(least, 1):
                return
            search(here, self._cluster.gang_on(scope, job, gang), best, missing)

    def _necessary(self, job: JobRequest, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the chosen without those that the packer can do without, dearest first; none
        where it finds that the job does not fit after all."""

        def fits(some: Sequence[Candidate]) -> bool:
            return self._cluster.fits(job, frozenset(one.id for one in some))

        if not chosen or not fits(chosen):
            return ()
        for one in sorted(chosen, key=lambda one: (-one.cost, one.submitted, one.id)):
            fewer = tuple(other for other in chosen if other.id != one.id)
            if fits(fewer):
                chosen = fewer
        return chosen


def _holds(work: RunningWork, node_id: str, gpu: int) -> bool:
    return any(share.node_id == node_id and gpu in share.gpu_indices for share in work.shares)
