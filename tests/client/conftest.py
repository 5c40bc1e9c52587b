"""Running the command line in this process, against the stack of the tests."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from longshore.activities.database import Database
from longshore.client.cli import run
from longshore.models.settings import Settings
from tests.support.market import RunningMarket, running_market


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


Command = Callable[..., Awaitable[Ran]]


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No size or colours of the terminal that runs the tests."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "LONGSHORE_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes a time zone that of this process, until the test ends."""

    def enter(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run one command here; only for commands that call no server of the tests."""

    def command(*args: str) -> Ran:
        capfd.readouterr()
        code = run(args)
        written = capfd.readouterr()
        return Ran(code, written.out, written.err)

    return command


@pytest.fixture
def longshore(
    settings: Settings,
    control: Database,
    cli: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Runs commands against the stack, for which it starts a control worker; 0.3 s a module.

    Each in a thread: it has an event loop of its own.
    """
    monkeypatch.setenv("LONGSHORE_STATE_DIR", str(settings.state_dir))

    async def command(*args: str) -> Ran:
        return await asyncio.to_thread(cli, *args)

    return command


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningMarket]:
    """Starts a simulated market with the worked example; the command line uses it; 0.02 s."""
    with running_market() as market:
        market.book(worked_example=True)
        settings = market.settings()
        for name in ("sfcompute", "prime"):
            token = getattr(settings, f"{name}_token")
            assert isinstance(token, SecretStr)
            monkeypatch.setenv(f"LONGSHORE_{name.upper()}_URL", market.url)
            monkeypatch.setenv(f"LONGSHORE_{name.upper()}_TOKEN", token.get_secret_value())
        yield market
