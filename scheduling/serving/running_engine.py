"""A running engine as one of the slots that leave for a job, or for another engine: the rules of
`scheduling.serving.victims` for preemption. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from longshore.models.job_request import EngineKey, JobRequest
from longshore.models.preemption import PreemptionPolicy, RunningEngine, RunningWork
from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slot_plan import due_at
from longshore.scheduling.serving.slots import (
    ModelSlot,
    ServedModel,
    SlotKey,
    SlotPolicy,
    Victim,
    WaitingRequests,
)
from longshore.scheduling.serving.victims import Asker, is_stale, reload_price, victim_of, why_not

_HOUR = timedelta(hours=1)
_MEANWHILE = _HOUR
"""For how long it is counted how often an engine that leaves is asked."""
_TIMES = "times that it is asked in an hour"
"""Not requests: those that come one after another are one time, until nobody asks for a while."""
_HIGHEST = 100
"""Above every class of a job."""


def is_idle(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> bool:
    """Return whether a job runs an engine that yields to any job, and to any engine of another
    model and service."""
    engine = work.engine
    return engine is not None and is_stale(_slot(work, engine), _rules(policy), now)


def is_like(work: RunningWork, job: JobRequest) -> bool:
    """Return whether a running engine serves the same model, or the same service, as one that
    waits: then it does not leave for that because nobody asks it, nor for its turn."""
    key = _key(work)
    return key is not None and key.is_like(job.engine)


def alike(works: Iterable[RunningWork], job: JobRequest) -> frozenset[str]:
    """Return the running engines beside which one that waits is to be: it does not start when
    they end."""
    if job.engine is None:
        return frozenset()
    return frozenset(work.id for work in works if is_like(work, job))


def is_of_its_service(work: RunningWork, job: JobRequest) -> bool:
    """Return whether a running engine is of the service of one that waits: its service says when
    it is stopped."""
    key, asks = _key(work), job.engine
    if key is None or asks is None:
        return False
    return key.service is not None and key.service == asks.service


def turn_at(
    key: EngineKey,
    since: datetime,
    load_time: timedelta,
    works: Iterable[RunningWork],
    policy: PreemptionPolicy,
) -> datetime | None:
    """Return from when on an engine that waits `since` then has one of its own class stopped that
    is in use: once it has waited for long enough. None where an engine serves its model, or did so
    in its service until other files of it were to be served."""
    names = key.service, key.model, key.runtime
    for each in filter(None, map(_key, works)):
        of_service = each.service is not None and (each.service, each.model, each.runtime) == names
        if of_service or each.serves == key.serves:
            return None
    slot_key = SlotKey(key.model, key.runtime)
    waits = WaitingRequests(slot_key, requests=1, since=since)
    return due_at(waits, ServedModel(slot_key, (), load_time), _rules(policy))


def why_it_stays(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> str | None:
    """Return why an engine leaves for nobody, of whatever class; None where that depends, and for
    a job without one."""
    engine = work.engine
    if engine is None:
        return None
    return why_not(_slot(work, engine), Asker(_HIGHEST), _rules(policy), now)


def cost_of_reload(
    work: RunningWork, engine: RunningEngine, policy: PreemptionPolicy, now: datetime
) -> int:
    """Return what it costs that an engine leaves, in micro-dollars: a reload, for each time that
    it is expected to be asked meanwhile."""
    return as_victim(work, engine, policy, now).price


def as_victim(
    work: RunningWork, engine: RunningEngine, policy: PreemptionPolicy, now: datetime
) -> Victim:
    """Return an engine as it leaves for a job, with what that costs in words."""
    slot = _slot(work, engine)
    ready_for = now - engine.ready_at if engine.ready_at else timedelta(0)
    # In its first hour as if that were over: one that has just come says little.
    use = engine.uses / (max(ready_for, _HOUR) / _HOUR)
    model = ServedModel(slot.key, ((0,),), engine.load_time, use=use)
    rules = _rules(policy)
    gpus = sum(len(share.gpu_indices) for share in work.shares)
    reload = reload_price(slot, model, [work.price] * gpus, rules)
    return victim_of(slot, model, reload, _MEANWHILE, Asker(_HIGHEST), rules, now, counted=_TIMES)


def _slot(work: RunningWork, engine: RunningEngine) -> ModelSlot:
    return ModelSlot(
        id=work.id,
        key=SlotKey(engine.model, engine.runtime),
        memory=(),
        state=EngineStage.LOADING if engine.ready_at is None else EngineStage.READY,
        since=engine.ready_at or work.started_at,
        active=int(engine.idle_since is None and not engine.prewarmed),
        idle_since=engine.idle_since,
        priority=work.request.priority,
        pinned=engine.pinned,
        prewarmed=engine.prewarmed,
    )


def _key(work: RunningWork) -> EngineKey | None:
    if work.engine is None:
        return None
    return work.request.engine or EngineKey(model=work.engine.model, runtime=work.engine.runtime)


def _rules(policy: PreemptionPolicy) -> SlotPolicy:
    return SlotPolicy(gpu_price=policy.owned_gpu_price, max_wait=policy.max_wait)
