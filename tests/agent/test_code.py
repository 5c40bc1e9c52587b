"""A job finds its code on its node: brought once, its own, the same in every attempt."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node import code
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.caches import Caches
from longshore.activities.storage import GivenUp
from longshore.models.errors import StoreError
from longshore.models.job import JobSpec
from longshore.models.retry import FailureClass
from longshore.models.snapshot import Snapshot
from longshore.scheduling.node_caches import CacheLimits, Disk
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.snapshots import code_of, store_snapshot
from tests.support.waiting import eventually

SCRIPT = {"train.py": "import helper\nprint('ran', helper.value)\n", "helper.py": "value = 7\n"}


@pytest.fixture
def store(box: LocalNode) -> ArtifactStore:
    """The store of the box; 0 s."""
    return ArtifactStore((box.folder / "artifacts").as_uri())


@pytest.fixture
def snapshot(store: ArtifactStore) -> Snapshot:
    return store_snapshot(store, SCRIPT)


class Counting(ArtifactStore):
    """A store that counts what is fetched, and can be away or slow."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fetched: list[str] = []
        self.away = False
        self.hangs: threading.Event | None = None

    def get(self, tenant: str, name: str) -> bytes:
        if self.away:
            raise StoreError("the artifact store is away")
        self.fetched.append(name)
        if self.hangs:
            self.hangs.wait(30)
        return super().get(tenant, name)


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    """A store in place of that of a box, let go at the end; 0 s."""
    store = Counting((tmp_path / "artifacts").as_uri())
    yield store
    if store.hangs:
        store.hangs.set()


@pytest.fixture
def counting_box(make_box: MakeBox, counting: Counting, tmp_path: Path) -> LocalNode:
    """A node whose cache fetches from the counting store; 0.02 s."""
    return make_box(tmp_path, artifacts=ArtifactCache(tmp_path / "cache", counting))


async def test_a_script_runs_from_its_snapshot(box: LocalNode, snapshot: Snapshot):
    run = box.start(["python3", "train.py"], code=code_of(snapshot))
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "ran 7\n"


async def test_it_runs_below_its_code_and_is_told_where_that_is(
    box: LocalNode, store: ArtifactStore
):
    brought = store_snapshot(store, {"src/main.sh": "pwd; echo $LONGSHORE_CODE_DIR\n"})
    run = box.start(["sh", "main.sh"], code=code_of(brought), workdir="src", job="job-a")
    assert (await run.done).failure is None
    work = box.folder / "jobs/job-a/work"
    assert box.output(run.record.key) == f"{work}/src\n{work}\n"
    report = await box.report("true", code=code_of(brought), workdir="lib")
    assert report.failure is FailureClass.START
    assert "its code has no folder lib" in report.message


@pytest.mark.parametrize("workdir", ["/data", "~/x", "../x", "a/../.."])
def test_a_working_folder_outside_of_the_code_is_refused(workdir: str):
    with pytest.raises(ValueError, match="has to stay in the code"):
        JobSpec.model_validate(
            {"name": "a", "command": "true", "code": {"folder": "."}, "workdir": workdir}
        )


async def test_a_job_that_changes_its_code_changes_no_other_and_not_its_next_attempt(
    box: LocalNode, snapshot: Snapshot
):
    spoil = "echo 'value = 8' > helper.py; mkdir out; echo mine > out/result; rm train.py"
    await box.report(spoil, job="job-a", code=code_of(snapshot))
    for job, attempt in (("job-b", 1), ("job-a", 2)):
        run = box.start(
            "python3 train.py; cat out/result 2>/dev/null || true", job=job, attempt=attempt,
            code=code_of(snapshot),
        )  # fmt: skip
        await run.done
        made = "mine\n" if attempt == 2 else ""
        assert box.output(run.record.key) == f"ran 7\n{made}"


