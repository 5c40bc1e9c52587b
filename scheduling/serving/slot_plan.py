"""Which slots are loaded for the requests that wait, and which leave for them.

One model after another: a higher class first; of a class those that are long overdue, the oldest
first; then the most requests for a second of load, the more the longer they have waited. Each gets
the cheapest way that `scheduling.serving.slot_options` finds, where it costs less than that its
requests wait on.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from heapq import heapify, heappop

from longshore.models.serving import EngineStage
from longshore.models.text import amount, count, span
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.serving.prewarming import copies_before
from longshore.scheduling.serving.slot_board import Board
from longshore.scheduling.serving.slot_options import REJECTED, Asked, free_gpu, option_of, options
from longshore.scheduling.serving.slots import (
    ModelSlot,
    ServedModel,
    ServingState,
    SlotAction,
    SlotDecision,
    SlotKey,
    SlotLoad,
    SlotOption,
    SlotPlan,
    SlotPolicy,
    SlotReservation,
    Victim,
    WaitingRequests,
)
from longshore.scheduling.serving.victims import Asker

_HOUR = timedelta(hours=1)
_SHORTEST = timedelta(milliseconds=1)
"""A load of no time would be divided by."""


def plan_slots(state: ServingState, policy: SlotPolicy, now: datetime) -> SlotPlan:
    """Return what is to be done for the requests that wait, and how free memory is filled."""
    with paused():
        return _Planning(state, policy, now).plan()


def due_at(waiting: WaitingRequests, model: ServedModel, policy: SlotPolicy) -> datetime:
    """Return when a slot of its own class is drained for a model that waits."""
    return waiting.since + max(policy.max_wait, policy.wait_loads * model.load_time)


class _Planning:
    def __init__(self, state: ServingState, policy: SlotPolicy, now: datetime) -> None:
        self.state, self.policy, self.now = state, policy, now
        self.board = Board(state, policy, now)
        self.decisions: list[SlotDecision] = []
        self.loads: list[SlotLoad] = []
        self.victims: list[Victim] = []
        self.reservations: list[SlotReservation] = []
        self.coming: dict[SlotKey, int] = {}
        """Slots that this plan, or one before it, brings."""

    def plan(self) -> SlotPlan:
        waiting: dict[SlotKey, WaitingRequests] = {}
        for each in self.state.waiting:
            if each.requests > 0:
                waiting[each.key] = _together(waiting.get(each.key, each), each)
        self._take_reservations(waiting)
        for each in sorted(waiting.values(), key=self._order):
            self._answer(each)
        if not any(each.action is SlotAction.WAIT for each in self.decisions):
            self._prewarm()
        times = [each.again_at for each in self.decisions if each.again_at is not None]
        if any(each.action is SlotAction.WAIT for each in self.decisions):
            times += self._next_stale()
        return SlotPlan(
            tuple(self.decisions), tuple(self.loads), tuple(self.victims),
            tuple(self.reservations), min(times, default=None),
        )  # fmt: skip

    def _take_reservations(self, waiting: dict[SlotKey, WaitingRequests]) -> None:
        """Load where all have left; let the others stand that somebody still waits for."""
        for reservation in sorted(
            self.state.reservations, key=lambda each: (each.key, each.memory)
        ):
            if reservation.key not in waiting or not self.board.holds(reservation):
                continue
            load = self.board.load_time(reservation.key)
            if self.board.can_load(reservation):
                self.loads.append(
                    SlotLoad(reservation.key, reservation.memory, reservation.priority)
                )
                self.board.take(reservation.memory, (), load)
            else:
                self.reservations.append(reservation)
                self.board.keep(reservation)
            self.coming[reservation.key] = self.coming.get(reservation.key, 0) + 1

    def _order(self, waiting: WaitingRequests) -> tuple[object, ...]:
        model = self.state.models.get(waiting.key)
        load = max(model.load_time, _SHORTEST) if model else _SHORTEST
        waits = self.now - waiting.since
        due = due_at(waiting, model, self.policy) - waiting.since if model else timedelta.max
        overdue = waits / self.policy.overdue_after >= due
        worth = waiting.requests * _urgency(waits, load) / load.total_seconds()
        first = waiting.since.timestamp() if overdue else -worth
        return -waiting.priority, not overdue, first, waiting.since, waiting.key

    def _answer(self, waiting: WaitingRequests) -> None:
        """Decide about one key; at most one slot is loaded for it by a plan."""
        key, model = waiting.key, self.state.models.get(waiting.key)
        if model is None:
            return self._decide(key, SlotAction.NEVER, f"there is no model {key}")
        places, loading, slots = self._stock(model)
        serve = tuple(_spread(waiting.requests, places))
        left = waiting.requests - sum(number for _, number in serve)
        coming = self.coming.get(key, 0)
        left -= (len(loading) + coming) * model.concurrency
        slots += coming
        if slots and left <= 0:
            return self._decide(
                key, SlotAction.SERVE, self._says_served(serve, loading), serve=serve
            )
        due = not slots and self.now >= due_at(waiting, model, self.policy)
        asked = Asked(model, Asker(waiting.priority, key, due), left)
        waits = self.now - waiting.since
        value = self._value_of_more(asked, slots, loading) if slots else self._value(asked, waits)
        if slots and value <= 0:
            reason = (
                f"{_slots(slots)}, in use: the {count(left, 'request')} more will be answered "
                f"there before another slot is loaded, which takes {span(model.load_time)}"
            )
            return self._decide(key, SlotAction.WAIT, reason, serve=serve)
        return self._load(waiting, asked, value, serve, more=bool(slots))

    def _load(
        self, waiting: WaitingRequests, asked: Asked, value: int,
        serve: tuple[tuple[str, int], ...], *, more: bool,
    ) -> None:  # fmt: skip
        key, model, policy = asked.model.key, asked.model, self.policy
        due = None if more or asked.asker.due else due_at(waiting, model, policy)
        if self._full():
            reason = f"{count(self.board.loading, 'slot')} load or will, the most at a time"
            return self._decide(key, SlotAction.WAIT, reason, serve=serve, again_at=due)
        found = options(self.board, asked)
        if not found:
            action, reason = self._no_way(asked)
            return self._decide(key, action, reason, serve=serve, again_at=due)
        if asked.asker.due and self.now >= due_at(waiting, model, policy) + policy.max_wait:
            # It may not wait for one GPU after the other.
            found.sort(key=lambda way: way.free_at is not None)
        named = tuple(option_of(self.board, asked, way) for way in found[: 1 + REJECTED])
        best, rejected = named[0], named[1:]
        wait = self._why_wait(asked, best, value, more=more)
        if wait:
            again = min((at for at in (due, best.free_at) if at is not None), default=None)
            return self._decide(
                key, SlotAction.WAIT, wait, chosen=best, rejected=rejected, serve=serve,
                again_at=again,
            )  # fmt: skip
        leaving = tuple(victim.slot for victim in best.victims)
        self.board.take(best.memory, leaving, model.load_time)
        self.coming[key] = self.coming.get(key, 0) + 1
        if best.victims:
            self.victims += best.victims
            self.reservations.append(SlotReservation(key, waiting.priority, best.memory, leaving))
        else:
            self.loads.append(SlotLoad(key, best.memory, waiting.priority))
        beyond = asked.requests > model.concurrency
        return self._decide(
            key, SlotAction.YIELD if best.victims else SlotAction.LOAD,
            self._says_loaded(asked, best, value), chosen=best, rejected=rejected, serve=serve,
            again_at=self.now if beyond else None,
        )  # fmt: skip

    def _full(self) -> bool:
        """Return whether as many load as may at a time."""
        most = self.policy.loads_at_once
        return most is not None and self.board.loading >= most

    def _why_wait(self, asked: Asked, best: SlotOption, value: int, *, more: bool) -> str | None:
        """Return why the best option is not taken now."""
        if best.free_at is not None:
            return f"cheapest is to wait for {best.reason}; in all {amount(best.price)}"
        price = best.evictions + (self._load_price(best, asked.model) if more else 0)
        if price > value and (more or best.victims) and not asked.asker.due:
            what = "a further slot" if more else "the way"
            return (
                f"{what} costs {amount(price)}, more than the {amount(value)} that "
                f"{count(asked.requests, 'request')} cost meanwhile: {best.reason}"
            )
        return None

    def _value(self, asked: Asked, waits: timedelta) -> int:
        """Return what it costs that these requests, and those to come, wait for one load more: the
        more, the longer they have waited."""
        load = asked.model.load_time
        requests = asked.requests + asked.model.use * (load / _HOUR)
        urgent = requests * _urgency(waits, load)
        return round(self.policy.wait_price * urgent * (load / _HOUR))

    def _value_of_more(self, asked: Asked, slots: int, loading: list[ModelSlot]) -> int:
        """Return what a further slot saves: how much longer these requests wait for places of the
        slots that there are than for a load."""
        model = asked.model
        wait = model.request_time * (asked.requests / (2 * model.concurrency * slots))
        if len(loading) == slots:
            wait += min(self.board.ready_at(each) for each in loading) - self.now
        saved = wait - model.load_time
        return round(self.policy.wait_price * asked.requests * (saved / _HOUR))

    def _load_price(self, option: SlotOption, model: ServedModel) -> int:
        rows = self.board.rows_of(option.memory)
        return round(sum(int(self.board.price[row]) for row in rows) * (model.load_time / _HOUR))

    def _no_way(self, asked: Asked) -> tuple[SlotAction, str]:
        model, board = asked.model, self.board
        least = min(model.sizes, key=max, default=None)
        largest = max((gpu.memory for gpu in board.gpus), default=0)
        if least is None and model.split is None:
            return SlotAction.NEVER, "nobody knows how much memory it needs"
        if model.split is None and least is not None and max(least) > largest:
            return SlotAction.NEVER, (
                f"it needs {max(least):,} MB on each of {count(len(least), 'GPU')}, and the "
                f"largest GPU has {largest:,} MB"
            )
        if not board.lasting(model).any():
            return SlotAction.WAIT, (
                f"no node lasts for a load of {span(model.load_time)} and as long again"
            )
        most = max(int(board.room.max()), 0)
        needs = f"{max(least):,} MB" if least else "memory for its layers"
        return SlotAction.WAIT, (
            f"it needs {needs} on a GPU that loads nothing; {most:,} MB are free at most, and "
            f"what yields to class {asked.asker.priority} does not suffice"
        )

    def _stock(self, model: ServedModel) -> tuple[list[tuple[int, str]], list[ModelSlot], int]:
        """Return the ready slots of a key with how many requests each has beyond what it takes:
        fewer than none where it has room; those that load; and how many do not drain."""
        ready, leaving, most = EngineStage.READY, self.board.leaving, model.concurrency
        places: list[tuple[int, str]] = []
        others: list[ModelSlot] = []
        slots = self._of(model.key)
        for slot in slots:
            if slot.state is not ready:
                others.append(slot)
            elif slot.id not in leaving:
                places.append((slot.active + slot.queued - most, slot.id))
        loading = [slot for slot in others if slot.state is EngineStage.LOADING]
        drained = [slot.state for slot in others].count(EngineStage.DRAINING)
        return places, loading, len(slots) - drained

    def _of(self, key: SlotKey) -> list[ModelSlot]:
        return self.board.of_key.get(key, [])

    def _says_served(self, serve: tuple[tuple[str, int], ...], loading: list[ModelSlot]) -> str:
        if serve:
            said = ", ".join(f"{number:,} by {slot}" for slot, number in serve)
            return f"a slot of the same key has room: {said}"
        if loading:
            ready = min(self.board.ready_at(each) for each in loading) - self.now
            return f"{loading[0].id} loads, ready in about {span(ready)}"
        return "GPUs are reserved, and a slot is loaded once the others have left"

    def _says_loaded(self, asked: Asked, best: SlotOption, value: int) -> str:
        load = self._load_price(best, asked.model)
        said = f"on {best.reason}; the load of {span(asked.model.load_time)} costs {amount(load)}"
        if best.victims:
            said += f", in all {amount(best.price + load)}"
        if asked.asker.due:
            return f"{said}; it has waited for its turn"
        return f"{said}; {count(asked.requests, 'request')} cost {amount(value)} meanwhile"

    def _next_stale(self) -> list[datetime]:
        """Return when the next slot will be stale, if nobody asks for it."""
        idle = [
            slot.idle_since + self.policy.stale_after
            for slot, stale in zip(self.board.slots, self.board.stale, strict=True)
            if not stale and slot.idle_since is not None
            and slot.state is EngineStage.READY and not slot.pinned
        ]  # fmt: skip
        return [min(idle)] if idle else []

    def _prewarm(self) -> None:
        """Fill free memory with copies that models want for requests to come: fewest first."""
        models = {model.key: model for model in self.state.models.values() if model.prewarm}
        there = {
            key: sum(s.state is not EngineStage.DRAINING for s in self._of(key))
            + self.coming.get(key, 0)
            for key in models
        }
        wanted = [key for key, model in models.items() for _ in range(there[key], model.prewarm)]
        numbered = zip(copies_before(there, wanted), wanted, strict=True)
        full = set[SlotKey]()
        for number, key in sorted(numbered, key=lambda one: (one[0], -models[one[1]].use, one[1])):
            if key in full:
                continue
            model = models[key]
            one = next((mbs[0] for mbs in model.sizes if len(mbs) == 1), None)
            row = None if one is None else free_gpu(self.board, model, one)
            if one is None or row is None or self._full():
                full.add(key)
                continue
            memory = self.board.memory_of([row], [one])
            self.board.take(memory, (), model.load_time)
            self.loads.append(SlotLoad(key, memory, priority=0, prewarmed=True))
            self._decide(
                key, SlotAction.PREWARM,
                f"{one:,} MB are free on {memory[0].gpu.node}, and it has "
                f"{count(number, 'slot')} of {model.prewarm}",
            )  # fmt: skip

    def _decide(
        self, key: SlotKey, action: SlotAction, reason: str, *, chosen: SlotOption | None = None,
        rejected: tuple[SlotOption, ...] = (), serve: tuple[tuple[str, int], ...] = (),
        again_at: datetime | None = None,
    ) -> None:  # fmt: skip
        self.decisions.append(SlotDecision(key, action, reason, chosen, rejected, serve, again_at))


def _urgency(waits: timedelta, load: timedelta) -> float:
    """Return how often a request counts: once, and once more for each load time that it has
    waited."""
    return 1 + waits / max(load, _SHORTEST)


def _together(one: WaitingRequests, other: WaitingRequests) -> WaitingRequests:
    if one is other:
        return one
    return WaitingRequests(
        one.key, one.requests + other.requests, min(one.since, other.since),
        max(one.priority, other.priority),
    )  # fmt: skip


def _spread(requests: int, places: list[tuple[int, str]]) -> Iterable[tuple[str, int]]:
    """Yield how many requests each slot takes, that with the most room first. A popular model has
    thousands of slots, of which a few answer: they are not sorted."""
    heapify(places)
    while places and requests > 0:
        over, slot = heappop(places)
        if over >= 0:
            return
        yield slot, min(requests, -over)
        requests += over


def _slots(number: int) -> str:
    return f"it has {count(number, 'slot')}"
