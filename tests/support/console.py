"""A console as a process of its own, as people run it, and its REST API."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from longshore.workers.processes import wait_until
from tests.support.home import PROGRAM
from tests.support.http_client import http_client
from tests.support.local_stack import free_ports
from tests.support.market import RunningMarket


class RunningConsole:
    """Where a console is, its token, and a client that has it."""

    def __init__(self, url: str, token: str, log: Path, process: "subprocess.Popen[str]") -> None:
        self.url = url
        self.token = token
        self.log = log
        self.process = process
        self.headers = {"Authorization": f"Bearer {token}"}
        self.http = http_client(url, self.headers)
        self.stranger = http_client(url)

    def get(self, path: str, **query: object) -> httpx.Response:
        return self.http.get(path, params={k: str(v) for k, v in query.items()})

    def end(self) -> int:
        """Ask it to end, and return its exit code."""
        self.http.close()
        self.stranger.close()
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def running_console(
    folder: Path, market: RunningMarket | None = None, database_url: str | None = None
) -> Iterator[RunningConsole]:
    """Yield a console whose state is in `folder`, at a port that nobody uses."""
    [port] = free_ports(1)
    env = os.environ | {
        "LONGSHORE_STATE_DIR": str(folder),
        "LONGSHORE_CONSOLE_ADDRESS": str(port),
    }
    if market:
        env |= {
            "LONGSHORE_SFCOMPUTE_URL": market.url, "LONGSHORE_SFCOMPUTE_TOKEN": market.token,
            "LONGSHORE_PRIME_URL": market.url, "LONGSHORE_PRIME_TOKEN": market.token,
        }  # fmt: skip
    if database_url:
        env["LONGSHORE_DATABASE_URL"] = database_url
    log = folder / "console.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            [PROGRAM, "console"], env=env, stdout=file, stderr=file, text=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        assert wait_until(lambda: answers(url) or process.poll() is not None, 180.0, 0.1)
        assert process.poll() is None, log.read_text()
        token = (folder / "console-token").read_text().strip()
        console = RunningConsole(url, token, log, process)
        yield console
        console.end()
    finally:
        process.kill()
        process.wait(60)


def answers(url: str) -> bool:
    """Return whether a console is well."""
    try:
        return httpx.get(f"{url}/healthz", trust_env=False, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False
