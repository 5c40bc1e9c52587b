"""Which replicas of a service are started and stopped, and when an update is undone. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.models.serving import EngineStage
from longshore.models.text import count

TRIES = 3
"""Engines of a new revision that may fail before it is undone, where none was ever ready."""
LEAVE_BEFORE = timedelta(minutes=15)
"""So long before the end of its node, and its load time, a replica is replaced: before its node
asks it to leave."""
_BACKOFF = timedelta(seconds=1)
_LONGEST_BACKOFF = timedelta(minutes=5)
WAITS_FOR_LONG = timedelta(minutes=1)
"""So long a replica waits for a GPU before it is said what would help."""
LOOK_FOR_NODES = timedelta(seconds=15)
"""Between two looks at the nodes where a replica waits in a size that none of them holds."""
FORGOTTEN_AFTER = timedelta(minutes=30)
"""Ends of replicas before that count no more."""
_DRAINS = "replaced as its node drains"
_KEPT: dict[EngineStage | None, int] = {EngineStage.READY: 2, EngineStage.LOADING: 1}
"""Of too many those with the most stay."""
_ON_THE_WAY = (EngineStage.LOADING, EngineStage.FAILED, EngineStage.DRAINING)


@dataclass(frozen=True)
class Replica:
    """One replica that has not ended."""

    job_id: str
    revision: int
    created_at: datetime
    stage: EngineStage | None = None
    """None while it waits for a GPU."""
    endpoint: str = ""
    """Of one that is ready."""
    pool: str = ""
    """Of its node, where it has a GPU."""
    failed_last: bool = False
    """Where it waits: whether its engine has failed before."""
    tried_again: bool = False
    """Whether it waits to be tried again for that, and not for a GPU yet."""
    queued_at: datetime | None = None
    """Since when it waits for a GPU, where it is in the queue."""
    stopping: bool = False
    failures: int = 0
    leaves_at: datetime | None = None
    """When the time of its node ends."""
    node_drains: bool = False
    """Whether what runs on its node is to leave it."""
    load_time: timedelta = timedelta(0)
    held: bool = True
    """False where it waits in one of several sizes, and no node holds that if it is empty."""
    held_otherwise: bool = False
    """Whether one would then hold another of its sizes."""
    left_idle: bool = False
    """Where it waits: whether it left its GPUs while nobody asked it, so that only free memory is
    for it."""
    too_small: bool = False
    """Where it is not ready: whether one like it was seen to take more memory than it holds."""

    @property
    def misfit(self) -> bool:
        return self.stage is None and not self.held and self.held_otherwise

    @property
    def ready(self) -> bool:
        return self.stage is EngineStage.READY and not self.stopping


@dataclass(frozen=True)
class ServiceFacts:
    """What is so of a service at one moment."""

    revision: int
    """The one that its replicas are to be of."""
    wanted: int
    surge: int
    unavailable: int
    replicas: tuple[Replica, ...]
    was_ready: bool
    """Whether a replica of the revision was ever ready."""
    failures: int = 0
    """Engines of the revision that failed, also of replicas that have ended."""
    last_failure: str = ""
    """Why one of the revision failed last."""
    previous: int | None = None
    """Of the other revisions of which one was ready, and which were not undone, the one that ran
    last."""
    ends: tuple[datetime, ...] = ()
    """When replicas of the revision ended that nobody had asked to, the last half hour."""
    removing: bool = False
    has_sizes: bool = False
    """Whether a replica may be on different numbers of GPUs."""


@dataclass(frozen=True)
class Stop:
    job_id: str
    reason: str


@dataclass(frozen=True)
class Undo:
    revision: int
    """The one to go back to."""
    reason: str


@dataclass(frozen=True)
class ServicePlan:
    """What follows."""

    start: int = 0
    """Replicas of the revision to start."""
    stop: tuple[Stop, ...] = ()
    undo: Undo | None = None
    """Then nothing else is done, and the next look is of the other revision."""
    look_at: datetime | None = None
    """When to look again, if nothing happens before."""
    reason: str = ""
    """What is being replaced, or waited for, beside what its replicas themselves tell."""
    stages: str = ""
    """What those that stay do: of this moment, so that who shows it later counts anew."""


def plan(facts: ServiceFacts, now: datetime) -> ServicePlan:
    """Return which replicas to start and to stop.

    Never more than `wanted + surge` are begun, counting those that end; none that is ready is
    stopped where fewer than `wanted - unavailable` would be left.
    """
    if facts.removing:
        stop = _all(facts, "the service is removed")
        return ServicePlan(stop=stop, reason="its replicas end what they have begun")
    if undo := _undo(facts):
        return ServicePlan(undo=undo, reason=undo.reason)
    live = [each for each in facts.replicas if not each.stopping]
    going = {each.job_id: why for each in live if (why := _why_replaced(facts, each, now))}
    staying = [each for each in live if each.job_id not in going]
    stop = _surplus(facts, staying)
    stop += _replaced(facts, live, going, {each.job_id for each in stop})
    lacking = max(facts.wanted - len(staying), 0)
    if going and staying and all(each.left_idle for each in staying):
        lacking = max(lacking, 1)  # for none of them anybody is stopped: all may wait for ever
    room = max(facts.wanted + facts.surge - len(facts.replicas), 0)
    if going and lacking and not room and not (stop or any(r.stopping for r in facts.replicas)):
        stop = _in_the_way(staying, going)
    # Where nothing may run beside them, or nobody waits for one to go, the number is what counts.
    start = min(lacking, room)
    later = _backoff(facts, now)
    if start and later is not None:
        return ServicePlan(
            stop=tuple(stop), look_at=later, reason=_loops(facts, lacking, later, now)
        )
    return ServicePlan(
        start, tuple(stop), look_at=_next_look(facts, live, going, start, now),
        reason=_replacing(facts, staying, going) + _lacks_room(facts, staying, going, start, now),
        # What is started now has none either: nobody may look again before it has one.
        stages=stages_in_words(
            facts.wanted, [*(each.stage for each in staying), *[None] * start],
            sum(each.tried_again for each in staying),
        ),
    )  # fmt: skip


def in_the_end(facts: ServiceFacts, now: datetime) -> ServicePlan:
    """Return which replicas are started and stopped until all are as wanted, where none fails and
    all find room: a plan is the next step to that."""
    if facts.removing:
        return ServicePlan(stop=_all(facts, "the service is removed"))
    live = [each for each in facts.replicas if not each.stopping]
    going = {each.job_id: why for each in live if (why := _why_replaced(facts, each, now))}
    staying = [each for each in live if each.job_id not in going]
    replaced = (Stop(job_id, why) for job_id, why in going.items())
    start = max(facts.wanted - len(staying), 0)
    return ServicePlan(start=start, stop=(*_surplus(facts, staying), *replaced))


def begin_before_stops(facts: ServiceFacts, pool: str, now: datetime) -> int:
    """Return how many replicas may begin before one that has GPUs of their pool is stopped: those
    behind may start where that one was."""
    with_gpus = {
        each.job_id for each in facts.replicas if each.stage is not None and each.pool == pool
    }
    if with_gpus.isdisjoint(each.job_id for each in in_the_end(facts, now).stop):
        return facts.wanted
    if not with_gpus.isdisjoint(each.job_id for each in plan(facts, now).stop):
        return 0
    return max(facts.wanted + facts.surge - len(facts.replicas), 0)


def stages_in_words(wanted: int, stages: Iterable[EngineStage | None], again: int) -> str:
    """Return ``of 3 replicas: 1 without a GPU, 1 loading``; empty where all are ready.

    The `stages` are of those that are neither to stop nor to be replaced; `again` of those without
    one wait to be tried again, after a failure.
    """
    found = Counter(stages)
    waiting = found[None] - again
    parts = [
        f"{waiting} without a GPU" if waiting else "",
        f"{again} to be tried again after a failure" if again else "",
    ] + [f"{found[stage]} {stage.value}" if found[stage] else "" for stage in _ON_THE_WAY]
    told = ", ".join(part for part in parts if part)
    # More than are wanted, until the next look has stopped those.
    there = max(wanted, found.total())
    return f"of {count(there, 'replica')}: {told}" if told else ""


def _all(facts: ServiceFacts, why: str) -> tuple[Stop, ...]:
    return tuple(Stop(each.job_id, why) for each in facts.replicas if not each.stopping)


def _undo(facts: ServiceFacts) -> Undo | None:
    if facts.was_ready or facts.previous is None or facts.failures < TRIES:
        return None
    why = f". The last one: {facts.last_failure}" if facts.last_failure else ""
    return Undo(
        facts.previous,
        f"revision {facts.revision} never got ready ({count(facts.failures, 'engine')} failed): "
        f"back to revision {facts.previous}{why}",
    )


def _why_replaced(facts: ServiceFacts, replica: Replica, now: datetime) -> str:
    if replica.revision != facts.revision:
        return f"replaced by revision {facts.revision}"
    if replica.leaves_at is not None and now >= _leave(replica):
        return "replaced before the time of its node ends"
    if replica.node_drains:
        return _DRAINS
    if replica.misfit:
        return "waits for more memory on a GPU than any has: replaced by one on other numbers"
    if replica.too_small:
        return "holds less memory than one like it took: replaced by one that holds that"
    return ""


def _leave(replica: Replica) -> datetime:
    assert replica.leaves_at is not None
    return replica.leaves_at - LEAVE_BEFORE - replica.load_time


def _surplus(facts: ServiceFacts, staying: Sequence[Replica]) -> list[Stop]:
    """Return those beyond the number: what does not load first, then what is not ready; of those
    alike who left while nobody asked, then the youngest."""
    over = max(len(staying) - facts.wanted, 0)
    order = sorted(
        staying,
        key=lambda each: (
            _KEPT.get(each.stage, 0), not each.left_idle, -each.created_at.timestamp()
        ),
    )  # fmt: skip
    why = f"{facts.wanted} are wanted"
    return [Stop(each.job_id, why) for each in order[:over]]


def _replaced(
    facts: ServiceFacts, live: Sequence[Replica], going: dict[str, str], surplus: Collection[str]
) -> list[Stop]:
    """Return those to be replaced that can go now."""
    found = [
        Stop(each.job_id, going[each.job_id])
        for each in live
        if each.job_id in going
        and not each.ready
        and (each.revision != facts.revision or each.misfit or each.too_small)
    ]
    ends = {each.job_id for each in found}
    found += _loading_on_drained(facts, [each for each in live if each.job_id not in ends], going)
    ready = [each for each in live if each.ready]
    # Who left while nobody asked it was spare: nobody waits until it is back. But one answers.
    left = sum(
        each.left_idle and each.job_id not in going and each.job_id not in surplus for each in live
    )
    least = max(facts.wanted - facts.unavailable, 0)
    spare = len(ready) - max(least - left, min(least, 1))
    order = sorted(
        (each for each in ready if each.job_id in going),
        key=lambda each: (
            each.revision == facts.revision, going[each.job_id] != _DRAINS, each.created_at,
        ),
    )  # fmt: skip
    return [*found, *(Stop(each.job_id, going[each.job_id]) for each in order[: max(spare, 0)])]


def _in_the_way(staying: Sequence[Replica], going: Mapping[str, str]) -> list[Stop]:
    """Return one that left while nobody asked it, where all that is replaced goes on until another
    is ready, and none may begin beside them: one that waits for its turn begins in its place."""
    if not all(each.ready or each.left_idle for each in staying):
        return []
    left = sorted((each.created_at, each.job_id) for each in staying if each.left_idle)
    why = f"another begins in its place: {count(len(going), 'replica')} to be replaced"
    return [Stop(job_id, why) for _, job_id in left[-1:]]


def _loading_on_drained(
    facts: ServiceFacts, live: Sequence[Replica], going: dict[str, str]
) -> list[Stop]:
    """Return those that are not ready yet on nodes that drain, and in whose place another is."""
    counted = [each for each in live if each.ready or each.job_id in going]
    over = max(len(counted) - facts.wanted, 0)
    loading = [each for each in live if going.get(each.job_id) == _DRAINS and not each.ready]
    return [Stop(each.job_id, _DRAINS) for each in loading[:over]]


def _backoff(facts: ServiceFacts, now: datetime) -> datetime | None:
    """Return when the next may be started after some that ended by themselves; None for now."""
    if not facts.ends:
        return None
    factor = 2 ** min(len(facts.ends) - 1, 20)
    later = max(facts.ends) + min(_BACKOFF * factor, _LONGEST_BACKOFF)
    return later if later > now else None


def _next_look(
    facts: ServiceFacts,
    live: Sequence[Replica],
    going: dict[str, str],
    start: int,
    now: datetime,
) -> datetime | None:
    ends = [
        _leave(each) for each in live if each.leaves_at is not None and each.job_id not in going
    ]
    ends += [told for each in _in_the_queue(facts, live, going) if (told := _told(each)) > now]
    if start and going and not facts.unavailable:  # those are in the queue from now on
        ends.append(now + WAITS_FOR_LONG)
    if facts.has_sizes and (start or any(not each.held for each in live)):
        ends.append(now + LOOK_FOR_NODES)
    return min((each for each in ends if each > now), default=None)


def _in_the_queue(
    facts: ServiceFacts, staying: Iterable[Replica], going: Mapping[str, str]
) -> list[Replica]:
    """Return those that wait for a GPU in the place of others, of which none leaves before."""
    if facts.unavailable or not going:
        return []
    return [
        each
        for each in staying
        if each.stage is None
        and each.held
        and not (each.left_idle or each.tried_again or each.job_id in going)
    ]


def _told(replica: Replica) -> datetime:
    return (replica.queued_at or replica.created_at) + WAITS_FOR_LONG


def _lacks_room(
    facts: ServiceFacts,
    staying: Iterable[Replica],
    going: Mapping[str, str],
    start: int,
    now: datetime,
) -> str:
    """Return what helps an update that has no room beside the old replicas."""
    waits = any(_told(each) <= now for each in _in_the_queue(facts, staying, going))
    if start or not waits:
        return ""
    nobody = ", and nobody answers meanwhile" if facts.wanted == 1 else ""
    return f"; one waits for a GPU: with `unavailable: 1` an old one would leave first{nobody}"


def _loops(facts: ServiceFacts, lacking: int, later: datetime, now: datetime) -> str:
    seconds = max(round((later - now).total_seconds()), 1)
    return (
        f"{count(lacking, 'replica')} of {facts.wanted} ended by themselves "
        f"({count(len(facts.ends), 'end')} in half an hour); the next starts in {seconds} s"
    )


def _replacing(facts: ServiceFacts, staying: Sequence[Replica], going: Mapping[str, str]) -> str:
    if not going:
        return ""
    new = sum(each.ready for each in staying)
    drained = sum(why == _DRAINS for why in going.values())
    where = "a node that drains" if drained == 1 else "nodes that drain"
    which = f" ({drained} on {where})" if drained else ""
    return (
        f"{count(len(going), 'replica')} to be replaced{which}: {new} of {facts.wanted} new ones "
        "ready"
    )
