"""The packer as one writes it down from docs/architecture.md, to hold the real one against.

Every node is asked anew for every job, moment by moment and GPU by GPU: slow, and plain to read.
Decisions come without their sentence.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import (
    Candidate,
    CyclePlan,
    Decision,
    PackingPolicy,
    PackingRule,
    PlacementKind,
    RejectionCode,
    Reservation,
    RunningJob,
    ScoreTerm,
    ScoreTerms,
    ScoreWeights,
)
from tests.support.reference_gangs import first_gang, gang_decision
from tests.support.reference_machine import (
    HOST_CODES,
    TINY,
    GPUs,
    Machine,
    Span,
    all_of,
    average_gap,
    cannot_fetch,
    end_of,
    ends_too_soon,
    instances,
    labelled_otherwise,
    left,
    link_of,
    machine_of,
    memory_of,
    misfit,
    nobody_there,
    open_part,
    span_of,
    start,
    wants,
    with_job,
)


def reference_plan(
    queue: Iterable[JobRequest],
    nodes: Sequence[Node],
    running: Sequence[RunningJob],
    policy: PackingPolicy,
    now: datetime,
    ranking: "Ranking | None" = None,
) -> CyclePlan:
    """The plan; `ranking` is that of a rule other than the seed's score."""
    machines = [
        machine_of(node, [r for r in running if r.node_id == node.id], now) for node in nodes
    ]
    decisions: list[Decision] = []
    reservations: list[Reservation] = []
    deferred: Counter[Tier] = Counter()
    for job in sorted(queue, key=turn):
        if job.gang is not None:
            decision, kept = decide_gang(machines, job, policy, deferred)
            decisions.append(decision)
            reservations += kept
            continue
        if ranking is not None:
            ranking.look(machines, sum(len(d.held) for d in decisions), reservations)
        answers = [answer(machine, job, policy, ranking) for machine in machines]
        options = [found for found in answers if isinstance(found, Candidate)]
        counts = Counter(found for found in answers if isinstance(found, RejectionCode))
        rejected = {code: counts[code] for code in RejectionCode if counts[code]}
        if options:
            options.sort(key=lambda option: -option.terms.total)  # stable: ties keep the order
            if ranking is None:
                options[0] = in_words(options[0], machine_at(machines, options[0]), job, policy)
            best = options[0]
            machine = machine_at(machines, best)
            start(machine, job, best.gpu_indices, best.slices)
            decisions.append(
                Decision(
                    job_id=job.id,
                    kind=PlacementKind.EXISTING_NODE,
                    node_id=best.node_id,
                    gpu_indices=best.gpu_indices,
                    slices=best.slices,
                    terms=best.terms,
                    candidates=tuple(options[:4]),
                    rejected=rejected,
                )
            )
            continue
        reservation = None
        if deferred[job.tier] < policy.starts_kept:
            reservation = reserve(machines, job, policy)
        if reservation:
            deferred[job.tier] += 1
            reservations.append(reservation)
        fast = job.tier is Tier.FAST
        decisions.append(
            Decision(
                job_id=job.id,
                kind=PlacementKind.REQUEST_MORE_CAPACITY if fast else PlacementKind.QUEUE_FOR_FLEX,
                provider_hint="sfcompute" if job.gpus >= 8 else "prime",
                rejected=rejected,
                estimated_start=reservation.start if reservation else None,
            )
        )
    return CyclePlan(decisions=tuple(decisions), reservations=tuple(reservations))


def decide_gang(
    machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy, deferred: Counter[Tier]
) -> tuple[Decision, list[Reservation]]:
    """The whole gang now, or from the first moment that is known for it."""
    decision = gang_decision(machines, job, policy)
    by_id = {machine.node.id: machine for machine in machines}
    for node_id, gpus in decision.held:
        by_id[node_id].vram_used += job.vram_per_gpu * len(gpus)
        by_id[node_id].idle -= set(all_of(by_id[node_id], job, gpus))
        by_id[node_id].held.append(share_span(by_id[node_id], job, gpus, by_id[node_id].now))
    if decision.members or deferred[job.tier] >= policy.starts_kept:
        return decision, []
    first = first_gang(machines, job, policy)
    if first is None:
        return decision, []
    deferred[job.tier] += 1
    kept: list[Reservation] = []
    for node_id, gpus in first.held:
        span = share_span(by_id[node_id], job, gpus, first.moment)
        by_id[node_id].reserved.append(span)
        kept.append(
            Reservation(
                job_id=job.id, node_id=node_id, gpu_indices=gpus, start=span.start, end=span.end
            )
        )
    return decision.model_copy(update={"estimated_start": first.moment}), kept


