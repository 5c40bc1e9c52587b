"""A running engine as one of the slots that leave for a job: the rules of
`scheduling.serving.victims` for preemption. Pure."""

from datetime import datetime, timedelta

from longshore.models.preemption import PreemptionPolicy, RunningEngine, RunningWork
from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slots import ModelSlot, ServedModel, SlotKey, SlotPolicy, Victim
from longshore.scheduling.serving.victims import Asker, is_stale, reload_price, victim_of, why_not

_HOUR = timedelta(hours=1)
_MEANWHILE = _HOUR
"""For how long it is counted how often an engine that leaves is asked."""
_TIMES = "times that it is asked in an hour"
"""Not requests: those that come one after another are one time, until nobody asks for a while."""
_HIGHEST = 100
"""Above every class of a job."""


def is_idle(work: RunningWork, policy: PreemptionPolicy, now: datetime) -> bool:
    """Return whether a job runs an engine that yields to a job of any class."""
    engine = work.engine
    return engine is not None and is_stale(_slot(work, engine), _rules(policy), now)


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
        active=int(engine.idle_since is None),
        idle_since=engine.idle_since,
        priority=work.request.priority,
        pinned=engine.pinned,
    )


def _rules(policy: PreemptionPolicy) -> SlotPolicy:
    return SlotPolicy(gpu_price=policy.owned_gpu_price)
