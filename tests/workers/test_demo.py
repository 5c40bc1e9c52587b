"""`longshore demo`, run as a person runs it: to its end, and again after everything was killed."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from longshore.models.spending import Account
from longshore.workers.demo.market import MARKET
from longshore.workers.demo.state import StateFile
from longshore.workers.local import CONTROL, local_nodes
from longshore.workers.stack import SERVERS
from tests.support.home import Home, new_home

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """An empty state folder; the first demo starts a stack in it (5 s)."""
    with new_home() as home:
        yield home


@pytest.fixture
def own_home() -> Iterator[Home]:
    """One in which no demo has left a purchase half done; the demo starts a stack (5 s)."""
    with new_home() as home:
        yield home


@pytest.mark.exhaustive  # .ci/run runs it as `make demo`, which judges itself
def test_it_cancels_kills_recovers_and_finds_all_as_it_should_be(home: Home) -> None:
    demo = home.start("demo", "--jobs", "8", "--json")
    out, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, err
    report = json.loads(out)
    assert report["problems"] == []
    assert (report["succeeded"], report["cancelled"], report["failed"]) == (7, 1, 0)
    assert report["killed_node"] in ("demo-1", "demo-2", "demo-3")
    assert report["retries"] >= 1
    assert report["placements"] >= 8 + report["retries"]
    assert report["training"].startswith("accuracy 0.9")
    assert report["gang"].startswith("all 2 ranks met: 16 GPUs on demo-")
    assert 0 < report["utilization"] <= 1
    bought = report["bought"]
    assert bought["market_says_micro_usd"] == bought["paid_micro_usd"] > 0
    assert Account.model_validate(bought).adds_up
    assert bought["job"].startswith(f"ran on {bought['nodes'][0]} with GPUs")
    assert not home.stack.settings.market_file.exists(), "its market goes on"
    assert local_nodes(home.stack) == ()
    assert home.stack.remembered_nodes() == {}
    assert StateFile(home.stack.folder).unfinished() is None


@pytest.mark.exhaustive  # tests/e2e/test_survival.py kills everything too
def test_it_goes_on_after_everything_was_killed(home: Home) -> None:
    first = home.start("demo", "--jobs", "8")
    assert first.stdout is not None
    assert any("  killed  " in line for line in first.stdout), "it never killed an agent"
    first.kill()
    first.communicate()
    home.kill_everything()
    unfinished = StateFile(home.stack.folder).unfinished()
    assert unfinished is not None

    second = home.start("demo", "--json", "--keep")
    out, err = second.communicate(timeout=240)
    assert second.returncode == 0, err
    report = json.loads(out)
    assert "found an unfinished demo" in err
    assert (report["batch"], report["interruptions"]) == (unfinished.batch, 1)
    assert (report["jobs"], report["succeeded"], report["cancelled"]) == (8, 7, 1)
    assert report["killed_node"] == unfinished.killed_node
    assert "kill -9" not in err, "it killed an agent a second time"
    assert local_nodes(home.stack) == ("demo-1", "demo-2", "demo-3")


@pytest.mark.exhaustive  # tests/faults/test_points.py has a case of each
def test_it_only_takes_longer_when_its_parts_are_killed(home: Home) -> None:
    """One after the other, while jobs are placed: the control worker, Temporal, PostgreSQL."""
    demo = home.start("demo", "--jobs", "12")
    assert demo.stdout is not None
    victims, restarted, told = [CONTROL, *SERVERS], set[str](), list[str]()
    for line in demo.stdout:
        told.append(line)
        if victims and ("  placed  " in line or "  restarted  " in line):
            name = victims[0]
            running = home.stack.processes.running(name)
            if running and (name == CONTROL or "  restarted  " in line):
                os.kill(running.pid, signal.SIGKILL)
                victims.pop(0)
        if "  restarted  " in line:
            restarted.update(line.split("  restarted  ")[1].strip().split(", "))
    _, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, "".join([*told, err])
    assert {CONTROL, *SERVERS} <= restarted


@pytest.mark.exhaustive  # tests/faults/test_buying_points.py has such cases
@pytest.mark.timeout(600)  # a control worker takes long to start beside others
def test_what_it_buys_is_bought_once_while_the_control_worker_is_killed(own_home: Home) -> None:
    """At every step that is told of the purchase, whatever the worker does at that moment."""
    demo = own_home.start("demo", "--jobs", "4", "--nodes", "2", "--keep")
    assert demo.stdout is not None
    steps, killed, told = ["decided", "ordered", "paid", "machine", "closed"], 0, list[str]()
    for line in demo.stdout:
        told.append(line)
        if steps and f"  {steps[0]}  " in line:
            steps.pop(0)
            if running := own_home.stack.processes.running(CONTROL):
                os.kill(running.pid, signal.SIGKILL)
                killed += 1
    _, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, "".join([*told, err])
    assert not steps, "".join(told)
    assert killed >= 3
    summary = "".join(told).partition("Summary")[2]
    assert "the market says the same, and lists nothing else" in summary, summary
    assert sum("  ordered  " in line for line in told) == 1


@pytest.mark.exhaustive  # tests/buying has markets that go away too
def test_it_ends_well_without_its_market(own_home: Home) -> None:
    """A simulated market that is killed takes orders and money with it: there is nothing to do."""
    demo = own_home.start("demo", "--jobs", "4", "--nodes", "2")
    assert demo.stdout is not None
    told: list[str] = []
    for line in demo.stdout:
        told.append(line)
        if "  decided  " in line and (running := own_home.stack.processes.running(MARKET)):
            os.kill(running.pid, signal.SIGKILL)
    _, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, "".join([*told, err])
    assert "nothing: the simulated market has ended" in "".join(told)
