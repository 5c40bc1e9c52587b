"""What tests of the clients share that run against the simulated market: controls, machines."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from pydantic import SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.http import Patience
from longshore.simulation.market.server import MarketServer
from longshore.simulation.market.world import NoMachines

QUICK = Patience(first_wait=0.02, longest_wait=0.1, looks=3, look_every=0.05)


class Control:
    """The simulated market's own controls, for one provider."""

    def __init__(self, client: httpx.AsyncClient, provider: str) -> None:
        self._client = client
        self._provider = provider
        self.set: set[str] = set()
        """Every fault that was set."""

    async def now(self) -> datetime:
        return datetime.fromtimestamp((await self._said("GET", "/clock"))["now"], UTC)

    async def advance(self, by: timedelta) -> None:
        await self._said("POST", "/clock", advance_seconds=max(by.total_seconds(), 0))

    async def fault(self, name: str, times: int = 1, route: str | None = None) -> None:
        self.set.add(name)
        body = {"name": name, "times": times, "provider": self._provider, "route": route}
        await self._said("POST", "/faults", **body)

    async def clear_faults(self) -> None:
        await self._said("DELETE", "/faults")

    async def knobs(self, **values: float) -> None:
        await self._said("POST", "/knobs", **values)

    async def _said(self, method: str, path: str, **body: Any) -> Any:
        answer = await self._client.request(method, f"/simulation{path}", json=body or None)
        answer.raise_for_status()
        return answer.json()


class Room(NoMachines):
    """Machines that run nothing; who was asked to stop before it was switched off is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_to_stop: dict[str, bool] = {}

    def end(self, name: str, *, notice: bool) -> None:
        self.asked_to_stop[name] = notice
        super().end(name, notice=notice)


def access_to(running: MarketServer) -> Access:
    return Access(running.url, SecretStr(running.token), "simulated")
