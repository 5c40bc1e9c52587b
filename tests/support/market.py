"""A simulated market for tests: over real HTTP, in this process, on a clock that tests move."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longshore.models.settings import Settings
from longshore.simulation.market.background import Profile
from longshore.simulation.market.market import Market, Options
from longshore.simulation.market.nodes import AgentRoom
from longshore.simulation.market.server import MarketServer
from longshore.simulation.market.world import MachineRoom
from tests.support.http_client import http_client

Json = Any


class RunningMarket:
    """A served market, and its controls. `url` and `token` are all that a client needs."""

    def __init__(self, server: MarketServer) -> None:
        self._server = server
        self.url = server.url
        self.token = server.token
        self.headers = {"Authorization": f"Bearer {server.token}"}
        self.http = http_client(server.url, self.headers)

    def tell_of_calls(self, told: Callable[[str], object]) -> None:
        """Have `told` called with provider, method and path of each call of a client.

        The call has been carried out then, and waits for its answer until `told` returns.
        """

        def carried_out(provider: str, route: str) -> None:
            if provider != "simulation":
                told(f"{provider} {route}")

        self._server.market.carried_out = carried_out

    def settings(self, **others: Any) -> Settings:
        """Return settings under which clients use this market."""
        where = {
            "sfcompute_url": self.url, "sfcompute_token": self.token,
            "prime_url": self.url, "prime_token": self.token,
        }  # fmt: skip
        return Settings(**{**where, **others})

    @property
    def now(self) -> float:
        """Market seconds since 1970."""
        return self.get("clock")["now"]

    def advance(self, seconds: float) -> None:
        self.post("clock", advance_seconds=seconds)

    def fault(self, name: str, times: int = 1, **where: str) -> None:
        """Let a fault happen the next `times` times; `where` is provider and route."""
        self.post("faults", name=name, times=times, **where)

    def clear_faults(self) -> None:
        self.http.delete("/simulation/faults").raise_for_status()

    def happened(self, name: str) -> int:
        return next(f["happened"] for f in self.get("faults")["faults"] if f["name"] == name)

    def knobs(self, **values: float | None) -> None:
        self.post("knobs", **values)

    def book(
        self, *orders: dict[str, Any], sku: str | None = None, worked_example: bool = False
    ) -> None:
        """Make a book hold these orders of strangers and nothing else.

        Each is side, dollars_per_gpu_hour, nodes, and may be start_at, end_at, divisible.
        """
        self.post("books", sku=sku, clear=True, orders=orders, worked_example=worked_example)

    def state(self) -> Json:
        return self.get("state")

    def get(self, path: str) -> Json:
        answer = self.http.get(f"/simulation/{path}")
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, **body: Any) -> Json:
        answer = self.http.post(f"/simulation/{path}", json=body)
        answer.raise_for_status()
        return answer.json()


@contextmanager
def running_market(
    profile: Profile = Profile.EMPTY,
    *,
    speed: float = 0.0,
    machines: MachineRoom | None = None,
    **options: Any,
) -> Iterator[RunningMarket]:
    """Yield a served market that nobody else trades at, whose clock stands at now.

    An order is settled with the request that follows it. `options` are those of
    simulation.market.market.Options.
    """
    market = Market(Options(profile=profile, speed=speed, **options), machines)
    market.world.knobs = market.world.knobs.model_copy(
        update={"settle_seconds": 0.0, "pod_trouble": 0.0}
    )
    server = MarketServer(market)
    server.start()
    running = RunningMarket(server)
    try:
        yield running
    finally:
        running.http.close()
        server.stop()


@contextmanager
def market_with_machines(
    folder: Path, balance: int = 10**12, *, steady: bool = False
) -> Iterator[RunningMarket]:
    """Yield a market at the time of day whose machines are processes with files in `folder`.

    Every three minutes its offers change, one at times between a look at it and its order; not so
    where it is `steady`.
    """
    room = AgentRoom(folder)
    try:
        with running_market(
            Profile.CALM, speed=1.0, machines=room, balance=balance, steady=steady
        ) as market:
            market.knobs(instance_start_seconds=0, pod_start_seconds=1, spot_loss_per_hour=0)
            yield market
    finally:
        room.clear()
