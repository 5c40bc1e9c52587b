"""On which nodes a job is planned for which somebody pays: those that the envelopes are for that
would pay. On others nobody does, and it would start unfunded there, or not at all."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from longshore.models.constraints import Constraint
from longshore.models.funding import PaidOn, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.scheduling.funding.cover import Cover
from longshore.scheduling.funding.facts import Use, Where
from longshore.scheduling.funding.kinds import Kinds, PoolKinds, alike
from longshore.scheduling.funding.room import Attempt, Room
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.split import Split


def where_paid(
    jobs: Iterable[JobRequest], funding: PoolFunding | None, *, everyone: bool = False
) -> list[JobRequest]:
    """Return jobs as they are planned: those that start only where somebody pays ask for nodes on
    which that is so. Who has others stopped, or has nodes bought, is to be paid for there, beside
    all others of the queue: then `everyone` does that somebody would pay for."""
    if funding is None:
        return list(jobs)
    paid_on = funding.beside_others if everyone else funding.only_on
    jobs = _on_own_nodes(jobs, funding.own_nodes)
    if not paid_on:
        return jobs
    asked = ((job, paid_on.get(job.id)) for job in jobs)
    return [_narrowed(job, on) if on and (on.must or everyone) else job for job, on in asked]


def _on_own_nodes(
    jobs: Iterable[JobRequest], own_nodes: Mapping[str, Constraint]
) -> list[JobRequest]:
    """Return jobs as those that a quota of nodes lets start on some nodes alone ask for these."""
    if not own_nodes:
        return list(jobs)
    return [
        job.model_copy(update={"constraints": (*job.constraints, own_nodes[job.id])})
        if job.id in own_nodes
        else job
        for job in jobs
    ]


def as_bought(jobs: Iterable[JobRequest], funding: PoolFunding | None) -> list[JobRequest]:
    """Return jobs as machines are bought for them: where somebody pays for them. Malleable ones
    are to have no more GPUs than somebody pays for, and take as long as on so many."""
    asked = where_paid(jobs, funding, everyone=True)
    if funding is None or not funding.sizes:
        return asked
    sizes = funding.sizes
    return [job.up_to(sizes[job.id]) if job.id in sizes else job for job in asked]


def paid_first(job: JobRequest, funding: PoolFunding | None) -> JobRequest | None:
    """Return a job that may start unfunded as one that asks for nodes on which somebody pays: it
    is to start on one of those if it can. None where it asks for no others as it is."""
    on = funding.only_on.get(job.id) if funding else None
    if on is None or on.must:
        return None
    asked = _narrowed(job, on)
    same = asked.types == job.types and asked.constraints == job.constraints
    return None if same else asked


def _narrowed(job: JobRequest, on: PaidOn) -> JobRequest:
    more = tuple(each for each in on.constraints if each not in job.constraints)
    update: dict[str, object] = {"constraints": (*job.constraints, *more)}
    if on.gpu_types and not job.gpu_type:
        one = len(on.gpu_types) == 1
        update |= {"gpu_type": on.gpu_types[0]} if one else {"gpu_types": on.gpu_types}
    return job.model_copy(update=update)


def start_on(
    queue: Iterable[JobRequest], paid: Iterable[Use], covers: Mapping[str, Cover]
) -> dict[str, PaidOn]:
    """Return on which nodes jobs of a queue are to start that somebody would pay for, by job,
    where that is not so on all to which they may come.

    A gang is to have nodes of one kind: two kinds would not be paid for together. One for which
    nodes are bought is of one type of GPU, whichever.
    """
    several = {use.job_id: use for use in paid if use.kinds}
    found: dict[str, PaidOn] = {}
    for job in queue if several else ():
        use = several.get(job.id)
        if use is None:
            continue
        cover = covers[job.id]
        groups = cover.on if job.gang is None else one_type_each(cover.on)
        some = [where for group in groups for where in group]
        if groups and len(some) < len(use.kinds):
            on = narrow(use.kinds, groups[0], some)
            found[job.id] = on._replace(must=use.must_be_funded)
    return found


def grow_on(
    room: Room, kinds: PoolKinds, growing: Iterable[MayGrow], splits: Mapping[Attempt, Split]
) -> dict[str, PaidOn]:
    """Return onto which nodes malleable jobs that run may grow, by job, so that who pays for them
    now may pay for more; of those of which that is not so of all. What runs on idle GPUs grows
    onto any."""
    found: dict[str, PaidOn] = {}
    for job, _ in growing:
        runs = job.id, job.attempt - 1
        use, split = room.uses.get(runs), splits.get(runs)
        if use is None or split is None or not split.owners:
            continue
        asking = use._replace(kinds=kinds.of(job))
        now = {kinds.reduced(share.where) for share in use.shares}
        groups = [group for group in alike(room, asking) if not now.isdisjoint(group)]
        some = [where for group in groups for where in group]
        if groups and len(some) < len(asking.kinds):
            found[job.id] = narrow(asking.kinds, groups[0], some)._replace(must=True)
    return found


def one_type_each(groups: Sequence[Kinds]) -> Sequence[Kinds]:
    """Return the first of these, and where such nodes are to be bought, those that differ from it
    in their types of GPU alone."""

    def but_for_types(group: Kinds) -> set[Where]:
        return {where._replace(gpu_type=None) for where in group}

    if not groups or any(where.there for where in groups[0]):
        return groups[:1]
    return [group for group in groups if but_for_types(group) == but_for_types(groups[0])]


def narrow(kinds: Kinds, best: Kinds, paid: Sequence[Where]) -> PaidOn:
    """Return what holds of as many kinds as can be said of those `paid` on, and of no other."""

    def only_paid(some: Sequence[Where]) -> bool:
        holds = _holds(_said_of(kinds, some))
        return all(where in paid for where in kinds if holds(where))

    chosen = list(best) if only_paid(best) else [best[0]]
    for where in paid:
        if where not in chosen and only_paid([*chosen, where]):
            chosen.append(where)
    return _said_of(kinds, chosen)


def _said_of(kinds: Kinds, some: Sequence[Where]) -> PaidOn:
    """Return what these have in common, and others of the kinds have not.

    Several types are named together only where each comes with the same labels: any of them may
    have any of the labels then.
    """
    types = {_type(where): where.gpu_type or "" for where in some}
    others = {_type(where) for where in kinds} - types.keys()
    labels = [{where.labels for where in some if _type(where) == each} for each in types]
    says = others and "" not in types and all(each == labels[0] for each in labels)
    gpu_types = tuple(sorted(types.values())) if says else ()
    constraints: list[Constraint] = []
    for name in sorted({name for where in kinds for name, _ in where.labels or ()}):
        here = {_value(where, name) for where in some}
        there = {_value(where, name) for where in kinds} - here
        if not there:
            continue
        values = sorted(value for value in (there if None in here else here) if value is not None)
        constraints.append(Constraint(name, tuple(values), None in here))
    return PaidOn(gpu_types, tuple(constraints))


def _holds(on: PaidOn) -> Callable[[Where], bool]:
    types = {each.casefold() for each in on.gpu_types}

    def holds(where: Where) -> bool:
        return (not types or _type(where) in types) and all(
            each.allows(_value(where, each.key)) for each in on.constraints
        )

    return holds


def _type(where: Where) -> str:
    """Return a type of GPU in lower case; empty for any that no envelope names."""
    return (where.gpu_type or "").casefold()


def _value(where: Where, name: str) -> str | None:
    return dict(where.labels or ()).get(name)
