"""The command `longshore market simulate`."""

import os
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from longshore.client.market_group import market
from longshore.client.process import leave
from longshore.client.terminal import note
from longshore.models.errors import LongshoreError, StackError
from longshore.models.money import micro_of
from longshore.models.settings import MarketInfo, Settings
from longshore.models.text import format_dollars
from longshore.simulation.market.background import Profile

DEFAULT_PORT = 8486


def register(app: typer.Typer) -> None:
    """Add the command to the group of those about markets."""
    market.command()(simulate)


def simulate(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine; 0 takes any.")
    ] = DEFAULT_PORT,
    seed: Annotated[int, typer.Option(help="The same seed gives the same market.")] = 1,
    profile: Annotated[
        Profile, typer.Option(case_sensitive=False, help="How busy and how steady it is.")
    ] = Profile.CALM,
    speed: Annotated[
        float,
        typer.Option(
            min=0,
            max=100_000,
            help="Market seconds in a real second; 0 stands still until it is moved.",
        ),
    ] = 1.0,
    balance: Annotated[
        float, typer.Option(min=0, help="Simulated dollars at each of the two providers.")
    ] = 10_000,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Machines come up in seconds, not minutes, and none fails."),
    ] = False,
) -> None:
    """Run a simulated market on this machine until Ctrl-C: two providers, and no money moves.

    It answers as San Francisco Compute and Prime Intellect do. Clients in the same state folder
    find it by themselves. A machine that is bought starts a real node agent here.
    """
    try:
        money = micro_of(Decimal(str(balance)))
        _run(Settings(), port, seed, profile, speed, money, quick)
    except LongshoreError as error:
        note(f"error: {error}")
        leave(error.exit_code)
    leave(0)


def _run(
    settings: Settings,
    port: int,
    seed: int,
    profile: Profile,
    speed: float,
    balance: int,
    quick: bool,
) -> None:
    from longshore.activities.providers.access import running_market
    from longshore.simulation.market.market import Market, Options
    from longshore.simulation.market.nodes import AgentRoom
    from longshore.simulation.market.server import MarketServer
    from longshore.simulation.market.world import QUICK, Knobs

    if running := running_market(settings):
        raise StackError(
            f"a simulated market runs already for {settings.state_dir}: {running.url} "
            f"(process {running.pid}). Stop it first."
        )
    room = AgentRoom(settings.state_dir / "market", _line)
    for name in room.clear():
        _line(f"simulated machine {name} was left by an earlier market: switched off")
    options = Options(
        seed=seed,
        profile=profile,
        speed=speed,
        balance=balance,
        knobs=QUICK if quick else Knobs(),
    )
    server = MarketServer(Market(options, room, _line), port)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The server takes them while it runs; one that comes earlier must not be lost.
        signal.signal(number, lambda *_: server.end())
    _announce(settings.market_file, server.url, server.token)
    try:
        _say_what_it_is(settings, server.url, server.token, balance)
        server.run()
    finally:
        settings.market_file.unlink(missing_ok=True)
        room.clear()
    _line("the simulated market has ended, and its machines with it")


def _announce(file: Path, url: str, token: str) -> None:
    from longshore.workers.processes import write_atomically

    file.parent.mkdir(parents=True, exist_ok=True)
    info = MarketInfo(url=url, token=token, pid=os.getpid())
    write_atomically(file, info.model_dump_json())


def _say_what_it_is(settings: Settings, url: str, token: str, balance: int) -> None:
    _line(
        f"This is a SIMULATED market: no money moves. {format_dollars(balance)} at each provider."
    )
    _line(f"  San Francisco Compute   {url}{settings.sfcompute_prefix}")
    _line(f"  Prime Intellect         {url}/api/v1")
    _line(f"  controls                {url}/simulation/state")
    _line(f"  token of all            {token}")
    if settings.market != "simulated":
        _line(f"Clients do not use it: the setting market is {settings.market}.")
    _line("Look with `longshore market`. Ctrl-C ends it, and the machines bought here.")


def _line(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