def share_span(machine: Machine, job: JobRequest, gpus: GPUs, moment: datetime) -> Span:
    """What a gang has of one node: of cores and so on, its part by GPUs."""
    part = len(gpus) / job.gpus
    cpus, ram, storage, power = (amount * part for amount in wants(job, machine.node))
    gpus = all_of(machine, job, gpus)
    return Span(gpus, (cpus, ram, storage, power), moment, end_of(job, moment))


def in_words(
    option: Candidate, machine: Machine, job: JobRequest, policy: PackingPolicy
) -> Candidate:
    """The chosen node by the seed's score, with what is added to it."""
    data = policy.weights.locality * held(job, machine.node)
    ends = policy.weights.separation * together(job, machine)
    links = policy.weights.links * fast(option.gpu_indices, machine.node)
    named = sorted(
        [
            (-data, "data on the node"),
            (-links, "links between its GPUs"),
            (-ends, "ends with the node's jobs"),
        ]
    )
    parts = [ScoreTerm(name=n, value=round(-v, 6)) for v, n in named if -v >= 0.001]
    terms = option.terms.model_copy(update={"parts": tuple(parts)})
    return option.model_copy(update={"terms": terms})


def machine_at(machines: Sequence[Machine], option: Candidate) -> Machine:
    return next(machine for machine in machines if machine.node.id == option.node_id)


def turn(job: JobRequest) -> tuple[int, bool, datetime | None, str, int]:
    """Priority class, then submission (jobs without one last), then id."""
    return -job.priority, job.submitted_at is None, job.submitted_at, job.id, job.attempt


class Ranking(Protocol):
    """What a rule makes of a node, without expiry and provider."""

    def look(
        self, machines: Sequence[Machine], placed: int, reservations: Sequence[Reservation]
    ) -> None:
        """See all nodes before a job on one node is decided."""

    def value(self, machine: Machine, after: Machine, gpus: GPUs, job: JobRequest) -> float:
        """The value of a node; `after` is the node with the job."""
        ...


def answer(
    machine: Machine, job: JobRequest, policy: PackingPolicy, ranking: Ranking | None = None
) -> Candidate | RejectionCode:
    """The first constraint that fails, or the GPUs and the score."""
    node, now = machine.node, machine.now
    roomy = machine.with_memory(job)
    usable = roomy & machine.idle
    if node.state is not NodeState.READY:
        return RejectionCode.STATE
    if node.tier is not job.tier:
        return RejectionCode.TIER
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return RejectionCode.GPU_TYPE
    if job.needs_container and node.container_runtime is None:
        return RejectionCode.CONTAINER_RUNTIME
    if cannot_fetch(node, job):
        return RejectionCode.FETCHING
    if labelled_otherwise(node, job.constraints):
        return RejectionCode.CONSTRAINT
    if (failed := misfit(node, job)) is not None:
        return failed
    if ends_too_soon(node, job, policy, now):
        return RejectionCode.EXPIRY
    for number, (code, amount) in enumerate(zip(HOST_CODES, wants(job, node), strict=True)):
        if machine.free(number) + TINY < amount:
            return code
    if job.mig is not None:
        if not any(gpu.mig and gpu.mig.get(job.mig) for gpu in node.gpus):
            return RejectionCode.MIG_PROFILE
        if not instances(machine, job, machine.held):
            return RejectionCode.MIG_BUSY
    elif len(machine.room) < job.gpus:
        return RejectionCode.GPU_COUNT
    elif len(roomy) < job.gpus:
        return RejectionCode.VRAM
    elif job.milli < 1000:
        if len(left(machine, job, now, machine.held)) < job.gpus:
            return RejectionCode.SHARES_BUSY
    elif job.sensitive and not nobody_there(machine):
        return RejectionCode.NOT_ALONE
    elif len(usable) < job.gpus:
        return RejectionCode.GPUS_BUSY
    found = open_part(machine, job, now, policy.gpu_choice, machine.idle)
    if found is None:
        return RejectionCode.RESERVED
    gpus, slices = found
    terms = score(machine, job, gpus, slices, policy.weights)
    if ranking is not None:
        after = with_job(machine, job, gpus, slices)
        total = ranking.value(machine, after, gpus, job)
        total += policy.weights.expiry * terms.expiry + policy.weights.provider * terms.provider
        total += policy.weights.locality * held(job, node)
        total += policy.weights.separation * together(job, machine)
        total += policy.weights.links * fast(gpus, node)
        if policy.rule is PackingRule.KEEP_ROOM:
            total += policy.weights.fragmentation * terms.fragmentation
        terms = terms.model_copy(update={"rule": policy.rule, "total": round(total, 9)})
    link = link_of(gpus, node.topology)
    return Candidate(node_id=node.id, gpu_indices=gpus, slices=slices, link=link, terms=terms)


