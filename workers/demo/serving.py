"""The demo's service: two engines on simulated GPUs answer, and are removed again."""

import asyncio
import importlib.util
import json
import shutil
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol, TypeVar

from longshore.client.api import Longshore
from longshore.client.untold import refuse_untold
from longshore.models.errors import StackError
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import ModelSpec
from longshore.models.text import count
from longshore.workers.demo.jobs import EXAMPLES, POOL

T = TypeVar("T")

SERVICE, MODEL = "demo-chat", "demo-pilot"
REPLICAS = 2
_POLL_EVERY = 0.3
_PATIENCE = 90.0
"""Seconds after which a service that does not come, or does not go, is given up."""


class Teller(Protocol):
    """Whoever shows the demo."""

    def tell(self, kind: str, text: str) -> None: ...


class Patiently(Protocol):
    """Calls again while a server is away."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T: ...


class ServingScene:
    """What the demo serves. Each step may be taken again after a crash."""

    def __init__(self, api: Longshore, teller: Teller) -> None:
        self._api = api
        self._teller = teller

    async def play(self, patiently: Patiently) -> str:
        """Serve a model, ask it, and stop; return what came of it, in a sentence.

        Raises StackError where its engines do not come or do not go.
        """
        if why := _why_not():
            self._teller.tell("note", f"nothing is served: {why}")
            return f"nothing: {why}"

        async def until(holds: Callable[[ServiceView], bool], what: str) -> ServiceView:
            deadline = asyncio.get_running_loop().time() + _PATIENCE
            while True:
                found = await patiently(lambda: self._api.service(SERVICE))
                if holds(found):
                    return found
                if asyncio.get_running_loop().time() > deadline:
                    raise StackError(
                        f"service {SERVICE}: {what} for {_PATIENCE:g} s ({found.message}). "
                        f"`longshore service {SERVICE}` shows it."
                    )
                await asyncio.sleep(_POLL_EVERY)

        await patiently(self._serve)
        ready = await until(lambda found: found.ready == REPLICAS, "its engines are not ready")
        engines = count(len(ready.endpoints), "engine")
        self._teller.tell("serving", f"{MODEL}: {engines} on simulated GPUs, {ready.endpoints[0]}")
        answered = sum([await asyncio.to_thread(_ask, each) for each in ready.endpoints])
        said = f"{engines} of a tiny model answered with {count(answered, 'token')}"
        self._teller.tell("answered", said)
        await patiently(self._remove)
        await until(lambda found: found.state is ServiceState.REMOVED, "its engines do not end")
        return said

    async def _serve(self) -> None:
        model = ModelSpec(
            name=MODEL, source=str(EXAMPLES / "models" / "pilot.gguf"), context=2048, concurrency=4
        )
        await self._api.add_models([model])
        spec = ServiceSpec(
            name=SERVICE, model=MODEL, tenant="demo", pool=POOL, replicas=REPLICAS,
            drain=timedelta(seconds=5),
        )  # fmt: skip
        _, warnings = await self._api.serve(spec)
        refuse_untold(warnings)  # it is served again

    async def _remove(self) -> None:
        refuse_untold(await self._api.remove_service(SERVICE))


def _why_not() -> str:
    if shutil.which("llama-server") or importlib.util.find_spec("xllamacpp"):
        return ""
    return "this machine has neither llama-server nor the package xllamacpp"


def _ask(endpoint: str) -> int:
    """Return with how many tokens an engine answers."""
    body = json.dumps({"model": MODEL, "prompt": "the ship", "max_tokens": 16}).encode()
    request = urllib.request.Request(
        f"{endpoint}/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.loads(answer.read())["usage"]["completion_tokens"])
