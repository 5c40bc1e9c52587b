"""Rules to stand beside the planner: they know every duration exactly, and only count GPUs.

A job goes to the node with the fewest free GPUs that has enough, one of more than 8 to idle nodes
and, with the rest, to another.
"""

from collections.abc import Callable, Sequence

from benchmarks.queueing_world import NODE_GPUS, Job, World

Shares = list[tuple[int, int]]
"""Nodes by number, each once, with how many of their GPUs."""


class Counted(World):
    """Nodes that differ in nothing but how many of their GPUs are free."""

    def __init__(
        self, jobs: Sequence[Job], nodes: int, restart: float, *, check: bool = False
    ) -> None:
        super().__init__(jobs, nodes, restart, check=check)
        self.free = [NODE_GPUS] * nodes
        self.shares: dict[str, Shares] = {}

    def in_use(self) -> list[int]:
        in_use = [0] * self.nodes
        for shares in self.shares.values():
            for node, gpus in shares:
                in_use[node] += gpus
        assert in_use == [NODE_GPUS - free for free in self.free]
        return in_use

    def joined(self, job: Job) -> None:
        """The order of `waiting` is all that there is to know."""

    def left(self, job: Job) -> None:
        for node, gpus in self.shares.pop(job.id):
            self.free[node] += gpus

    def start(self, job: Job, shares: Shares) -> None:
        self.shares[job.id] = shares
        for node, gpus in shares:
            self.free[node] -= gpus
        self.begin(job)


class Fifo(Counted):
    """Whoever came first starts first: nobody overtakes."""

    def decide(self) -> None:
        self.cycles += 1
        for job in list(self.waiting.values()):
            shares = best_fit(self.free, job.gpus)
            if shares is None:
                return
            self.start(job, shares)


class Sjf(Counted):
    """The shortest that fits starts first."""

    def decide(self) -> None:
        self.cycles += 1
        too_large = NODE_GPUS * self.nodes + 1
        if not any(self.free):
            return
        for job in sorted(self.waiting.values(), key=lambda job: (job.left, job.number)):
            if job.gpus >= too_large:
                continue
            shares = best_fit(self.free, job.gpus)
            if shares is None:
                too_large = job.gpus
            else:
                self.start(job, shares)


class Easy(Counted):
    """First come, first served; who would not delay the first that waits may overtake it."""

    def decide(self) -> None:
        self.cycles += 1
        queue = list(self.waiting.values())
        for place, job in enumerate(queue):
            shares = best_fit(self.free, job.gpus)
            if shares is None:
                self._backfill(job, queue[place + 1 :])
                return
            self.start(job, shares)

    def _backfill(self, head: Job, behind: Sequence[Job]) -> None:
        if not behind or not any(self.free):
            return
        begins, kept, then = self._reservation(head)

        def spares(node: int, gpus: int) -> bool:
            """Whether the first still fits there if a job takes these for long."""
            return node not in kept or (
                head.gpus <= NODE_GPUS and then[node] - gpus >= head.gpus
            )  # fmt: skip

        too_large = NODE_GPUS * self.nodes + 1
        for job in behind:
            if job.gpus >= too_large:
                continue
            is_long = self.now + job.left > begins
            shares = best_fit(self.free, job.gpus, spares if is_long else None)
            if shares is not None:
                self.start(job, shares)
                for node, gpus in shares if is_long else ():
                    then[node] -= gpus
            elif not is_long:
                too_large = job.gpus

    def _reservation(self, head: Job) -> tuple[float, set[int], list[int]]:
        """Return when the first can start, its nodes, and what is free then of every node."""
        then = list(self.free)
        ending = sorted(self.running.values(), key=lambda job: job.ends)
        for place, job in enumerate(ending):
            for node, gpus in self.shares[job.id]:
                then[node] += gpus
            if place + 1 < len(ending) and ending[place + 1].ends == job.ends:
                continue
            shares = best_fit(then, head.gpus)
            if shares is not None:
                return job.ends, {node for node, _ in shares}, then
        raise AssertionError("all nodes are idle when everybody has left")


class Srpt(Counted):
    """The shortest time left first: longer ones that can save stop for it."""

    def decide(self) -> None:
        self.cycles += 1
        while self._start_and_stop():
            pass

    def _start_and_stop(self) -> bool:
        """Return whether anybody was stopped, who may go on elsewhere."""
        too_large = NODE_GPUS * self.nodes + 1
        stopped = False
        for job in sorted(self.waiting.values(), key=lambda job: (self._takes(job), job.number)):
            if job.gpus >= too_large:
                continue
            shares = best_fit(self.free, job.gpus)
            if shares is None:
                victims = self._victims(job)
                if victims is None:
                    too_large = job.gpus
                    continue
                for victim in victims:
                    self.stop(victim)
                stopped = True
                shares = best_fit(self.free, job.gpus)
                assert shares is not None
            self.start(job, shares)
        return stopped

    def _takes(self, job: Job) -> float:
        return job.left + (self.restart if job.attempt > 1 else 0.0)

    def _victims(self, job: Job) -> list[Job] | None:
        """Return whom to stop: as few GPUs as can be, then those that have the most left."""
        until = self.now + self._takes(job) + self.restart
        longer = [each for each in self.running.values() if each.saves and each.ends > until]
        longer.sort(key=lambda each: -each.ends)
        on: list[list[Job]] = [[] for _ in self.free]
        for each in longer:
            for node, _ in self.shares[each.id]:
                on[node].append(each)
        found: list[tuple[int, int, list[Job]]] = []
        parts, rest = divmod(job.gpus, NODE_GPUS)
        asked = job.gpus if job.gpus < NODE_GPUS else NODE_GPUS
        for node, free in enumerate(self.free):
            some = _enough(on[node], asked - free, lambda each, node=node: self._gpus(each, node))
            if some is not None:
                found.append((sum(each.gpus for each in some), node, some))
        found.sort(key=lambda each: each[:2])
        nodes = max(1, parts + (rest > 0 and parts > 0))
        if len(found) < nodes:
            return None
        chosen = {each.id: each for _, _, some in found[:nodes] for each in some}
        return list(chosen.values())

    def _gpus(self, job: Job, node: int) -> int:
        return next(gpus for where, gpus in self.shares[job.id] if where == node)


def _enough(jobs: Sequence[Job], missing: int, gpus_of: Callable[[Job], int]) -> list[Job] | None:
    """Return the first of the jobs that have as many GPUs as are missing, without those that are
    not needed for that."""
    chosen: list[Job] = []
    for job in jobs:
        if missing <= 0:
            break
        chosen.append(job)
        missing -= gpus_of(job)
    if missing > 0:
        return None
    for job in list(reversed(chosen)):
        if missing + gpus_of(job) <= 0:
            chosen.remove(job)
            missing += gpus_of(job)
    return chosen


def best_fit(
    free: Sequence[int], gpus: int, may: Callable[[int, int], bool] | None = None
) -> Shares | None:
    """Return where a job goes, on nodes that `may` give it so many GPUs; None where nowhere."""
    shares: Shares = []
    taken: set[int] = set()
    while gpus > 0:
        part = min(gpus, NODE_GPUS)
        best, least = -1, NODE_GPUS + 1
        for node, there in enumerate(free):
            if part <= there < least and node not in taken and (may is None or may(node, part)):
                best, least = node, there
                if there == part:
                    break
        if best < 0:
            return None
        shares.append((best, part))
        taken.add(best)
        gpus -= part
    return shares


YARDSTICKS: dict[str, type[Counted]] = {"fifo": Fifo, "easy": Easy, "sjf": Sjf, "srpt": Srpt}
