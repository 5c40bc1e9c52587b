"""A service in the load: changed, scaled, its engines killed and evicted, and asked all the while.

At the end it has to come to rest with as many engines as are wanted, then to be removed with
nothing left of it. Requests are counted and not judged: which of them a fault may have cost their
answer cannot be told.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import psutil

from longshore.client.service_readiness import is_settled
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import ModelSpec
from tests.faults import scenes
from tests.faults.chaos.schedule import CALM_AT_END
from tests.faults.fleet import PATIENCE, Fleet
from tests.faults.kills import kill_one
from tests.support.gguf_models import Model, write
from tests.support.waiting import eventually

NAME, REPLICAS = "chat", 2
EVERY = 8.0
"""Seconds between two changes, on average."""
MANY_REQUESTS = 20
"""Requests that were begun, of which one at least has to be answered."""
ASK_EVERY = 0.5
_GOOD, _BROKEN = "good", "broken"
_BREAK, _KILL, _EVICT = "serve what no engine reads", "kill -9 an engine", "evict an engine"
ENGINE = "longshore.activities.serving.llama_server"
LEASED = """
    SELECT p.job_id FROM placements p JOIN replicas r USING (job_id) WHERE p.ended_at IS NULL
"""
_REVISIONS = "SELECT number, undone FROM service_revisions ORDER BY number"
_COUNTED = """
    SELECT count(*) AS replicas,
           (SELECT count(*) FROM service_revisions) AS revisions,
           (SELECT count(*) FROM service_revisions WHERE undone <> '') AS undone,
           (SELECT count(*) FROM preemptions JOIN replicas USING (job_id)) AS gone
      FROM replicas
