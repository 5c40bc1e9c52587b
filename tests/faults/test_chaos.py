"""The program behind `make chaos`: its moments follow from the seed, and a short run ends well."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.models.service import ReplicaView, ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import EngineStage
from tests.faults.chaos import lending
from tests.faults.chaos import serving as chaos_serving
from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.lending import MANY_LENDERS
from tests.faults.chaos.many import ManyAsOne
from tests.faults.chaos.schedule import CALM_AT_END, moments
from tests.faults.chaos.serving import ENGINE, MANY_REQUESTS, Serving
from tests.faults.invariants import NOT_PAID_FOR
from tests.support.local_stack import ROOT
from tests.support.waiting import eventually


def test_the_same_seed_means_the_same_faults():
    names = list(FAULTS)
    first = moments(4711, 600, names, every=6)
    assert first == moments(4711, 600, names[::-1], every=6)
    assert first != moments(4712, 600, names, every=6)
    assert [moment.at for moment in first] == sorted(moment.at for moment in first)
    assert first[-1].at < 600 - CALM_AT_END


def test_every_fault_comes_about_as_often_as_the_others():
    counts = [0] * len(FAULTS)
    for moment in moments(1, 3600, list(FAULTS), every=5):
        counts[list(FAULTS).index(moment.fault)] += 1
    assert max(counts) - min(counts) <= 1


ROW = {"array_id": "a", "index": 0, "attempt": 1, "state": "SUCCEEDED", "newest": True,
       "end_state": "SUCCEEDED"}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "row", "says"),
    [
        ("start a 0 1\nend a 0 1\n", {}, []),
        ("start a 0 1\nstart a 0 1\nend a 0 1\n", {}, ["2 times"]),
        ("start a 0 1\nTWICE a 0 1\nend a 0 1\n", {}, ["TWICE a 0 1"]),
        ("start a 0 1\n", {}, ["never came to its end"]),
        ("start a 0 1\nend a 0 1\nstart a 0 2\n", {}, ["is not on record"]),
        ("start a 0 1\nend a 0 1\n", {"end_state": "FAILED"}, ["array a ended FAILED"]),
        ("start a 0 1\n", {"state": "WAITING", "end_state": None},
         ["is WAITING"]),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_an_element_is_found(
    lines: str, row: dict[str, object], says: list[str], tmp_path: Path
):
    (tmp_path / "elements").write_text(lines)
    journal = SimpleNamespace(folder=tmp_path, by_job=dict)
    fleet: Any = SimpleNamespace(rows=lambda _statement: [{**ROW, **row}], journal=journal)
    many = ManyAsOne(fleet)
    many.arrays["a"] = -1
    jobs, problems = await many.to_check()
    assert jobs == []
    for part in says:
        assert any(part in problem for problem in problems), problems
    assert bool(problems) == bool(says)


@pytest.mark.parametrize(("joined", "asked", "is_told"), [(0, 4, 0), (0, 5, 1), (1, 5, 0)])
async def test_that_nothing_joins_is_found(joined: int, asked: int, is_told: int, tmp_path: Path):
    def rows(statement: str) -> list[dict[str, Any]]:
        return [{}] * joined if "joined" in statement else []

    journal = SimpleNamespace(folder=tmp_path, by_job=dict)
    fleet: Any = SimpleNamespace(rows=rows, journal=journal)
    many = ManyAsOne(fleet)
    many.asked_to_grow = asked
    _, problems = await many.to_check()
    assert len([problem for problem in problems if "no rank joined" in problem]) == is_told


@pytest.mark.parametrize(
    ("lenders", "loans", "unpaid", "says"),
    [
        (MANY_LENDERS, 0, 0, ["no spare was lent"]),
        (MANY_LENDERS - 1, 0, 0, []),
        (MANY_LENDERS, 1, 0, []),
        (1, 0, 2, ["a lender did not pay", "a lender did not pay"]),
    ],
)
def test_that_nothing_is_lent_and_a_lender_that_does_not_pay_are_found(
    lenders: int, loans: int, unpaid: int, says: list[str]
):
    def rows(statement: str, *_values: object) -> list[dict[str, Any]]:
        return [{}] * unpaid if statement == NOT_PAID_FOR else [{"loans": loans}]

    scene: Any = SimpleNamespace(fleet=SimpleNamespace(rows=rows), lenders=["gang"] * lenders)
    problems = lending.violations(scene)
    assert [problem.partition(":")[0] for problem in problems] == says


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that looks like an engine on a model of the test's folder; 0.01 s."""
    argv = ("-c", "import time; time.sleep(600)", ENGINE, str(tmp_path / "models" / "good.gguf"))
    process = subprocess.Popen([sys.executable, *argv])
    yield process
    process.kill()
    process.wait()


