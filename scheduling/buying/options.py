"""The ways to serve the jobs of a tier that are worth a look: a bounded number of them.

For each of at most four kinds of job that wait: from each book up to five windows, each with up to
four numbers of nodes; from the offers the cheapest machine that holds the first job, one for
each job, and larger ones that several share; for a gang clusters. At most 96 in a round. The best
of those that leave jobs without a machine are then filled up from the same list for the rest: a
block for the large jobs and small machines for the others are one option together. At most 36 of
these.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, product

from longshore.models.buying import BuyingPolicy, BuyingRule, OptionKind, UnmetJob
from longshore.models.job_request import JobRequest
from longshore.models.market import NoQuote, Window
from longshore.models.purchase import MOST_NODES
from longshore.scheduling.buying.costs import Candidate, Scene
from longshore.scheduling.buying.prices import (
    Among,
    BlockSource,
    PodSource,
    taken_by,
    whole_steps,
    window_from,
)
from longshore.scheduling.node_lifetime import to_finish

MOST_OPTIONS = 96
MOST_EXTENDED, MOST_EXTENSIONS = 6, 6
_MOST_KINDS = 4
_MOST_SIZES = 4


def candidates(
    scene: Scene,
    unmet: Sequence[UnmetJob],
    blocks: Sequence[BlockSource],
    pods: Sequence[PodSource],
) -> Iterator[Candidate]:
    """Yield what might be bought for the jobs that nothing holds, first jobs first."""
    # One that nothing for sale could hold must not stand for others of its kind; nor one that is
    # too long for a window, where it is a block that is asked for.
    sources = (*blocks, *pods)
    unmet = [job for job in unmet if any(source.holds(job.request) for source in sources)]
    short = _one_of_each_kind(job for job in unmet if _fits_a_window(job.request, scene.policy))
    everything = (
        candidate
        for kind, first in islice(_one_of_each_kind(unmet).items(), _MOST_KINDS)
        for candidate in (
            *_pods(first, unmet, pods),
            *(_blocks(scene, short[kind], unmet, blocks) if kind in short else ()),
        )
    )
    yield from islice(everything, MOST_OPTIONS)


def extended(
    scene: Scene,
    first: Candidate,
    rest: Sequence[UnmetJob],
    blocks: Sequence[BlockSource],
    pods: Sequence[PodSource],
) -> Iterator[Candidate]:
    """Yield a candidate with something more for the jobs that it leaves."""
    taken = taken_by((plan for _, plan in first.blocks), scene.taken)
    beside = replace(scene, taken=taken)
    for more in islice(candidates(beside, rest, blocks, pods), MOST_EXTENSIONS):
        kind = first.kind if first.blocks else more.kind
        yield Candidate(kind, first.blocks + more.blocks, first.pods + more.pods)


def windows_to_ask(
    jobs: Iterable[JobRequest], policy: BuyingPolicy, grain: timedelta, now: datetime
) -> tuple[Window, ...]:
    """Return the windows to ask a market with a book for each, at most five."""
    wanted = list(jobs)
    if policy.rule is BuyingRule.SEED:
        return (window_from(grain, now, policy.seed_window),)
    if not wanted:
        return (window_from(grain, now, policy.shortest_window),)
    first = next((job for job in wanted if _fits_a_window(job, policy)), None)
    if first is None:  # what is there is told all the same
        return (window_from(grain, now, policy.longest_window),)
    lengths = window_lengths(first, wanted, policy)
    return tuple(window_from(grain, now, length) for length in lengths)


def window_lengths(
    first: JobRequest, jobs: Iterable[JobRequest], policy: BuyingPolicy
) -> tuple[timedelta, ...]:
    """Return how long a window may be: for the first job, the longest, and twice and more."""
    least = shortest_window(first, policy)
    longest = max((shortest_window(job, policy) for job in jobs), default=least)
    wanted = {
        least,
        longest,
        2 * least,
        4 * least,
        policy.longest_window,
    }
    shortest = max(policy.shortest_window, least)
    fitting = {max(length, shortest) for length in wanted}
    return tuple(sorted(length for length in fitting if length <= policy.longest_window))


def shortest_window(job: JobRequest, policy: BuyingPolicy) -> timedelta:
    """Return how long a window has to be for a job at least."""
    overhead = policy.usual_startup + timedelta(minutes=1)
    return whole_steps(to_finish(job, policy) + overhead, policy.window_step)


def _fits_a_window(job: JobRequest, policy: BuyingPolicy) -> bool:
    return shortest_window(job, policy) <= policy.longest_window


def _one_of_each_kind(unmet: Iterable[UnmetJob]) -> dict[Hashable, JobRequest]:
    found: dict[Hashable, JobRequest] = {}
    for job in unmet:
        request = job.request
        types = tuple(each.casefold() for each in request.types)
        kind = types, request.gang is not None, request.constraints
        found.setdefault(kind, request)
    return found


def _blocks(
    scene: Scene, first: JobRequest, unmet: Sequence[UnmetJob], sources: Sequence[BlockSource]
) -> Iterator[Candidate]:
    gang = first.gang is not None
    for source in sources:
        if not source.holds(first):
            continue
        fitting = [job.request for job in unmet if source.holds(job.request)]
        windows = _windows(scene, source, first, fitting)
        wheres: list[Among | None] = [*source.places_for_gang()] if gang else [None]
        for number, window in enumerate(windows):
            for nodes, among in product(_node_counts(source, first, fitting), wheres):
                plan = source.plan(
                    nodes, window, scene.tier, scene.policy, scene.now, scene.taken,
                    among=among, for_gang=gang,
                )  # fmt: skip
                if isinstance(plan, NoQuote):
                    continue
                kind = OptionKind.LONGER_BLOCK if number else OptionKind.BLOCK
                yield Candidate(kind, blocks=((source, plan),))


def _windows(
    scene: Scene, source: BlockSource, first: JobRequest, fitting: Sequence[JobRequest]
) -> list[Window]:
    """Return the windows that a book can be asked for, shortest first."""
    policy = scene.policy
    asked = source.quote.window
    if asked is None:
        lengths = window_lengths(first, fitting, policy)
        return [
            window_from(source.market.capabilities.grain, scene.now, length) for length in lengths
        ]
    ready_at = max(asked.start, scene.now) + policy.usual_startup
    fits = ready_at + to_finish(first, policy) <= asked.end
    within = policy.shortest_window <= asked.length <= policy.longest_window
    return [asked] if fits and within else []


def _node_counts(
    source: BlockSource, first: JobRequest, fitting: Sequence[JobRequest]
) -> list[int]:
    """Return how many nodes: for the first job, for all jobs at once, and between."""
    of_node = source.shape.gpus
    least = -(-first.gpus_held // of_node)
    shared = sum(job.gpus_held for job in fitting if not job.sensitive)
    alone = [job.gpus_held for job in fitting if job.sensitive]
    most = max(sum(-(-gpus // of_node) for gpus in (shared, *alone)), least)
    most = max(min(most, MOST_NODES), least)  # the others are bought for next
    counts = {least, least + 1, (least + most) // 2, most, most + 1}
    return sorted(n for n in counts if least <= n <= most + (most > least))[: _MOST_SIZES + 1]


def _pods(
    first: JobRequest, unmet: Sequence[UnmetJob], sources: Sequence[PodSource]
) -> Iterator[Candidate]:
    machines = [source for source in sources if not source.is_cluster]
    usable = [source for source in machines if first.gang is None and source.holds(first)]
    if first.gang is not None:
        yield from _clusters(first, sources)
    if usable:
        yield _pods_of([usable[0]])
    each = _one_for_each(unmet, machines)
    if len(each) > 1:
        yield _pods_of(each)
    total = sum(job.request.gpus for job in unmet)
    sizes: dict[int, PodSource] = {}
    for source in usable:
        sizes.setdefault(source.shape.gpus, source)
    for size, source in sorted(sizes.items()):
        if size == usable[0].shape.gpus:
            continue
        yield _pods_of([source])
        several = -(-total // size)
        if several > 1 and not source.once:
            yield _pods_of([source] * min(several, 8))


def _clusters(first: JobRequest, sources: Sequence[PodSource]) -> Iterator[Candidate]:
    """Yield the cheapest cluster of each size that a gang may fit in, smallest first."""
    sizes: dict[int, PodSource] = {}
    for source in sources:
        fits = source.is_cluster and source.gpus >= first.gpus_held
        if fits and source.holds(first):
            sizes.setdefault(source.gpus, source)
    for _, source in sorted(sizes.items())[:_MOST_SIZES]:
        yield _pods_of([source])


def _one_for_each(unmet: Sequence[UnmetJob], sources: Sequence[PodSource]) -> list[PodSource]:
    taken: list[PodSource] = []
    for job in unmet:
        if job.request.gang is not None:
            continue
        for source in sources:
            free = not source.once or all(source is not other for other in taken)
            if free and source.holds(job.request):
                taken.append(source)
                break
    return taken


def _pods_of(sources: Sequence[PodSource]) -> Candidate:
    return Candidate(OptionKind.PODS, pods=tuple(sources))
