"""Checkpoints of real processes: saved, published, restored on another node, asked for."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.activities.node import restoring
from longshore.activities.node.preparing import NotReadyError
from longshore.activities.node.run import Run
from longshore.activities.node.run_files import RunFiles
from longshore.activities.node.system import boot_clock
from longshore.activities.storage import GivenUp
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.errors import NotFoundError, RefusedError, UnavailableError
from longshore.models.node_messages import ProcessReport, StopProcessRequest
from longshore.models.placement import Rank
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.checkpoints import tree_of, write_tree
from tests.support.waiting import eventually

COUNT = """
cd "$LONGSHORE_CHECKPOINT_DIR"; step=$(cat step 2>/dev/null || echo 0)
echo "begins at $step, resume ${LONGSHORE_RESUME:-no}, told ${LONGSHORE_CHECKPOINT_STEP:-nothing}"
say() { echo "saved, step $step" >> "$LONGSHORE_SAVED"; }
save() { echo $step > step.draft; mv step.draft step; say; }
"""
"""A job in a shell; `save` saves the step and says so."""
IDLE = "echo ready; while :; do sleep 0.05; done"
CONTRACT = {"folder": "c", "grace": 30}


class Nodes:
    """Nodes with one checkpoint store."""

    def __init__(self, folder: Path, make_box: MakeBox) -> None:
        self.folder = folder
        self._make_box = make_box

    def node(self, name: str, checkpoints: str = "") -> LocalNode:
        store = checkpoints or (self.folder / "store").as_uri()
        return self._make_box(self.folder / name, checkpoints=store)


@pytest.fixture
def nodes(tmp_path: Path, make_box: MakeBox) -> Nodes:
    return Nodes(tmp_path, make_box)


async def test_a_stopped_job_goes_on_on_another_node(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} step=$((step + 7)); trap 'save; exit 1' TERM; {IDLE}"
    first = await _stopped(a, _start(a, command))
    assert first.checkpoint
    assert (first.checkpoint.step, first.checkpoint.published, first.checkpoint.whole) == (
        7,
        True,
        True,
    )
    assert first.checkpoint_error == ""
    second = _start(b, command, attempt=2)
    assert "begins at 7, resume 1, told 7" in await _output(b, second)
    assert second.progress().checkpoint == first.checkpoint
    third = await _stopped(b, second)
    assert third.checkpoint
    assert (third.checkpoint.attempt, third.checkpoint.step) == (2, 14)


async def test_an_exit_after_a_stop_counts_where_the_job_says_nothing(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} trap 'echo 9 > step; exit' TERM; {IDLE}"
    report = await _stopped(a, _start(a, command))
    assert report.checkpoint
    assert (report.checkpoint.step, report.checkpoint.published) == (None, True)
    assert report.checkpoint.write_seconds is not None
    assert "begins at 9, resume 1, told nothing" in await _output(b, _start(b, command, attempt=2))


async def test_what_was_killed_has_saved_nothing(nodes: Nodes) -> None:
    a = nodes.node("a")
    run = _start(a, f"{COUNT} echo half > step; trap '' TERM; {IDLE}")
    await _output(a, run)
    report = await _stopped(a, run, grace=0.2)
    assert report.checkpoint is None
    assert "killed before" in report.checkpoint_error
    assert a.checkpoints.newest("job-a") is None


@pytest.mark.parametrize("grace", [0.3, 0])
async def test_what_was_killed_behind_a_shell_displaces_no_whole_checkpoint(
    nodes: Nodes, grace: float
) -> None:
    """The shell dies of the signal at once, what is saving below it is killed."""
    a, contract = nodes.node("a"), CONTRACT | {"keep": 1}
    whole = f"{COUNT} trap 'step=500; save; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, whole, contract=contract))
    half = f"sh -c 'trap : TERM; echo half > c/step; {IDLE}'; echo never"
    run = _start(a, half, attempt=2, contract=contract)
    report = await _stopped(a, run, grace=grace)
    assert report.exit_code in (143, 137)
    assert "killed before" in report.checkpoint_error
    newest = a.checkpoints.newest("job-a")
    assert newest
    assert (newest.order[0], newest.step) == (1, 500)


async def test_each_line_is_published_while_the_job_runs(nodes: Nodes) -> None:
    a = nodes.node("a")
    run = _start(a, f"{COUNT} step=3; save; read -r _ < ../go; step=4; save; {IDLE}", fifo=True)
    assert (await _published(run, 3)).bytes == 2
    os.close(os.open(_work(a) / "go", os.O_WRONLY))  # lets `read` come back
    four = await _published(run, 4)
    assert (four.number, four.attempt, four.simulated) == (2, 1, True)


async def test_a_job_on_its_own_node_keeps_what_is_newer_there(nodes: Nodes) -> None:
    a = nodes.node("a")
    command = f"{COUNT} trap 'save; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, command))
    write_tree(_work(a) / "c", {"step": b"41"})  # as a job that saves and never says so
    assert "begins at 41, resume 1" in await _output(a, _start(a, command, attempt=2))


async def test_a_node_that_was_left_takes_what_is_newer_in_the_store(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} step=$((step + 1)); trap 'save; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, command))
    await _stopped(b, _start(b, command, attempt=2))
    third = _start(a, command, attempt=3)
    assert "begins at 2, resume 1, told 2" in await _output(a, third)


async def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    run = _start(a, f"{COUNT} step=1; save; read -r _ < ../go; step=2; save; {IDLE}", fifo=True)
    await _published(run, 1)
    os.close(os.open(_work(a) / "go", os.O_WRONLY))
    await _published(run, 2)
    newest = max((nodes.folder / "store/job-a/files").iterdir())
    (newest / "000000").write_bytes(b"3\n")
    second = _start(b, f"{COUNT} read -r _ < ../go; step=3; save; {IDLE}", attempt=2, fifo=True)
    assert "begins at 1, resume 1, told 1" in await _output(b, second)
    assert "longshore: it goes on from an older checkpoint" in _stderr(second)
    os.close(os.open(_work(b) / "go", os.O_WRONLY))
    await _published(second, 3)
    assert "is damaged" in second.progress().checkpoint_error  # what it saves does not mend it
    stays = {(name.attempt, name.step) for name in b.checkpoints.names("job-a")}
    assert stays == {(1, 1), (1, 2), (2, 3)}  # two that can be used


async def test_where_all_is_damaged_the_attempt_fails_and_displaces_nothing(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command, once = f"{COUNT} step=$((step + 7)); trap 'save; exit' TERM; {IDLE}", {"keep": 1}
    await _stopped(a, _start(a, command, contract=CONTRACT | once))
    _damage(nodes)
    second = await _start(b, command, attempt=2, contract=CONTRACT | once).done
    assert second.failure is FailureClass.NODE
    assert "none of what is stored can be used" in second.message
    assert [name.attempt for name in b.checkpoints.names("job-a")] == [1]
    third = _start(a, command, attempt=3, contract=CONTRACT | once)  # which still has it whole
    assert "begins at 7, resume 1, told 7" in await _output(a, third)


async def test_where_all_is_damaged_an_older_folder_is_used_and_that_is_told(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command, once = f"{COUNT} step=$((step + 1)); trap 'save; exit' TERM; {IDLE}", {"keep": 1}
    await _stopped(a, _start(a, command, contract=CONTRACT | once))
    await _stopped(b, _start(b, command, attempt=2, contract=CONTRACT | once))
    _damage(nodes)
    third = _start(a, command, attempt=3, contract=CONTRACT | once)
    assert "begins at 1, resume 1, told 1" in await _output(a, third)
    assert "it goes on from what its folder on this node holds" in _stderr(third)
    report = await _stopped(a, third)
    assert "is damaged" in report.checkpoint_error


async def test_a_stop_before_the_first_save_leaves_what_was_told_last(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    tells = f"{COUNT} step=7; trap 'save; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, tells))
    half = f"{COUNT} echo 8 > step; trap exit TERM; {IDLE}"
    report = await _stopped(b, _start(b, half, attempt=2))
    assert report.checkpoint
    assert (report.checkpoint.attempt, report.checkpoint.step) == (1, 7)
    assert [name.step for name in a.checkpoints.names("job-a")] == [7]
    assert "begins at 7, resume 1, told 7" in await _output(a, _start(a, tells, attempt=3))


async def test_a_job_that_says_nothing_is_published_at_each_stop(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} trap 'echo $((step + 1)) > step; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, command))
    await _stopped(b, _start(b, command, attempt=2))
    assert "begins at 2, resume 1" in await _output(a, _start(a, command, attempt=3))


async def test_what_the_store_lacks_of_a_folder_is_published_when_it_goes_on(nodes: Nodes) -> None:
    a = nodes.node("a")
    await _stopped(a, _start(a, f"{COUNT} step=7; trap 'save; exit' TERM; {IDLE}"))
    shutil.rmtree(nodes.folder / "store")
    second = _start(a, f"{COUNT} {IDLE}", attempt=2)
    seven = await _published(second, 7)
    assert (seven.attempt, seven.number) == (1, 1)
    assert a.checkpoints.newest("job-a")


@pytest.mark.parametrize("stopped", [False, True])
async def test_it_is_published_also_where_the_job_cannot_begin(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    await _stopped(a, _start(a, f"{COUNT} step=7; trap 'save; exit' TERM; {IDLE}"))
    shutil.rmtree(nodes.folder / "store")

    async def lacks(files: RunFiles, run: Run, folder: Path) -> None:
        if not stopped:
            raise NotReadyError(FailureClass.START, "no such package")
        await asyncio.to_thread(run.unwanted.wait, 60)
        raise GivenUp

    with monkeypatch.context() as patched:
        patched.setattr(RunFiles, "take_environment", lacks)
        second = _start(a, COUNT, attempt=2)
        if stopped:
            await eventually(lambda: second.keeper and second.keeper.last)
            await _stop(a, second)
        report = await second.done
    assert report.exit_code is None
    assert report.checkpoint
    assert (report.checkpoint.step, report.checkpoint.published) == (7, True)
    assert list(second.folder.glob(".c.saved-*")) == []
    assert "begins at 7, resume 1, told 7" in await _output(b, _start(b, COUNT, attempt=3))


async def test_what_a_later_save_has_half_done_is_not_published_as_the_one_that_was_told(
    nodes: Nodes,
) -> None:
    a = nodes.node("a")
    half = "trap 'echo 8 > part; mv part step; exit' TERM"
    first = _start(a, f"{COUNT} step=7; echo 7 > other; save; {half}; {IDLE}")
    await _published(first, 7)
    await _stopped(a, first)
    shutil.rmtree(nodes.folder / "store")
    second = _start(a, f"{COUNT} {IDLE}", attempt=2)
    assert "begins at 8, resume 1, told 7" in await _output(a, second)
    assert "changed since" in second.progress().checkpoint_error
    assert (await _stop(a, second)).checkpoint is None
    assert a.checkpoints.newest("job-a") is None


async def test_without_its_store_the_job_runs_on_and_says_so(nodes: Nodes) -> None:
    (nodes.folder / "store").write_text("no folder")
    a = nodes.node("a")
    run = _start(a, f"{COUNT} step=5; save; {IDLE}")
    await eventually(lambda: "cannot be written" in run.progress().checkpoint_error)
    saved = run.progress().checkpoint
    assert saved
    assert (saved.step, saved.published, run.done.done()) == (5, False, False)
    (nodes.folder / "store").unlink()  # back again
    assert (await _published(run, 5)).whole
    assert run.progress().checkpoint_error == ""


async def test_a_job_that_moved_waits_for_the_store_and_is_the_nodes_fault_then(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "RESTORE_PATIENCE", 0.1)
    report = await _start(nodes.node("a", "nowhere://x"), COUNT, attempt=2).done
    assert report.failure is FailureClass.NODE
    assert "the store nowhere://x cannot be opened" in report.message


async def test_without_the_store_an_old_folder_is_not_gone_on_from(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} step=$((step + 1)); trap 'save; exit' TERM; {IDLE}"
    await _stopped(a, _start(a, command))
    with _away(nodes.folder / "store"):  # nobody else ran since
        second = _start(a, command, attempt=2)
        assert "begins at 1, resume 1, told 1" in await _output(a, second)
    await _stopped(a, second)
    await _stopped(b, _start(b, command, attempt=3))
    with _away(nodes.folder / "store"):
        run = _start(a, command, attempt=4)
        await eventually(lambda: run.progress().checkpoint_error)
        assert "begins at" not in a.output(run.record.key)
    assert "begins at 3, resume 1, told 3" in await _output(a, run)


async def test_without_the_store_a_job_stays_with_a_folder_that_it_went_on_from(
    nodes: Nodes,
) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    saves, never = "step=1; trap 'save; exit' TERM", "trap '' TERM"
    await _stopped(a, _start(a, f"{COUNT} {saves}; {IDLE}"))
    await _stopped(b, _start(b, f"{COUNT} {saves}; {IDLE}", attempt=2))
    for attempt in (3, 4):  # what the second one saved is restored, and then kept
        run = _start(a, f"{COUNT} {never}; {IDLE}", attempt=attempt)
        assert "begins at 1, resume 1, told 1" in await _output(a, run, "ready")
        await _stop(a, run, grace=0.1)
    with _away(nodes.folder / "store"):
        run = _start(a, f"{COUNT} {never}; {IDLE}", attempt=5)
        assert "begins at 1, resume 1, told 1" in await _output(a, run, "ready")
        await _stop(a, run, grace=0.1)


async def test_a_job_that_waits_for_the_store_can_be_stopped(nodes: Nodes) -> None:
    a = nodes.node("a", "nowhere://x")
    run = _start(a, COUNT, attempt=2)
    await eventually(lambda: run.progress().checkpoint_error)
    report = await _stop(a, run)
    assert (report.stopped_for, report.failure) == ("test", None)


async def test_a_store_that_is_full_is_said_and_tried_again(nodes: Nodes) -> None:
    import resource

    a = nodes.node("a")
    run = _start(a, f"{COUNT} head -c 300000 /dev/zero > big; step=1; save; {IDLE}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    await _output(a, run)
    await _published(run, 1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        (a.folder / "runs/job-a-1/public/saved").open("a").write("saved, step 2\n")
        await eventually(lambda: "File too large" in run.progress().checkpoint_error)
        names = a.checkpoints.names("job-a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [name.step for name in names] == [1]
    await _published(run, 2)


@pytest.mark.parametrize(
    ("contract", "handler"),
    [
        ({"save_signal": "SIGUSR1"}, "trap 'step=8; save' USR1; echo ready"),
        (
            {"save_file": True},
            "echo ready; until [ -e $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; step=8; save",
        ),
    ],
    ids=["signal", "file"],
)
async def test_a_job_saves_when_asked_and_goes_on(
    nodes: Nodes, contract: dict[str, object], handler: str
) -> None:
    a = nodes.node("a")
    run = _start(a, f"{COUNT} {handler}; {IDLE}", contract=CONTRACT | contract)
    await _output(a, run, "ready")
    saved = await a.processes.save(SaveRequest(key=run.record.key))
    assert (saved.step, saved.published, saved.bytes) == (8, True, 2)
    assert saved.write_seconds is not None
    assert not run.done.done()
    assert not (a.folder / "runs/job-a-1/public/save-request").exists()


async def test_who_cannot_be_asked_to_save_is_told_apart(nodes: Nodes) -> None:
    a = nodes.node("a")
    silent = _start(a, IDLE, contract=CONTRACT | {"save_file": True})
    unasked = _start(a, IDLE, job="job-b")
    bare = a.start(IDLE, job="job-c")
    for run in (silent, unasked, bare):
        await asyncio.wait_for(run.started, 60)
    with pytest.raises(UnavailableError, match="did not say so"):
        await a.processes.save(_request(silent, within=0.3))
    with pytest.raises(RefusedError, match="save_signal nor save_file"):
        await a.processes.save(_request(unasked))
    with pytest.raises(RefusedError, match="keeps no checkpoints"):
        await a.processes.save(_request(bare))
    await _stop(a, bare)
    with pytest.raises(NotFoundError, match="does not run"):
        await a.processes.save(_request(bare))


async def test_a_line_that_nobody_understands_is_told(nodes: Nodes) -> None:
    a = nodes.node("a")
    run = _start(a, f'echo "done, 5" >> "$LONGSHORE_SAVED"; {IDLE}')
    await eventually(lambda: 'not like "saved, step 12"' in run.progress().checkpoint_error)


async def test_what_is_shared_by_all_nodes_is_left_alone(nodes: Nodes) -> None:
    a = nodes.node("a")
    shared = write_tree(nodes.folder / "shared", {"other-job": b"x"})
    contract = CONTRACT | {"folder": str(shared), "store": False}
    run = _start(a, f"{COUNT} step=2; save; {IDLE}", contract=contract)
    await eventually(lambda: (found := run.progress().checkpoint) and found.step == 2)
    report = await _stopped(a, run)
    assert report.checkpoint
    assert not report.checkpoint.published
    assert tree_of(shared) == {"other-job": b"x", "step": b"2\n"}
    assert a.checkpoints.jobs() == ()


async def test_jobs_in_one_working_folder_have_checkpoints_of_their_own(nodes: Nodes) -> None:
    a = nodes.node("a")
    workdir = str(write_tree(nodes.folder / "project", {}))
    for job in ("job-a", "job-b"):
        await _stopped(
            a, _start(a, f"{COUNT} trap 'save; exit' TERM; {IDLE}", job=job, workdir=workdir)
        )
    files = {path for path in tree_of(Path(workdir)) if not path.startswith("c/.")}
    assert files == {"c/job-a/step", "c/job-b/step"}


async def test_a_gang_goes_on_from_the_step_that_all_ranks_saved(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    command = f"{COUNT} step=1; save; read -r _ < ../go; step=2; save; {IDLE}"
    ranks = [_start(node, command, fifo=True, rank=rank) for rank, node in enumerate((a, b))]
    for run in ranks:
        await _published(run, 1)
    os.close(os.open(_work(a) / "go", os.O_WRONLY))  # rank 0 alone gets further
    await _published(ranks[0], 2)
    for node, run in zip((a, b), ranks, strict=True):
        await _stop(node, run)
    again = [_start(node, COUNT + IDLE, attempt=2, rank=rank) for rank, node in enumerate((b, a))]
    for node, run in zip((b, a), again, strict=True):
        assert "begins at 1, resume 1, told 1" in await _output(node, run)


async def test_a_gang_of_which_nothing_whole_is_stored_begins_anew_on_all_ranks(
    nodes: Nodes,
) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    saves = _start(a, f"{COUNT} step=1; save; {IDLE}", rank=0)
    other = _start(b, f"{COUNT} {IDLE}", rank=1)
    await _published(saves, 1)
    for node, run in ((a, saves), (b, other)):
        await _stop(node, run)
    again = [_start(node, COUNT + IDLE, attempt=2, rank=rank) for rank, node in enumerate((a, b))]
    for node, run in zip((a, b), again, strict=True):
        assert "begins at 0, resume no, told nothing" in await _output(node, run)
    keeper = again[0].keeper
    assert keeper
    assert "all of them begin anew" in keeper.error
    (aside,) = _work(a).glob(".c.unfinished-*")
    assert str(aside) in keeper.error
    assert tree_of(aside) == {"step": b"1\n"}


async def test_one_process_gets_the_files_of_all_ranks_of_the_gang_that_it_was(
    nodes: Nodes,
) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    ranks = [
        _start(node, f"{COUNT} echo mine > part-{rank}; step=1; save; {IDLE}", rank=rank)
        for rank, node in enumerate((a, b))
    ]
    for node, run in zip((a, b), ranks, strict=True):
        await _published(run, 1)
        await _stop(node, run)
    again = _start(a, f"{COUNT} echo part-*; {IDLE}", attempt=2)
    assert "part-0 part-1" in await _output(a, again, "part-")


def _start(
    node: LocalNode,
    command: str,
    *,
    job: str = "job-a",
    attempt: int = 1,
    contract: Mapping[str, object] = CONTRACT,
    fifo: bool = False,
    rank: int | None = None,
    **spec: object,
) -> Run:
    """Start a job with a contract; with `fifo` it can wait for its `../go`."""
    if fifo:
        _work(node, job).mkdir(parents=True, exist_ok=True)
        os.mkfifo(_work(node, job) / "go")
    request = node.request(command, job=job, attempt=attempt, checkpoint=contract, **spec)
    if rank is not None:
        ranks = tuple(
            Rank(rank=number, node_id=f"box-{number}", epoch=1, gpu_indices=(0,))
            for number in range(2)
        )
        placement = request.placement.model_copy(update={"rank": rank, "ranks": ranks})
        request = request.model_copy(update={"placement": placement})
    return node.processes.start(request)


def _damage(nodes: Nodes) -> None:
    """Damage all that is stored of the job."""
    for file in (nodes.folder / "store/job-a/files").glob("*/*"):
        file.write_bytes(b"?")


def _stderr(run: Run) -> str:
    return (run.folder / "stderr").read_text()


@contextlib.contextmanager
def _away(store: Path) -> Iterator[None]:
    """Put a file where the store was, meanwhile."""
    kept = store.rename(store.with_name("kept"))
    store.write_text("no folder")
    yield
    store.unlink()
    kept.rename(store)


def _request(run: Run, within: float = 60) -> SaveRequest:
    return SaveRequest(key=run.record.key, within=timedelta(seconds=within))


async def _output(node: LocalNode, run: Run, word: str = "begins at") -> str:
    """Return what a job wrote, once that has the word."""
    await eventually(lambda: word in node.output(run.record.key) or run.done.done())
    return node.output(run.record.key)


async def _published(run: Run, step: int) -> CheckpointInfo:
    def there() -> CheckpointInfo | None:
        found = run.progress().checkpoint
        return found if found and found.published and found.step == step else None

    found = await eventually(there)
    assert found
    return found


async def _stopped(node: LocalNode, run: Run, grace: float = 30) -> ProcessReport:
    await _output(node, run, "ready")
    return await _stop(node, run, grace)


async def _stop(node: LocalNode, run: Run, grace: float = 30) -> ProcessReport:
    began = boot_clock()
    await node.processes.stop(
        StopProcessRequest(key=run.record.key, grace=timedelta(seconds=grace), reason="test")
    )
    assert boot_clock() - began < 60
    return run.done.result()


def _work(node: LocalNode, job: str = "job-a") -> Path:
    return node.folder / "jobs" / job / "work"
