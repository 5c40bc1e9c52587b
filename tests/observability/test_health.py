"""/healthz of real processes, well and ill."""

import asyncio
import socket
import urllib.error
import urllib.request
from socket import gethostname

import pytest

from longshore.activities.node.fence import Fence
from longshore.activities.node.system import boot_clock
from longshore.models.errors import StackError
from longshore.workers.health import agent_parts, serving_health
from longshore.workers.postgres import NAME as POSTGRES
from longshore.workers.temporal_server import NAME as TEMPORAL
from tests.support.local_stack import free_ports
from tests.support.plant import Plant, health, metrics
from tests.support.waiting import eventually

WELL = {"server": "ok", "worker": "ok", "database": "ok"}


async def test_both_are_well(plant: Plant):
    well = (200, {"ok": True, "parts": WELL})
    await eventually(lambda: health(plant.control_health) == well)
    registered = (200, {"ok": True, "parts": {"registration": "ok"}})
    await eventually(lambda: health(plant.agent_health) == registered)


def test_only_healthz_is_answered(plant: Plant):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://{plant.control_health}/", timeout=30)
    assert error.value.code == 404
    request = urllib.request.Request(f"http://{plant.control_health}/healthz", method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    assert error.value.code == 405


def by_host(address: str, *hosts: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer to a request with these `Host` headers."""
    host, port = address.split(":")
    lines = "".join(f"Host: {each}\r\n" for each in hosts)
    with socket.create_connection((host, int(port)), timeout=30) as sending:
        sending.sendall(f"GET /healthz HTTP/1.1\r\n{lines}\r\n".encode())
        answer = b"".join(iter(lambda: sending.recv(65536), b""))
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "hosts",
    [
        ("evil.example",), ("evil.example:8086",), ("127.0.0.1.evil.example",), ("localhost.",),
        ("127.0.0.1", "evil.example"), ("",), ("evil@127.0.0.1",), ("[::1",), ("::1",),
    ],
)  # fmt: skip
async def test_a_page_whose_name_leads_here_is_told_nothing(hosts: tuple[str, ...]):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with serving_health(address, lambda: {"secret": "ok"}):
        status, body = await asyncio.to_thread(by_host, address, *hosts)
    assert (status, b"secret" in body, b"error" in body) == (400, False, True)


@pytest.mark.parametrize(
    "host",
    ["10.1.2.3:8086", "10.1.2.3", "[fd00::1]:8086", "LOCALHOST:1", gethostname(), None],
)
async def test_who_asks_by_an_address_or_the_name_of_this_machine_is_answered(host: str | None):
    """A kubelet asks by the address of the pod, a balancer of load by no name."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with serving_health(address, lambda: {"a": "ok"}):
        status, _ = await asyncio.to_thread(by_host, address, *filter(None, [host]))
    assert status == 200


async def test_both_workers_check_who_is_asked_for(plant: Plant):
    for address in (plant.control_health, plant.agent_health):
        status, _ = await asyncio.to_thread(by_host, address, "evil.example")
        assert status == 400


def parts_of(address: str) -> dict[str, str]:
    """Return what a process says of its parts; nothing where it does not answer in time."""
    return health(address)[1].get("parts", {})


async def test_a_database_that_is_away_makes_the_control_worker_ill_until_it_is_back(
    plant: Plant, jobs: dict[str, str]
):
    plant.stack.processes.stop(POSTGRES)
    try:

        def ill() -> bool:
            status, said = health(plant.control_health)
            parts = said.get("parts", {})
            return (
                status == 503
                and parts.get("server") == "ok"
                and parts.get("database", "ok") != "ok"
            )

        await eventually(ill)
    finally:
        await asyncio.to_thread(plant.stack.start, lambda line: None)
    await eventually(lambda: health(plant.control_health)[0] == 200)


async def test_a_server_that_stands_still_makes_both_ill_and_the_agent_counts_its_fence(
    plant: Plant, jobs: dict[str, str]
):
    running = plant.stack.processes.running(TEMPORAL)
    server = running and running.find()
    assert server

    def ill() -> bool:
        status, said = health(plant.agent_health)
        return status == 503 and said["parts"]["registration"].startswith("cut off")

    server.suspend()
    try:
        await eventually(ill)
        await eventually(lambda: parts_of(plant.control_health).get("server", "ok") != "ok")
    finally:
        server.resume()
    await eventually(lambda: health(plant.agent_health)[0] == 200)
    await eventually(lambda: health(plant.control_health)[0] == 200)

    def counted() -> bool:
        series = metrics(plant.agent_metrics)
        assert series.get("longshore_fences_total", 0) >= 1
        return series.get("longshore_heartbeats_missed_total", 0) >= 1

    await eventually(counted)


def test_an_agent_is_well_while_it_is_acknowledged():
    fence = Fence()
    assert agent_parts(fence) == {"registration": "not registered yet"}
    fence.open(1, 10.0, boot_clock())
    assert agent_parts(fence) == {"registration": "ok"}
    fence.open(2, 10.0, boot_clock() - 12.0)
    assert agent_parts(fence) == {"registration": "cut off: no acknowledgement for 12 s"}


async def test_503_says_what_is_wrong_and_a_slow_or_odd_caller_does_no_harm():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with serving_health(address, lambda: {"a": "ok", "b": "away"}):
        _, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"\x00" * 20000 + b"\r\n")
        writer.close()
        status, said = await asyncio.to_thread(health, address)
        assert (status, said) == (503, {"ok": False, "parts": {"a": "ok", "b": "away"}})
        with pytest.raises(StackError, match="Choose another health_address"):
            async with serving_health(address, dict):
                pass
    assert await asyncio.to_thread(health, address) == (0, {})
