"""Models that are served on a few GPUs, on a virtual clock: requests come, engines load and leave.

What is physical holds for every way to decide: one engine loads on a GPU at a time, memory is free
a second after the last request of an engine that leaves, and no GPU holds more than it has.
"""

import csv
import gzip
import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

GPUS = 4
MEMORY = 80_000
"""MB of a GPU."""
MODELS = 24
_SIZES = (16, 8, 28, 40, 16, 20, 8, 64, 16, 28, 40, 12)
"""GB of the models, again and again; who has which, a seed says."""
CONCURRENCY = 32
_PREFILL = 8_000
"""Tokens of a prompt that are read in a second."""
_DECODE = 0.025
"""Seconds for a token of an answer."""
_UNLOAD = 1.0
_USE_OVER = 300.0
"""Seconds over which the requests of a model are averaged, exponentially."""


class Request(NamedTuple):
    at: float
    """Seconds."""
    model: int
    prefill: float
    decode: float


@dataclass(eq=False)
class Engine:
    """A slot in this world."""

    id: str
    model: int
    gpu: int
    mb: int
    since: float
    state: str = "loading"
    """loading, ready or draining."""
    active: int = 0
    idle_since: float | None = None
    used: float = 0.0
    """When it last began or ended a request."""


@dataclass
class Tally:
    """What came of a load of requests."""

    ttft: list[float] = field(default_factory=list[float])
    """Seconds from each request to its first token."""
    loads: int = 0

    @property
    def mean(self) -> float:
        return sum(self.ttft) / len(self.ttft)

    @property
    def p99(self) -> float:
        return sorted(self.ttft)[int(0.99 * len(self.ttft))]


class World:
    """Plays requests against a way to decide, which loads and drains what it wants."""

    def __init__(
        self, requests: Sequence[Request], sizes: Sequence[int], load_time: float
    ) -> None:
        self.requests, self.sizes, self.load_time = requests, sizes, load_time
        self.now = 0.0
        self.engines: dict[str, Engine] = {}
        self.queues: dict[int, list[Request]] = {model: [] for model in range(len(sizes))}
        self.tally = Tally()
        self.drained: dict[int, float] = {}
        """When the last engine of a model began to drain."""
        self._use: dict[int, tuple[float, float]] = {}
        self._events: list[tuple[float, int, str, Engine | None]] = []
        self._numbers = itertools.count()
        self._wakes: set[float] = set()

    def run(self, decide: "Way") -> Tally:
        """Return what came of it, once each request is answered."""
        coming = iter(self.requests)
        request = next(coming, None)
        while request is not None or self._events:
            if request is not None and (not self._events or request.at <= self._events[0][0]):
                self.now = request.at
                self.queues[request.model].append(request)
                use, before = self._use.get(request.model, (0.0, self.now))
                self._use[request.model] = (self._faded(use, before) + 1 / _USE_OVER, self.now)
                self._serve(request.model)
                news = bool(self.queues[request.model])
                request = next(coming, None)
            else:
                self.now, _, what, engine = heapq.heappop(self._events)
                news = self._happened(what, engine)
            if news and any(self.queues.values()):
                decide(self)
        if len(self.tally.ttft) != len(self.requests):
            raise RuntimeError(
                f"{len(self.requests) - len(self.tally.ttft)} requests were never answered"
            )
        return self.tally

    def use(self, model: int) -> float:
        """Return the requests a second of a model, as far as they were seen."""
        return self._faded(*self._use.get(model, (0.0, self.now)))

    def room(self, gpu: int) -> int:
        return MEMORY - sum(each.mb for each in self.engines.values() if each.gpu == gpu)

    def loads_on(self, gpu: int) -> bool:
        return any(e.gpu == gpu and e.state == "loading" for e in self.engines.values())

    def without_engine(self) -> list[int]:
        """Return the models that wait and have no engine, by their oldest request."""
        have = {each.model for each in self.engines.values() if each.state != "draining"}
        waiting = [model for model, queue in self.queues.items() if queue and model not in have]
        return sorted(waiting, key=lambda model: self.queues[model][0].at)

    def load(self, model: int, gpu: int) -> None:
        mb = self.sizes[model]
        if self.room(gpu) < mb or self.loads_on(gpu):
            raise RuntimeError(f"GPU {gpu} cannot load {mb} MB")
        engine = Engine(f"e{next(self._numbers):05}", model, gpu, mb, self.now)
        self.engines[engine.id] = engine
        self.tally.loads += 1
        self._at(self.now + self.load_time, "ready", engine)

    def drain(self, engine: Engine) -> None:
        if engine.state != "ready":
            raise RuntimeError(f"{engine.id} is {engine.state}")
        engine.state = "draining"
        self.drained[engine.model] = self.now
        if not engine.active:
            self._at(self.now + _UNLOAD, "gone", engine)

    def wake(self, at: float) -> None:
        """Have somebody decide then."""
        if at > self.now and at not in self._wakes:
            self._wakes.add(at)
            self._at(at, "wake", None)

    def _at(self, time: float, what: str, engine: Engine | None) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), what, engine))

    def _faded(self, use: float, since: float) -> float:
        return use * math.exp((since - self.now) / _USE_OVER)

    def _happened(self, what: str, engine: Engine | None) -> bool:
        """Apply an event; return whether it may change what is decided."""
        if engine is None:
            return True
        if what == "gone":
            del self.engines[engine.id]
            return True
        if what == "ready":
            engine.state, engine.since, engine.idle_since = "ready", self.now, self.now
        else:
            engine.active -= 1
        engine.used = self.now
        if engine.state == "draining":
            if not engine.active:
                self._at(self.now + _UNLOAD, "gone", engine)
            return False
        self._serve(engine.model)
        if engine.active:
            return what == "ready"
        engine.idle_since = self.now
        return True

    def _serve(self, model: int) -> None:
        queue = self.queues[model]
        for engine in self.engines.values():
            if engine.model != model or engine.state != "ready":
                continue
            while queue and engine.active < CONCURRENCY:
                request = queue.pop(0)
                engine.active, engine.idle_since, engine.used = engine.active + 1, None, self.now
                self.tally.ttft.append(self.now - request.at + request.prefill)
                self._at(self.now + request.prefill + request.decode, "done", engine)


Way = Callable[[World], None]
"""Looks at the world and calls `load` and `drain`."""


def requests_of(path: Path, seed: int, skew: float) -> tuple[list[Request], list[int]]:
    """Return the requests of a trace, each of a model that the seed draws, and the MB of each
    model. The n-th model has a part of 1 / n ** skew."""
    chance = random.Random(seed)
    sizes = [1000 * _SIZES[number % len(_SIZES)] for number in range(MODELS)]
    chance.shuffle(sizes)
    weights = [(number + 1) ** -skew for number in range(MODELS)]
    with gzip.open(path, "rt") as lines:
        rows = [
            (float(row["t_s"]), int(row["context_tokens"]), int(row["generated_tokens"]))
            for row in csv.DictReader(lines)
        ]
    models = chance.choices(range(MODELS), weights, k=len(rows))
    made = [
        Request(at, model, context / _PREFILL, tokens * _DECODE)
        for (at, context, tokens), model in zip(rows, models, strict=True)
    ]
    return made, sizes