def score(
    machine: Machine, job: JobRequest, gpus: GPUs, slices: int, weights: ScoreWeights
) -> ScoreTerms:
    node = machine.node
    vram = sum(gpu.vram for gpu in node.gpus)
    if vram:
        utilization = min((machine.vram_used + memory_of(machine, job, gpus, slices)) / vram, 1)
    else:
        utilization = min((len(node.gpus) - len(machine.idle) + job.gpus) / len(node.gpus), 1)
    gap = 0.0 if link_of(gpus, node.topology) else average_gap(gpus)
    expiry = 0.0
    if node.expires_at and job.expected_duration:
        left = (node.expires_at - machine.now) / (2 * job.expected_duration)
        expiry = min(max(1 - left, 0), 1)
    provider = {"sfcompute": 0.2 * (job.gpus >= 8), "prime": 0.1 * (job.gpus < 8)}
    bonus = provider.get(node.provider, 0.0)
    total = (
        weights.utilization * utilization
        + weights.fragmentation * gap
        + weights.expiry * expiry
        + weights.provider * bonus
        + weights.locality * held(job, node)
        + weights.separation * together(job, machine)
        + weights.links * fast(gpus, node)
    )
    return ScoreTerms(
        utilization=utilization,
        fragmentation=gap,
        expiry=expiry,
        provider=bonus,
        total=round(total, 9),
    )


def fast(gpus: GPUs, node: Node) -> float:
    """The slowest link between the GPUs, as a part of the fastest that there is."""
    link = link_of(gpus, node.topology)
    return link.gb_per_second / 900 if link else 0.0


def held(job: JobRequest, node: Node) -> float:
    """The part of the job's data that is on the node; what names no size counts as 1 GB."""
    sizes = {name: size or 1 for name, size in job.data.items()}
    there = sum(size for name, size in sizes.items() if name in node.data)
    return there / sum(sizes.values()) if sizes else 0.0


def together(job: JobRequest, machine: Machine) -> float:
    """How near the job's end is to that of the last job there."""
    if not machine.held:
        return 0.0
    spans = job.expected_duration, max(span.end for span in machine.held) - machine.now
    return min(spans) / max(spans)


def reserve(
    machines: Sequence[Machine], job: JobRequest, policy: PackingPolicy
) -> Reservation | None:
    """Keep what the job wants on the machine where it can start first."""
    found: list[tuple[datetime, int]] = []
    for position, machine in enumerate(machines):
        moment = first_moment(machine, job, policy)
        if moment is not None:
            found.append((moment, position))
    if not found:
        return None
    moment, position = min(found)
    machine = machines[position]
    found_then = open_part(machine, job, moment, policy.gpu_choice)
    assert found_then is not None
    gpus, slices = found_then
    span = span_of(machine, job, gpus, slices, moment)
    machine.reserved.append(span)
    return Reservation(
        job_id=job.id, node_id=machine.node.id, gpu_indices=gpus, slices=slices, start=moment,
        end=span.end,
    )  # fmt: skip


def first_moment(machine: Machine, job: JobRequest, policy: PackingPolicy) -> datetime | None:
    node = machine.node
    if node.state is not NodeState.READY or node.tier is not job.tier:
        return None
    if job.gpu_type and node.gpu_type.casefold() != job.gpu_type.casefold():
        return None
    if job.needs_container and node.container_runtime is None:
        return None
    if cannot_fetch(node, job):
        return None
    if labelled_otherwise(node, job.constraints) or misfit(node, job) is not None:
        return None
    large = [g for g in node.gpus if g.mig is None and g.vram + TINY >= job.vram_per_gpu]
    if job.mig is None and len(large) < job.gpus:
        return None
    moments = {machine.now} | {span.end for span in machine.held + machine.reserved}
    for moment in sorted(moments):
        lasts = not ends_too_soon(node, job, policy, moment)
        if lasts and open_part(machine, job, moment, policy.gpu_choice):
            return moment
    return None