async def test_a_checkpoint_of_a_job_with_code_is_in_its_own_folder_and_stays(
    box: LocalNode, snapshot: Snapshot
):
    def spec(command: str, attempt: int) -> dict[str, object]:
        return {"command": command, "attempt": attempt, "job": "job-a",
                "code": code_of(snapshot), "checkpoint": {"folder": "c"}}  # fmt: skip

    save = "echo 5 > $LONGSHORE_CHECKPOINT_DIR/step; echo saved, step 5 > $LONGSHORE_SAVED"
    await box.report(**spec(save, 1))  # pyright: ignore[reportArgumentType]
    assert (box.folder / "jobs/job-a/work/c/step").read_text() == "5\n"
    run = box.start(**spec("cat c/step; python3 train.py; echo $LONGSHORE_RESUME", 2))  # pyright: ignore[reportArgumentType]
    await run.done
    assert box.output(run.record.key) == "5\nran 7\n1\n"


async def test_a_checkpoint_that_replaces_the_folder_of_the_code_leaves_the_code_there(
    box: LocalNode, store: ArtifactStore
):
    brought = store_snapshot(store, {"state/base": "base\n", "run.sh": "cat state/*\n"})
    spec = {"code": code_of(brought), "checkpoint": {"folder": "state"}, "job": "job-a"}
    save = "rm state/base; echo 5 > state/step; echo saved > $LONGSHORE_SAVED; exit 3"
    await box.report(save, **spec)
    (box.folder / "jobs/job-a/work/state/step").unlink()
    (box.folder / "jobs/job-a/work/.state.checkpoint.json").unlink()
    run = box.start("sh run.sh", attempt=2, **spec)
    await run.done
    assert box.output(run.record.key) == "base\n5\n"


async def test_many_jobs_at_once_fetch_an_object_once(counting_box: LocalNode, counting: Counting):
    brought = store_snapshot(counting, {"big": os.urandom(4000), **SCRIPT}, chunk=500)
    reports = await asyncio.gather(
        *(counting_box.report("python3 train.py", code=code_of(brought)) for _ in range(6))
    )
    assert [report.failure for report in reports] == [None] * 6
    assert sorted(counting.fetched) == sorted(brought.objects)


async def test_agents_that_share_a_cache_fetch_once(
    counting_box: LocalNode, counting: Counting, make_box: MakeBox, tmp_path: Path
):
    brought = store_snapshot(counting, SCRIPT)
    other = make_box(tmp_path / "b", artifacts=ArtifactCache(tmp_path / "cache", counting))
    await asyncio.gather(
        *(box.report("true", code=code_of(brought)) for box in (counting_box, other) * 2)
    )
    assert len(counting.fetched) == 1


async def test_a_store_that_is_away_is_waited_for(counting_box: LocalNode, counting: Counting):
    brought = store_snapshot(counting, SCRIPT)
    counting.away = True
    run = counting_box.start("python3 train.py", code=code_of(brought))
    await eventually(lambda: "is away" in run.progress().message)
    counting.away = False
    assert (await run.done).failure is None
    assert counting_box.output(run.record.key) == "ran 7\n"


