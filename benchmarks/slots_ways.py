"""Ways to decide which engines load and leave: the live plan, and what others do."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from benchmarks.slots_world import CONCURRENCY, GPUS, MEMORY, Engine, Way, World
from longshore.models.serving import EngineStage
from longshore.scheduling.serving.slot_plan import plan_slots
from longshore.scheduling.serving.slots import (
    GPUOf,
    MemoryOn,
    ModelSlot,
    ServedModel,
    ServingGPU,
    ServingState,
    SlotKey,
    SlotPlan,
    SlotPolicy,
    SlotReservation,
    WaitingRequests,
)

START = datetime(2026, 11, 20, tzinfo=UTC)
_PRICE = 2_000_000
_STALE = 10.0
_STATES = {
    "loading": EngineStage.LOADING,
    "ready": EngineStage.READY,
    "draining": EngineStage.DRAINING,
}


def ours(policy: SlotPolicy) -> Way:
    """Return the way of the live plan."""
    reservations: tuple[SlotReservation, ...] = ()

    def decide(world: World) -> None:
        nonlocal reservations
        plan = plan_slots(state_of(world, reservations), policy, _time(world.now))
        _carry_out(plan, world)
        reservations = plan.reservations
        if plan.again_at is not None:
            world.wake((plan.again_at - START).total_seconds())

    return decide


def state_of(world: World, reservations: tuple[SlotReservation, ...]) -> ServingState:
    slots = tuple(
        ModelSlot(
            engine.id, _key(engine.model), (_memory(engine.gpu, engine.mb),),
            _STATES[engine.state], _time(engine.since), engine.active,
            idle_since=None if engine.idle_since is None else _time(engine.idle_since),
        )
        for engine in world.engines.values()
    )  # fmt: skip
    waiting = tuple(
        WaitingRequests(
            _key(model), len(queue), _time(max(queue[0].at, world.drained.get(model, 0.0)))
        )
        for model, queue in world.queues.items()
        if queue
    )
    load = timedelta(seconds=world.load_time)
    models = {
        _key(model): ServedModel(
            _key(model), ((mb,),), load, CONCURRENCY, use=3600 * world.use(model)
        )
        for model, mb in enumerate(world.sizes)
    }
    return ServingState(_NODE, slots, waiting, models, reservations)


def _carry_out(plan: SlotPlan, world: World) -> None:
    for victim in plan.victims:
        world.drain(world.engines[victim.slot])
    for load in plan.loads:
        world.load(int(load.key.model), load.memory[0].gpu.gpu_index)


def _key(model: int) -> SlotKey:
    return SlotKey(str(model), "vllm")


def _memory(gpu: int, mb: int) -> MemoryOn:
    return MemoryOn(GPUOf("node", gpu), mb)


def _time(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


_NODE = tuple(ServingGPU("node", gpu, MEMORY, price=_PRICE) for gpu in range(GPUS))


def lru(*, on_each_gpu: bool) -> Way:
    """Return what Ollama does: the model whose request is oldest is loaded next, one at a time,
    and the engine that was used least recently leaves, an idle one before one in use, which
    answers its requests first. With `on_each_gpu` one loads on each GPU at a time."""

    def decide(world: World) -> None:
        for model in world.without_engine():
            busy = {e.gpu for e in world.engines.values() if e.state != "ready"}
            if busy and not on_each_gpu:
                return
            gpus = [gpu for gpu in range(GPUS) if gpu not in busy]
            if not (_load_free(world, model, gpus) or _leave(world, model, gpus, _idle, _used)):
                _leave(world, model, gpus, _any, _used)

    return decide


def oldest_first(world: World) -> None:
    """Do as Helix's scheduler: engines idle for 10 s leave, the one that is so for longest first;
    where there is none, the model waits. It looks at each event, not every 5 s as Helix does."""

    def stale(engine: Engine) -> bool:
        since = engine.idle_since
        return since is not None and world.now >= since + _STALE

    for model in world.without_engine():
        busy = {e.gpu for e in world.engines.values() if e.state != "ready"}
        gpus = [gpu for gpu in range(GPUS) if gpu not in busy]
        if not _load_free(world, model, gpus):
            _leave(world, model, gpus, stale, _idle_since)
    ends = [e.idle_since + _STALE for e in world.engines.values() if e.idle_since is not None]
    for at in ends:
        world.wake(at)


def _load_free(world: World, model: int, gpus: Sequence[int]) -> bool:
    """Load on the GPU with the most free memory."""
    gpu = max(gpus, key=world.room, default=None)
    if gpu is None or world.room(gpu) < world.sizes[model]:
        return False
    world.load(model, gpu)
    return True


def _leave(
    world: World,
    model: int,
    gpus: Sequence[int],
    may: Callable[[Engine], bool],
    order: Callable[[Engine], float],
) -> bool:
    """Drain the first engines by an order whose GPU then has room."""
    rooms = {gpu: world.room(gpu) for gpu in gpus}
    leaving: dict[int, list[Engine]] = {gpu: [] for gpu in gpus}
    for engine in sorted(world.engines.values(), key=lambda each: (order(each), each.id)):
        if engine.gpu not in rooms or engine.state != "ready" or not may(engine):
            continue
        rooms[engine.gpu] += engine.mb
        leaving[engine.gpu].append(engine)
        if rooms[engine.gpu] >= world.sizes[model]:
            for each in leaving[engine.gpu]:
                world.drain(each)
            return True
    return False


def _idle(engine: Engine) -> bool:
    return not engine.active


def _any(engine: Engine) -> bool:
    return True


def _used(engine: Engine) -> float:
    return engine.used


def _idle_since(engine: Engine) -> float:
    return engine.idle_since or 0.0
