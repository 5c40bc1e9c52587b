"""`longshore market simulate` as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from longshore.activities.providers.startup import Startup
from longshore.models.settings import MarketInfo
from tests.support.local_stack import ROOT
from tests.support.market_shop import V1, encoded
from tests.support.waiting import eventually

WAITING = Startup(
    {"TEMPORAL_ADDRESS": "127.0.0.1:9", "LONGSHORE_AGENT_TOKEN": "t"}, ("--node-id", "box")
)


class Simulated:
    """The command, started as often as a test likes in one state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *flags: str) -> subprocess.Popen[str]:
        program = [
            sys.executable,
            "-m",
            "longshore.client.cli",
            "market",
            "simulate",
            "--port",
            "0",
        ]
        process = subprocess.Popen(
            [*program, *flags],
            env={**os.environ, "LONGSHORE_STATE_DIR": str(self.folder)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    async def info(self) -> MarketInfo:
        file = self.folder / "market.json"
        pid = self.processes[-1].pid

        def mine() -> MarketInfo | None:
            if not file.exists():
                return None
            found = MarketInfo.model_validate(json.loads(file.read_text()))
            return found if found.pid == pid else None

        found = await eventually(mine)
        assert found
        return found

    def agents(self) -> list[int]:
        files = (self.folder / "market" / "run").glob("*.json")
        return [json.loads(file.read_text())["pid"] for file in files]


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Simulated]:
    """`longshore market simulate`, which the test starts (1.5 s); gone at the end."""
    running = Simulated(tmp_path)
    yield running
    for process in running.processes:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


async def rent_a_machine(simulated: Simulated) -> int:
    """Return the process id of the agent of a pod."""
    info = await simulated.info()
    headers = {"Authorization": f"Bearer {info.token}"}
    async with httpx.AsyncClient(
        base_url=info.url, headers=headers, trust_env=False, timeout=60
    ) as http:
        knobs = {"pod_start_seconds": 0, "pod_trouble": 0}
        (await http.post("/simulation/knobs", json=knobs)).raise_for_status()
        listed = (await http.get(f"{V1}/availability/gpus")).json()["items"]
        row = next(
            row
            for row in listed
            if row["stockStatus"] != "Unavailable" and row["provider"] == "lambdalabs"
        )
        pod = {
            "cloudId": row["cloudId"], "gpuType": row["gpuType"], "socket": row["socket"],
            "gpuCount": row["gpuCount"], "dataCenterId": row["dataCenter"], "maxPrice": 99.0,
            "image": "custom_template", "customTemplateId": "with-longshore",
            "envVars": [{"key": "LONGSHORE_STARTUP", "value": encoded(WAITING.script())}],
        }  # fmt: skip
        body = {"pod": pod, "provider": {"type": row["provider"]}}
        (await http.post(f"{V1}/pods/", json=body)).raise_for_status()
    return (await eventually(simulated.agents))[0]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_it_says_what_it_is_and_ends_with_its_machines(simulated: Simulated):
    process = simulated.start("--balance", "5000")
    agent = await rent_a_machine(simulated)
    info = await simulated.info()
    assert (simulated.folder / "market.json").stat().st_mode & 0o077 == 0
    second = simulated.start()
    output, _ = second.communicate(timeout=180)
    assert (second.returncode, "runs already" in output) == (71, True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0
    for text in ("SIMULATED", info.url, info.token, "$5,000.00", "simulated pod"):
        assert text in output
    assert not runs(agent)
    assert not (simulated.folder / "market.json").exists()


async def test_after_a_kill_the_next_one_ends_what_was_left(simulated: Simulated):
    first = simulated.start()
    agent = await rent_a_machine(simulated)
    first.kill()
    first.wait(60)
    assert runs(agent)
    second = simulated.start("--speed", "0", "--profile", "empty")
    await simulated.info()
    assert not runs(agent)
    second.terminate()
    output, _ = second.communicate(timeout=180)
    assert second.returncode == 0
    assert "left by an earlier market" in output


async def test_quick_machines_come_up_in_seconds_by_the_time_of_day(simulated: Simulated):
    simulated.start("--quick")
    info = await simulated.info()
    headers = {"Authorization": f"Bearer {info.token}"}
    async with httpx.AsyncClient(
        base_url=info.url, headers=headers, trust_env=False, timeout=60
    ) as http:
        knobs = (await http.get("/simulation/knobs")).json()
        clock = (await http.get("/simulation/clock")).json()
    assert max(knobs["pod_start_seconds"], knobs["instance_start_seconds"]) <= 5
    assert (knobs["pod_trouble"], clock["speed"]) == (0, 1)


async def test_a_taken_port_is_said_in_words(simulated: Simulated):
    simulated.start()
    port = (await simulated.info()).url.rpartition(":")[2]
    other = Simulated(simulated.folder / "other")
    process = other.start("--port", port)
    output, _ = process.communicate(timeout=180)
    assert (process.returncode, f"port {port}" in output) == (71, True)