async def test_a_store_that_stays_away_is_the_fault_of_the_node(
    counting_box: LocalNode, counting: Counting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(code, "PATIENCE", 0.0)
    brought = store_snapshot(counting, SCRIPT)
    counting.away = True
    report = await counting_box.report("true", code=code_of(brought))
    assert report.failure is FailureClass.NODE
    assert report.message == "its code cannot be fetched: the artifact store is away"


@pytest.mark.parametrize("damage", ["snapshot", "object", "spoilt"])
async def test_a_snapshot_that_is_not_whole_in_the_store_says_what_to_do(
    box: LocalNode, store: ArtifactStore, snapshot: Snapshot, damage: str
):
    (name,) = snapshot.objects
    if damage == "snapshot":
        store.remove_snapshot("default", snapshot.digest)
    elif damage == "object":
        store.remove("default", name)
    else:
        (box.folder / "artifacts/default/objects" / name[:2] / name).write_bytes(b"x")
    report = await box.report("true", code=code_of(snapshot))
    assert report.failure is FailureClass.START
    assert "its code is not to be had" in report.message
    assert "Submit the job with --anew, which stores it again" in report.message
    assert not list((box.folder / "cache").glob("objects/*/*/*"))


async def test_another_tenant_does_not_get_it(box: LocalNode, snapshot: Snapshot):
    report = await box.report("true", code=code_of(snapshot), tenant="other")
    assert report.failure is FailureClass.START


async def test_a_stop_while_it_is_fetched_works_at_once(
    counting_box: LocalNode, counting: Counting
):
    brought = store_snapshot(counting, SCRIPT)
    counting.hangs = threading.Event()
    run = counting_box.start("true", code=code_of(brought))
    await eventually(lambda: counting.fetched)
    assert "fetching its code: 0 of" in run.progress().message
    began = time.monotonic()
    report = await counting_box.stop(run, 100)
    assert time.monotonic() - began < 50
    assert (report.failure, report.stopped_for) == (None, "test")
    # Another job waits for the same object, and gets it.
    waiting = counting_box.start("python3 train.py", code=code_of(brought))
    counting.hangs.set()
    assert (await waiting.done).failure is None


def test_what_somebody_began_to_fetch_and_was_killed_is_fetched_anew(
    counting: Counting, tmp_path: Path
):
    brought = store_snapshot(counting, SCRIPT)
    cache = ArtifactCache(tmp_path / "cache", counting)
    (name,) = brought.objects
    path = cache.path_of("default", name)
    path.parent.mkdir(parents=True)
    path.with_name(f"{name}.part").write_bytes(b"half" * 100)
    cache.hold("default", brought.digest, threading.Event()).release()
    assert path.read_bytes() == counting.get("default", name)
    assert list(path.parent.iterdir()) == [path]


def test_what_was_left_half_goes_for_good(counting: Counting, tmp_path: Path):
    cache = ArtifactCache(tmp_path / "cache", counting)
    part = tmp_path / "cache/objects/default/ab/x.part"
    part.parent.mkdir(parents=True)
    part.touch()
    cache.tidy(time.time())
    assert part.exists()
    cache.tidy(time.time() + 7200)
    assert not part.exists()


def test_the_least_recently_used_goes_and_never_what_is_in_use(counting: Counting, tmp_path: Path):
    cache = ArtifactCache(tmp_path / "cache", counting)
    never = threading.Event()
    old, used, new = (
        store_snapshot(counting, {"f": os.urandom(8000), "same": "same"}, chunk=8000)
        for _ in range(3)
    )
    for age, snapshot in ((300, old), (200, used), (100, new)):
        cache.hold("default", snapshot.digest, never).release()
        then = time.time() - age
        os.utime(tmp_path / f"cache/snapshots/default/{snapshot.digest}.json", (then, then))
        for name in snapshot.objects:
            os.utime(cache.path_of("default", name), (then, then))
    held = cache.hold("default", old.digest, never)
    caches = Caches(tmp_path / "cache", cache, CacheLimits(keep_free=0))
    full = Disk(total=100_000, free=5000)
    assert caches.evict(Disk(total=100_000, free=50_000)).keys == ()
    done = caches.evict(full)
    gone = {Path(key).name for key in done.keys}
    assert gone == used.objects | new.objects
    assert "95% of the disk are in use" in done.reason
    held.release()
    before = len(counting.fetched)
    cache.hold("default", old.digest, never).release()
    assert len(counting.fetched) == before
    cache.hold("default", new.digest, never).release()
    assert len(counting.fetched) > before


def test_nobody_waits_for_a_lock_that_is_not_wanted_any_more(counting: Counting, tmp_path: Path):
    brought = store_snapshot(counting, SCRIPT)
    counting.hangs = threading.Event()
    cache, over = ArtifactCache(tmp_path / "cache", counting), threading.Event()

    def fetch() -> None:
        with contextlib.suppress(GivenUp):
            cache.hold("default", brought.digest, threading.Event()).release()

    first = threading.Thread(target=fetch)
    first.start()
    over.set()
    with pytest.raises(GivenUp):
        cache.hold("default", brought.digest, over)
    counting.hangs.set()
    first.join()


async def test_code_that_was_named_and_not_stored_says_so(box: LocalNode):
    report = await box.report("true", code={"folder": "."})
    assert report.failure is FailureClass.START
    assert "its code was not stored" in report.message
