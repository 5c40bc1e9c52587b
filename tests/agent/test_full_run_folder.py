"""Jobs of a node whose disk is full, or gets so before they start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.caches import Caches
from longshore.activities.node.journal import batch_report
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.scheduling.node_caches import CacheLimits
from tests.agent.conftest import MakeBox
from tests.faults.chaos.machines import fill, small_disk
from tests.support.served import serving
from tests.support.snapshots import code_of, store_snapshot
from tests.support.waiting import eventually

DISK_MB = 24
NO_MOUNT = "this account may mount no small disk: as root it can"
FULL = (
    "it could not be started: the work folder of its agent cannot be written: No space left on "
    "device"
)


async def test_a_job_in_an_image_says_that_the_disk_is_full(make_box: MakeBox, tmp_path: Path):
    """What it is started with has no room. Nothing of it comes to the container runtime."""
    with small_disk(tmp_path / "node", 8) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        box = make_box(tmp_path / "node", runtime="podman", image="localhost/none:1")
        run = box.start("true")
        fill(tmp_path / "node" / "filler")
        ended = await run.done
    assert (ended.failure, ended.message) == (FailureClass.NODE, FULL)


async def test_code_that_does_not_fit_is_not_half_there(make_box: MakeBox, tmp_path: Path):
    store = ArtifactStore((tmp_path / "artifacts").as_uri())
    large = store_snapshot(store, {"big": os.urandom(20_000_000)}, chunk=8_000_000)
    small = store_snapshot(store, {"main.py": "print('fits')"})
    with small_disk(tmp_path / "node", DISK_MB) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        cache = ArtifactCache(tmp_path / "node/cache", store)
        box = make_box(tmp_path / "node", artifacts=cache)
        ended = await box.report("true", code=code_of(large))
        assert (ended.failure, ended.message) == (FailureClass.NODE, FULL)
        assert not list((tmp_path / "node/cache").rglob("*.part"))
        for name in large.objects:
            path = cache.path_of("default", name)
            assert not path.exists() or path.read_bytes() == store.get("default", name)
        # What came whole goes where the disk is too full, and then another's code fits.
        Caches(tmp_path / "node/cache", cache, CacheLimits()).evict()
        again = box.start("python3 main.py", code=code_of(small))
        assert (await again.done).failure is None
        assert box.output(again.record.key) == "fits\n"


async def test_an_environment_that_does_not_fit_is_the_trouble_of_its_node(
    make_box: MakeBox, tmp_path: Path
):
    store = ArtifactStore((tmp_path / "artifacts").as_uri())
    script = f"[ -e {tmp_path}/room ] || head -c 30000000 /dev/zero > $VIRTUAL_ENV/big"
    snapshot = store_snapshot(store, {"setup.sh": script})
    with small_disk(tmp_path / "node", DISK_MB) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        box = make_box(tmp_path / "node", artifacts=ArtifactCache(tmp_path / "node/cache", store))
        ended = await box.report("true", code=code_of(snapshot), environment="setup.sh")
        assert ended.failure is FailureClass.NODE, ended.message
        assert "the disk of the node is full" in ended.message
        # It is no failure of the environment: where there is room it is built at once.
        (tmp_path / "room").touch()
        again = await box.report("true", code=code_of(snapshot), environment="setup.sh")
        assert again.failure is None, again.message
        assert len(list((tmp_path / "node/cache/environments").glob("*.json"))) == 1


async def test_data_that_does_not_fit_is_the_trouble_of_its_node(
    make_box: MakeBox, tmp_path: Path
):
    source = tmp_path / "source"
    source.mkdir()
    names = [f"{number:02}" for number in range(30)]
    for name in names:
        (source / name).write_bytes(os.urandom(1_000_000))
    with small_disk(tmp_path / "node", DISK_MB) as mounted, serving(source) as served:
        if not mounted:
            pytest.skip(NO_MOUNT)
        box = make_box(tmp_path / "node")
        ended = await box.report("true", data={"set": {"from": source.as_uri()}})
        assert (ended.failure, ended.message) == (FailureClass.NODE, FULL)
        Caches(tmp_path / "node/cache", a_cache(tmp_path), CacheLimits()).evict()
        # One that has started already is told.
        served.held_back = set(names[1:])
        data = {"set": {"from": served.url, "start_at": "1%"}}
        run = box.start("echo up; longshore-wait $LONGSHORE_DATA_SET 2>&1", data=data)
        await eventually(lambda: "up" in box.output(run.record.key))
        served.open.set()
        await run.done
        said = box.output(run.record.key)
        assert "cannot be had: the disk of the node refuses: [Errno 28]" in said
        assert not list((tmp_path / "node/cache/data").glob("*/*.set/parts/*"))
        for path in (tmp_path / "node/cache/data/default").glob("*/[0-9][0-9]"):
            assert path.read_bytes() == (source / path.name).read_bytes()


async def test_an_agent_comes_back_on_a_full_disk_and_knows_what_had_ended(
    make_box: MakeBox, tmp_path: Path
):
    with small_disk(tmp_path / "node", 8) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        box = make_box(tmp_path / "node")
        run = box.start("echo up; while [ ! -e $LONGSHORE_PROGRESS_FILE.end ]; do :; done")
        await eventually(lambda: "up" in box.output(run.record.key))
        (run.folder / "public" / "progress.end").touch()
        fill(tmp_path / "node" / "filler")
        assert (await run.done).failure is None
        back = box.life()
        await back.recover()
        found = back.find(run.record.key)
        assert isinstance(found, ProcessReport)


async def test_an_agent_comes_back_and_knows_of_a_job_that_has_filled_the_disk_and_ended(
    make_box: MakeBox, tmp_path: Path
):
    """Else it would run again: its supervisor alone can tell the next agent."""
    with small_disk(tmp_path / "node", 8) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        box = make_box(tmp_path / "node")
        run = box.start(f"head -c 64M /dev/zero > {tmp_path}/node/filler; true")
        assert (await run.done).failure is None
        for _ in range(2):  # that life cannot store it either
            back = box.life()
            await back.recover()
            found = back.find(run.record.key)
            assert isinstance(found, ProcessReport)
            assert (found.failure, found.exit_code) == (None, 0)


RUNS_ELEMENTS = """
import sys

from longshore.activities.node import element_runner

folder, command = sys.argv[1:]
runner = element_runner.Runner(folder, {
    "argv": ["sh", "-c", command], "env": {}, "grace": 5,
    "elements": [{"index": index, "attempt": 1, "env": {}} for index in range(40)],
})
runner.run()
"""
"""Runs elements in a process of its own: it kills whatever is below it."""


def test_elements_that_end_after_one_has_filled_the_disk_are_told(tmp_path: Path):
    """Their start and their end take more than a block of the disk."""
    with small_disk(tmp_path / "node", 1) as mounted:
        if not mounted:
            pytest.skip(NO_MOUNT)
        fills = f"head -c 4M /dev/zero >> {tmp_path}/node/filler; true"
        argv = [sys.executable, "-c", RUNS_ELEMENTS, str(tmp_path / "node"), fills]
        subprocess.run(argv, check=True, timeout=60)
        told = batch_report(tmp_path / "node", indirect=True)
    assert [(each.index, each.exit_code) for each in told.results] == [(n, 0) for n in range(40)]


def a_cache(folder: Path) -> ArtifactCache:
    return ArtifactCache(folder / "node/cache", ArtifactStore((folder / "artifacts").as_uri()))
