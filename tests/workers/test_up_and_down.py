"""`longshore up` and `longshore down`, run as a person runs them."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from longshore.activities.revisions import newest_revision
from longshore.models.errors import RefusedError
from longshore.models.settings import Settings
from longshore.workers.local import choose_nodes
from longshore.workers.processes import wait_until
from longshore.workers.stack import Stack
from tests.support.console import answers
from tests.support.home import Home, new_home
from tests.support.local_stack import free_ports
from tests.support.warm import is_copy, starts_copies

NEWEST = newest_revision()


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """An empty state folder; the tests start a stack in it (5 s), which ends with the module."""
    with new_home() as home:
        home.env["LONGSHORE_CONSOLE_ADDRESS"] = str(free_ports(1)[0])
        yield home


def pids(summary: dict[str, Any]) -> dict[str, int]:
    return {part["name"]: part["pid"] for part in summary["parts"]}


def test_up_starts_everything_and_up_again_finds_it(home: Home):
    first = home.up("--nodes", "1")
    assert first["nodes"] == ["local-1"]
    assert sorted(pids(first)) == [
        "agent-local-1", "console", "control", "postgres", "temporal", "web-ui",
    ]  # fmt: skip
    assert {part["state"] for part in first["parts"]} == {"running"}
    assert home.up() == first
    for name in ("agent-local-1", "console", "control", "web-ui"):
        assert is_copy(pids(first)[name]) or not starts_copies(), (
            "a plain start takes a second and more of the processor"
        )

    url = f"http://127.0.0.1:{home.env['LONGSHORE_CONSOLE_ADDRESS']}"
    [console] = [part for part in first["parts"] if part["name"] == "console"]
    assert console["address"] == url
    assert answers(url)
    token = (home.folder / "console-token").read_text().strip()
    links = json.loads(home.longshore("ui", "--json").stdout)
    assert links["console"] == f"{url}/?token={token}"
    assert token not in (home.folder / "run" / "console.log").read_text()

    rows = home.longshore("db", "psql", "--", "-tAc", "SELECT id FROM nodes")
    assert rows.stdout.split() == ["local-1"]
    fewer = home.longshore("up", "--nodes", "0", "--json")
    assert json.loads(fewer.stdout)["nodes"] == ["local-1"]
    assert "local-1: running from before, beside the nodes asked for." in fewer.stderr


@pytest.mark.exhaustive
def test_up_replaces_what_runs_and_does_not_answer(home: Home):
    before = pids(home.up("--nodes", "0"))
    hung = {name: before[name] for name in ("control", "console", "web-ui")}
    for pid in hung.values():
        psutil.Process(pid).suspend()
    again = home.longshore("up", "--nodes", "0", "--json")
    assert again.returncode == 0, again.stderr
    after = pids(json.loads(again.stdout))
    for name, pid in hung.items():
        assert after[name] != pid, f"{name} is the one that hangs"
        assert not psutil.pid_exists(pid)
        assert f"does not answer (process {pid})" in again.stderr
    servers = ("postgres", "temporal")
    assert {name: after[name] for name in servers} == {name: before[name] for name in servers}


@pytest.mark.exhaustive
def test_up_lets_an_agent_that_was_paused_go_on(home: Home):
    """Ending it would end its jobs."""
    pid = pids(home.up("--nodes", "1"))["agent-local-1"]
    agent = psutil.Process(pid)
    agent.suspend()
    assert wait_until(lambda: agent.status() == psutil.STATUS_STOPPED, 30.0)
    again = home.longshore("up", "--nodes", "1", "--json")
    assert again.returncode == 0, again.stderr
    assert pids(json.loads(again.stdout))["agent-local-1"] == pid
    assert f"the agent of local-1 was paused, and goes on (process {pid})" in again.stderr
    assert wait_until(lambda: agent.status() != psutil.STATUS_STOPPED, 30.0)


@pytest.mark.exhaustive
def test_no_port_of_it_takes_what_a_web_page_can_send(home: Home):
    parts = pids(home.up("--nodes", "1"))
    ports = sorted(port for pid in parts.values() for port in _listening(pid))
    assert len(ports) > 5
    body = json.dumps({
        "workflow_type": {"name": "JobWorkflow"}, "task_queue": {"name": "longshore"},
        "input": [{"spec": {"name": "x", "command": "true"}}],
    })  # fmt: skip
    workflow = "/api/v1/namespaces/default/workflows/job-by-a-web-page"
    posts = [("POST", path) for path in (workflow, "/market/stop", "/")]
    gets = [("GET", path) for path in (workflow, "/jobs", "/orderbook", "/openapi.json")]
    # By the name of the page (DNS rebinding), as its form sends it, and without a name.
    hosts = ("evil.example", "127.0.0.1", "")
    for port, (method, path), host in itertools.product(ports, [*posts, *gets], hosts):
        # A simple request: a browser sends it from any page, without asking first.
        headers = {
            "Content-Type": "text/plain", "Origin": "http://evil.example",
            "Host": f"{host}:{port}" if host else "",
        }  # fmt: skip
        try:
            answer = httpx.request(
                method, f"http://127.0.0.1:{port}{path}", headers=headers, timeout=30,
                content=body if method == "POST" else None, trust_env=False,
            )  # fmt: skip
        except httpx.HTTPError:
            continue  # it speaks another protocol, or listens elsewhere
        assert answer.status_code >= 400, (method, host, port, path, answer.text)
    listed = home.longshore("jobs", "--all", "--json")
    assert json.loads(listed.stdout) == []


def test_tokens_are_in_no_history_log_or_list_of_processes(home: Home):
    parts = pids(home.up("--nodes", "1"))
    tokens = [
        (home.folder / name).read_bytes().strip() for name in ("agent-token", "console-token")
    ]
    words = " ".join(word for pid in parts.values() for word in psutil.Process(pid).cmdline())
    histories = b"".join(file.read_bytes() for file in home.folder.glob("temporal.db*"))
    logs = b"".join(file.read_bytes() for file in (home.folder / "run").glob("*.log"))
    for what in (words.encode(), histories, logs):
        assert b"local-1" in what
        assert [token for token in tokens if token in what] == []


def test_nobody_else_reads_what_is_stored(home: Home):
    home.up("--nodes", "1")
    assert home.folder.stat().st_mode & 0o066 == 0  # as root, PostgreSQL passes through it
    assert (home.folder / "postgres").stat().st_mode & 0o077 == 0
    inside = [
        path for top in home.folder.iterdir() if top.name != "postgres"
        for path in (top, *top.rglob("*")) if not path.is_symlink()
    ]  # fmt: skip
    assert {path.name for path in inside} >= {"temporal.db", "agents", "agent-token"}
    assert [path for path in inside if path.exists() and path.stat().st_mode & 0o077] == []


def _listening(pid: int) -> set[int]:
    found: set[int] = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # PostgreSQL has some that come and go
            found |= {
                each.laddr.port
                for each in process.net_connections("tcp")
                if each.laddr and each.status == psutil.CONN_LISTEN
            }
    return found


def test_tables_of_a_newer_version_are_refused_with_a_sentence(home: Home):
    home.up("--nodes", "0")
    said = f"revision 9999, which this version of Longshore does not know (its newest is {NEWEST})"
    set_to = "UPDATE alembic_version SET version_num = '{}'"
    home.longshore("db", "psql", "--", "-c", set_to.format("9999"))
    try:
        for command in (("up", "--nodes", "0"), ("setup",), ("db", "upgrade"), ("worker",)):
            refused = home.longshore(*command)
            assert (refused.returncode, refused.stdout) == (RefusedError.exit_code, ""), command
            last = refused.stderr.splitlines()[-1]
            assert last.startswith("error: the database is at "), command
            assert f"{said}: a newer one has upgraded it. Run that version, or" in last, command
        found = home.longshore("doctor")
        assert found.returncode == 1
        assert said in found.stdout
        assert "db upgrade" not in found.stdout
    finally:
        home.longshore("db", "psql", "--", "-c", set_to.format(NEWEST))


def test_down_stops_agents_first_and_servers_last(home: Home):
    first = home.up("--nodes", "1")
    [url] = [part["address"] for part in first["parts"] if part["name"] == "console"]
    kept = home.longshore("down", "--keep-servers")
    assert kept.stderr.split() == [
        "stopped", "agent-local-1", "stopped", "console", "stopped", "control",
        "stopped", "web-ui",
    ]  # fmt: skip
    assert not answers(url)
    rest = home.longshore("down")
    assert rest.stderr.split() == ["stopped", "temporal", "stopped", "postgres"]
    assert "nothing of the stack" in home.longshore("down").stdout
    assert (home.folder / "temporal.db").exists()


def test_purge_asks_first(home: Home):
    home.folder.mkdir(exist_ok=True)
    (home.folder / "lock").touch()
    assert home.longshore("down", "--purge").returncode == 1  # no answer on the standard input
    assert home.folder.exists()
    assert home.longshore("down", "--purge", "--yes").returncode == 0
    assert not home.folder.exists()


def test_nodes_are_real_gpus_where_there_are_some_else_simulated(tmp_path: Path):
    stack = Stack(Settings(state_dir=tmp_path))
    assert choose_nodes(stack, None, has_gpus=lambda: True) == {"local-1": ()}
    simulated = choose_nodes(stack, None, has_gpus=lambda: False)
    assert simulated == {
        "local-1": ("--simulate", "8xH100-80GB"),
        "local-2": ("--simulate", "8xH100-80GB"),
    }
    assert list(choose_nodes(stack, 3)) == ["local-1", "local-2", "local-3"]
    assert choose_nodes(stack, 0) == {}
    stack.remember_node("mine", ["--simulate", "1xA100-40GB"])
    assert choose_nodes(stack, None) == {"mine": ("--simulate", "1xA100-40GB")}