async def test_an_engine_that_outlives_its_service_is_found(
    engine: subprocess.Popen[bytes], tmp_path: Path
):
    serving = _serving(tmp_path)
    await eventually(lambda: serving.left_over() == [f"engine {engine.pid} still runs"])
    engine.kill()
    engine.wait()
    assert serving.left_over() == []


@pytest.mark.parametrize(
    ("broken", "undone", "answered", "failed", "says"),
    [
        ([2], "it never got ready", 1, 0, ""),
        ([2], "", 1, 0, "revision 2 of chat, which no engine reads, was not undone"),
        ([], "", 0, MANY_REQUESTS, "no request was answered"),
        ([], "", 1, MANY_REQUESTS, ""),
        ([], "", 0, MANY_REQUESTS - 1, ""),
    ],
)
def test_a_revision_that_stays_and_a_service_that_answers_nothing_are_found(
    broken: list[int], undone: str, answered: int, failed: int, says: str, tmp_path: Path
):
    serving = _serving(tmp_path, [{"number": 1, "undone": ""}, {"number": 2, "undone": undone}])
    serving.broken, serving.answered, serving.failed = broken, answered, failed
    problems = serving.left_over()
    assert len(problems) == bool(says)
    assert says in "".join(problems)


@pytest.mark.parametrize(
    ("revisions", "leases", "engines", "state", "says"),
    [
        ((2, 1), 2, 2, ServiceState.REMOVED, "did not settle: 2 leased, 2 engines"),
        ((2,), 1, 1, ServiceState.REMOVED, "did not settle: 1 leased, 1 engines"),
        ((2, 2, 2), 3, 3, ServiceState.REMOVED, "did not settle: 3 leased, 3 engines"),
        ((2, 2), 3, 2, ServiceState.REMOVED, "did not settle: 3 leased, 2 engines"),
        ((2, 2), 2, 1, ServiceState.REMOVED, "did not settle: 2 leased, 1 engines"),
        ((2, 2), 2, 2, ServiceState.REMOVING, "was not removed"),
        ((2, 2), 2, 2, ServiceState.REMOVED, "engine 7 still runs"),
    ],
)
async def test_a_service_that_does_not_come_to_rest_or_leaves_something_is_found(
    revisions: Sequence[int], leases: int, engines: int, state: ServiceState, says: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """What a later look finds has passed those before it."""
    monkeypatch.setattr(chaos_serving, "PATIENCE", 0.05)
    monkeypatch.setattr(
        chaos_serving, "engines_of", lambda _folder: [SimpleNamespace(pid=7)] * engines
    )
    replicas = tuple(
        ReplicaView(
            job_id=f"chat-{number}", service="chat", model="good", revision=revision,
            stage=EngineStage.READY, created_at=datetime.now(UTC),
        )
        for number, revision in enumerate(revisions)
    )  # fmt: skip
    view = ServiceView(
        name="chat", state=state, revision=2, ready=len(replicas),
        spec=ServiceSpec(name="chat", model="good", replicas=len(replicas)),
        replicas=replicas, updated_at=datetime.now(UTC),
    )  # fmt: skip
    rows = [{"number": number, "undone": ""} for number in range(leases)]
    problems = await _serving(tmp_path, rows, view).violations()
    assert problems
    assert all(says in problem for problem in problems)


def _serving(
    folder: Path, rows: Sequence[dict[str, Any]] = (), view: ServiceView | None = None
) -> Serving:
    """Return what looks at a service of which the database has these rows."""

    async def answer(*_asked: object) -> ServiceView | None:
        return view

    async def told(*_asked: object) -> tuple[str, ...]:
        return ()

    fleet: Any = SimpleNamespace(
        rows=lambda _statement: rows,
        stack=SimpleNamespace(folder=folder),
        longshore=SimpleNamespace(service=answer, scale=told, remove_service=told),
    )
    return Serving(fleet)


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_minute_of_chaos_ends_without_a_violation():
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.chaos", "--minutes", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "violations: 0" in run.stdout