"""


class Serving:
    """The service of a run, and what was done to it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._folder = fleet.stack.folder / "models"
        self._changes = 0
        self.broken: list[int] = []
        """Revisions that no engine can serve, begun while another had been ready."""
        self.done: Counter[str] = Counter()
        """How often each kind of change was made."""
        self.answered = self.failed = 0
        """Requests by how they ended."""

    async def begin(self) -> None:
        """Add a model that works and one that no engine reads; serve the first."""
        self._folder.mkdir()
        sources = {
            name: write(Model(), self._folder / f"{name}.gguf") for name in (_GOOD, _BROKEN)
        }
        models = [
            ModelSpec(name=name, source=str(path), context=1000, memory=0.6)
            for name, path in sources.items()
        ]
        await scenes.until_answered(lambda: self._fleet.longshore.add_models(models))
        # As a file that was damaged after it was added.
        sources[_BROKEN].write_text("garbage")
        await self._serve(_GOOD)

    async def keep_changing(self, chance: random.Random, seconds: float) -> None:
        """Change it at random moments for so long; the seed alone says how."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds - CALM_AT_END
        changes: dict[str, Callable[[random.Random], Awaitable[bool]]] = {
            "change it": self._change,
            "scale it": self._scale,
            _BREAK: lambda _: self._serve_broken(ends - loop.time()),
            _KILL: self._kill,
            _EVICT: self._evict,
        }
        deck: list[str] = []
        while True:
            await asyncio.sleep(chance.expovariate(1 / EVERY))  # changes come at random
            if loop.time() >= ends:
                return
            if not deck:
                deck = sorted(changes)
                chance.shuffle(deck)
            what = deck.pop()
            its_own = random.Random(chance.randrange(2**31))  # what it finds depends on time
            self.done[what] += await changes[what](its_own)

    async def keep_asking(self) -> None:
        """Ask one of its endpoints, again and again, until cancelled."""
        chance = random.Random()
        body = {"prompt": "a", "max_tokens": 8}
        async with httpx.AsyncClient(timeout=10) as http:
            while True:
                await asyncio.sleep(ASK_EVERY)  # a light load, until cancelled
                endpoints = (await self._view()).endpoints
                if not endpoints:
                    continue
                try:
                    answer = await http.post(f"{chance.choice(endpoints)}/completions", json=body)
                    found = answer.status_code == 200 and bool(answer.json()["choices"])
                except (httpx.HTTPError, ValueError, KeyError):
                    found = False
                self.answered += found
                self.failed += not found

    async def violations(self) -> list[str]:
        """Have it come to rest, then remove it; return what is wrong with what is left."""
        longshore = self._fleet.longshore
        await scenes.until_told(lambda: longshore.scale(NAME, REPLICAS))
        try:
            await eventually(self.is_at_rest, timeout=2 * PATIENCE, interval=0.5)
        except AssertionError as error:
            return [f"service {NAME} did not settle: {error}"]
        await scenes.until_told(lambda: longshore.remove_service(NAME))
        try:
            await eventually(self._is_removed, timeout=PATIENCE, interval=0.2)
        except AssertionError as error:
            return [f"service {NAME} was not removed: {error}"]
        return await asyncio.to_thread(self.left_over)

    async def is_at_rest(self) -> bool:
        """Fail where it has not as many engines as are wanted, of its revision, and leases."""
        found = await self._view()
        leased = await asyncio.to_thread(self._fleet.rows, LEASED)
        engines = await asyncio.to_thread(engines_of, self._folder)
        what = f"{len(leased)} leased, {len(engines)} engines, {found!r}"
        assert is_settled(found), what
        assert len(found.replicas) == len(leased) == len(engines) == REPLICAS, what
        return True

    def left_over(self) -> list[str]:
        """Return what is wrong once it is removed, beyond the rows that all tests look at."""
        problems = [f"engine {each.pid} still runs" for each in engines_of(self._folder)]
        undone = {row["number"]: row["undone"] for row in self._fleet.rows(_REVISIONS)}
        problems += [
            f"revision {number} of {NAME}, which no engine reads, was not undone"
            for number in self.broken
            if not undone.get(number)
        ]
        if not self.answered and self.failed >= MANY_REQUESTS:
            problems.append(f"no request was answered: {self.failed} were begun")
        return problems

    def summary(self) -> str:
        """Return what came of it, in one line."""
        (found,) = self._fleet.rows(_COUNTED)
        return (
            f"a service of {found['revisions']} revisions, {found['undone']} of them undone:"
            f" {found['replicas']} replicas begun, {self.done[_KILL]} engines killed,"
            f" {self.done[_EVICT]} evicted, {found['gone']} left for jobs;"
            f" {self.answered} of its requests answered, {self.failed} not"
        )

    async def _serve(self, model: str) -> int:
        """Serve a model by a new revision; return that."""
        self._changes += 1
        spec = ServiceSpec(
            name=NAME, model=model, replicas=REPLICAS, cpus=0.5, ram=0.1, priority=5,
            drain=timedelta(seconds=2, milliseconds=self._changes),
        )  # fmt: skip
        number = 0

        async def serve() -> tuple[str, ...]:
            nonlocal number
            number, warnings = await self._fleet.longshore.serve(spec)
            return warnings

        await scenes.until_told(serve)
        return number

    async def _change(self, chance: random.Random) -> bool:
        await self._serve(_GOOD)
        return True

    async def _serve_broken(self, longest: float) -> bool:
        """Serve what no engine reads where another revision was ready; wait until that is undone,
        or the time is over: at the end it has to be."""
        before = (await self._view()).revisions or ()
        if not any(each.ready_at and not each.undone for each in before):
            return False
        number = await self._serve(_BROKEN)
        self.broken.append(number)

        async def is_undone() -> bool:
            return (await self._view()).revision != number

        with contextlib.suppress(AssertionError):
            await eventually(is_undone, timeout=max(longest, 0), interval=0.5)
        return True

    async def _scale(self, chance: random.Random) -> bool:
        replicas = chance.choice((0, 1, 1, 3))
        await scenes.tell(lambda: self._fleet.longshore.scale(NAME, replicas))
        await asyncio.sleep(chance.uniform(0, 4))  # a random moment
        await scenes.tell(lambda: self._fleet.longshore.scale(NAME, REPLICAS))
        return True

    async def _kill(self, chance: random.Random) -> bool:
        engines = await asyncio.to_thread(engines_of, self._folder)
        return bool(kill_one(chance, engines))

    async def _evict(self, chance: random.Random) -> bool:
        replicas = [each for each in (await self._view()).replicas if not each.stopping]
        if not replicas:
            return False
        await scenes.tell(partial(self._fleet.longshore.evict, chance.choice(replicas).job_id))
        return True

    async def _is_removed(self) -> bool:
        found = await self._view()
        assert found.state is ServiceState.REMOVED, repr(found)
        return True

    async def _view(self) -> ServiceView:
        return await scenes.until_answered(lambda: self._fleet.longshore.service(NAME))


def engines_of(folder: Path) -> list[psutil.Process]:
    """Return the engines that run on models of a folder, whoever is their parent."""
    found: list[psutil.Process] = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            argv = each.cmdline()
            if ENGINE in argv and any(str(folder) in argument for argument in argv):
                found.append(each)
    return found
