"""The demo's scene of buying, played at a market of the test, with a kill at a moment of it."""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longshore.models.errors import UnavailableError
from longshore.workers.demo.events import Event
from longshore.workers.demo.market import POOL, MarketScene
from longshore.workers.demo.report import Bought
from longshore.workers.demo.state import DemoState
from tests.faults import scenes
from tests.faults.buyers import disagreements
from tests.faults.fleet import CONTROL, PATIENCE, Fleet
from tests.support.market import RunningMarket
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Moment:
    """So many seconds after the market has carried out a call of the control worker."""

    call: str
    """Provider, method and path."""
    number: int = 0
    """How many of that name come before."""
    wait: float = 0.0
    """With 0 the call has no answer yet."""


class Notes:
    """What the scene remembers and tells."""

    def __init__(self) -> None:
        self.state = DemoState.new(jobs=1, nodes=0, seed=1)
        self.told: list[str] = []

    def remember(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)

    def tell(self, kind: str, text: str) -> None:
        self.told.append(f"{kind}: {text}")

    def show(self, event: Event) -> None:
        self.tell(event.kind, event.text)


class Ear:
    """Hears the calls that the market carries out, and kills the control worker after one."""

    def __init__(self, fleet: Fleet, market: RunningMarket) -> None:
        self._fleet = fleet
        self._calls: list[tuple[str, float]] = []
        self._moment: Moment | None = None
        self.killed = threading.Event()
        market.tell_of_calls(self._hear)

    def kill_at(self, moment: Moment) -> None:
        self._calls.clear()
        self.killed.clear()
        self._moment = moment

    def course(self) -> list[tuple[float, Moment]]:
        """Return what was heard, with the seconds since the first call."""
        counts: Counter[str] = Counter()
        course: list[tuple[float, Moment]] = []
        for name, at in self._calls:
            course.append((at - self._calls[0][1], Moment(name, counts[name])))
            counts[name] += 1
        return course

    def _hear(self, name: str) -> None:
        self._calls.append((name, time.monotonic()))
        moment = self._moment
        if moment is None or moment.call != name:
            return
        if sum(heard == name for heard, _ in self._calls) <= moment.number:
            return
        self._moment = None
        if moment.wait:
            threading.Timer(moment.wait, self._kill).start()
        else:
            self._kill()

    def _kill(self) -> None:
        self._fleet.kill(CONTROL)
        self.killed.set()


class Played:
    """The scene, from its first moment until what was bought has ended."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._notes = Notes()
        self._scene = MarketScene(fleet.stack, fleet.longshore, self._notes)

    async def to_its_end(self) -> None:
        """Begin, and start again whoever was killed, until nothing is left to wait for."""
        await scenes.until_answered(self._scene.begin)
        await eventually(self._is_over, timeout=3 * PATIENCE, interval=0.3)

    async def report(self) -> Bought | None:
        """Return what came of it, and let the pool buy no more."""
        bought = await scenes.until_answered(self._scene.report)
        await scenes.until_answered(self._scene.close)
        return bought

    async def _is_over(self) -> bool:
        await asyncio.to_thread(self._fleet.start_what_is_missing)
        with contextlib.suppress(UnavailableError):
            await self._scene.look()
        assert self._scene.over, "\n".join(self._notes.told)
        return True


def moments_of(
    course: Sequence[tuple[float, Moment]], always: Container[str], chance: random.Random,
    count: int,
) -> list[Moment]:  # fmt: skip
    """Return moments spread over the whole course, each in its own part of the time.

    Each is so long after the first call of one of the kinds that `always` come, or after the first
    of all: others, as the lists that a comparison with the market takes, come in some courses.
    """
    anchors = [(at, call) for at, call in course if not call.number and call.call in always]
    anchors.append(course[0])
    whole = course[-1][0]
    found: list[Moment] = []
    for part in range(count):
        at = whole * (part + chance.random()) / count
        began, call = max((each for each in anchors if each[0] <= at), key=lambda each: each[0])
        found.append(replace(call, wait=round(at - began, 3)))
    return found


async def wrong_after(
    fleet: Fleet, market: RunningMarket, at_first: Any, before: Any
) -> list[str]:
    """Return where ledger and market differ, what is left, and what was bought twice.

    `at_first` is the state of the market before the pool's first scene, `before` that before this.
    """
    wrong = await disagreements(fleet, market, POOL, at_first)
    for table in ("purchases", "blocks", "machines"):
        rows = fleet.rows(f"SELECT * FROM {table} WHERE state NOT IN ('ENDED', 'REFUSED')")
        wrong += [f"{table} has {row} left" for row in rows]
    state = market.state()
    wrong += [f"{each} still runs" for thing in ("instances", "pods") for each in state[thing]
              if each["status"].lower() not in ("terminated", "failed")]  # fmt: skip
    new = {thing: [each for each in state[thing]
                   if each["id"] not in {old["id"] for old in before[thing]}]
           for thing in ("orders", "instances", "pods")}  # fmt: skip
    machines = new["instances"] + new["pods"]
    bought = [each for each in new["orders"] if each["side"] == "buy"] + new["pods"]
    if len(machines) != 1 or len(bought) != 1:
        wrong.append(f"bought {bought} and had the machines {machines}, and not one of each")
    return wrong
