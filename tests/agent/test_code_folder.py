"""What is unpacked into the folder of a job, and what no job can do to anything else by it."""

import os
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.code_folder import (
    INDEX,
    MissingObjectError,
    modified_at,
    remove_unpacked,
    unpack,
)
from longshore.activities.storage import GivenUp
from longshore.models.errors import DamagedError
from longshore.models.snapshot import Snapshot
from tests.support.checkpoints import tree_of
from tests.support.snapshots import store_snapshot

TREE = {
    "train.py": "print(1)\n",
    "src/a/b.py": "b = 1\n",
    "src/empty": "",
    "run.sh": "#!/bin/sh\n",
}


class Place:
    """A store, a cache, and the folder of one job."""

    def __init__(self, folder: Path) -> None:
        self.store = ArtifactStore((folder / "store").as_uri())
        self.cache = ArtifactCache(folder / "cache", self.store)
        self.job = folder / "jobs" / "job-a"
        self.work = self.job / "work"

    def unpack(self, snapshot: Snapshot, job: Path | None = None) -> int:
        never = threading.Event()
        held = self.cache.hold("default", snapshot.digest, never)
        try:
            path_of = partial(self.cache.path_of, "default")
            return unpack(held.snapshot, path_of, job or self.job, never)
        finally:
            held.release()

    def age(self) -> None:
        """Have the index be written well after the files, as if they were many."""
        index = self.job / INDEX
        later = index.stat().st_mtime_ns + 10**9
        os.utime(index, ns=(later, later))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("chunk", [0, 3])
def test_files_links_and_folders_are_as_in_the_snapshot(place: Place, chunk: int):
    snapshot = store_snapshot(
        place.store, TREE, executable=("run.sh",), links={"src/l": "a/b.py", "up": "src/../src"},
        folders=("data/in",), chunk=chunk,
    )  # fmt: skip
    assert place.unpack(snapshot) == 6
    assert tree_of(place.work) == {path: text.encode() for path, text in TREE.items()} | {
        "src/l": b"b = 1\n"
    }
    assert (place.work / "up").readlink() == Path("src/../src")
    assert (place.work / "data/in").is_dir()
    modes = {path: stat.S_IMODE((place.work / path).stat().st_mode) for path in TREE}
    assert modes == dict.fromkeys(TREE, 0o644) | {"run.sh": 0o755}


def test_large_files_are_copies(place: Place):
    large = os.urandom(3 << 20)
    snapshot = store_snapshot(place.store, {"weights": large, "z": "z"}, chunk=2 << 20)
    place.unpack(snapshot)
    assert (place.work / "weights").read_bytes() == large
    (place.work / "weights").write_bytes(b"mine")
    place.unpack(snapshot, place.job.with_name("job-b"))
    assert (place.job.with_name("job-b") / "work/weights").read_bytes() == large


def test_a_repeat_puts_back_what_was_changed_and_leaves_the_rest(place: Place):
    snapshot = store_snapshot(place.store, TREE, links={"l": "src"})
    place.unpack(snapshot)
    place.age()
    (place.work / "made").write_text("output")
    before = (place.work / "src/a/b.py").stat().st_ctime_ns
    assert place.unpack(snapshot) == 0
    (place.work / "train.py").write_text("print(2)\n")  # of the same size
    at = modified_at(snapshot.files[-1].sha256)
    os.utime(place.work / "train.py", (at, at))  # and of the same time
    (place.work / "run.sh").unlink()
    (place.work / "l").unlink()
    (place.work / "l").symlink_to("/etc")
    assert place.unpack(snapshot) == 3
    assert tree_of(place.work) == {path: text.encode() for path, text in TREE.items()} | {
        "made": b"output"
    }
    assert (place.work / "l").readlink() == Path("src")
    assert (place.work / "src/a/b.py").stat().st_ctime_ns == before


def test_nothing_is_written_through_a_link_that_a_job_left(place: Place, tmp_path: Path):
    outside = tmp_path / "outside"
    (outside / "a").mkdir(parents=True)
    (outside / "a/b.py").write_text("theirs")
    (outside / "train.py").write_text("theirs")
    snapshot = store_snapshot(place.store, TREE)
    place.unpack(snapshot)
    place.age()
    (place.work / "src").rename(place.work / "moved")
    (place.work / "src").symlink_to(outside)
    (place.work / "train.py").unlink()
    (place.work / "train.py").symlink_to(outside / "train.py")
    (place.work / "run.sh").unlink()
    (place.work / "run.sh").mkdir()
    (place.work / "run.sh/x").write_text("in the way")
    place.unpack(snapshot)
    assert tree_of(outside) == {"a/b.py": b"theirs", "train.py": b"theirs"}
    moved = {"moved/a/b.py": b"b = 1\n", "moved/empty": b""}
    assert tree_of(place.work) == {p: text.encode() for p, text in TREE.items()} | moved
    place.work.rename(tmp_path / "stolen")
    place.work.symlink_to(outside)
    place.unpack(snapshot)
    assert tree_of(outside) == {"a/b.py": b"theirs", "train.py": b"theirs"}
    assert not place.work.is_symlink()


@pytest.mark.usefixtures("nests_deep")
def test_folders_in_the_way_that_are_nested_deeper_than_python_walks_go(place: Place):
    snapshot = store_snapshot(place.store, TREE)
    place.unpack(snapshot)
    (place.work / "run.sh").unlink()
    (place.work / "run.sh").mkdir()
    nested = "import os\nfor _ in range(1200):\n os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", nested], cwd=place.work / "run.sh", check=True)
    place.unpack(snapshot)
    assert tree_of(place.work) == {path: text.encode() for path, text in TREE.items()}


def test_another_name_that_a_job_gave_a_file_keeps_what_the_job_wrote(place: Place):
    snapshot = store_snapshot(place.store, TREE)
    place.unpack(snapshot)
    os.link(place.work / "train.py", place.work / "kept")
    (place.work / "kept").write_text("mine")
    place.unpack(snapshot)
    assert (place.work / "train.py").read_text() == TREE["train.py"]
    assert (place.work / "kept").read_text() == "mine"


def test_what_was_compiled_counts_for_its_content_alone(place: Place):
    one = store_snapshot(place.store, {"m.py": "x = 1\n"})
    two = store_snapshot(place.store, {"m.py": "x = 2\n"})
    times = set()
    for snapshot in (one, two):
        place.unpack(snapshot)
        times.add(int((place.work / "m.py").stat().st_mtime))
    assert len(times) == 2


@pytest.mark.parametrize(
    ("tree", "links", "why"),
    [
        ({}, {"l": "/etc/passwd"}, "out of the folder"),
        ({}, {"a/l": "../../x"}, "out of the folder"),
        ({}, {"deep/er/l": "../..", "out": "deep/er/l/../x"}, "out of the folder"),
        ({"l/x": "1"}, {"l": "y"}, "lies below l"),
        ({"a": "1", "a/b": "2"}, {}, "lies below a"),
        ({"a": "1"}, {"a": "b"}, "is there twice"),
        ({"./a": "1"}, {}, "not written plainly"),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(
    place: Place, tree: dict[str, str], links: dict[str, str], why: str
):
    snapshot = store_snapshot(place.store, tree, links=links)
    with pytest.raises(DamagedError, match=why):
        place.unpack(snapshot)
    assert not place.work.exists()


def test_an_object_that_has_gone_or_is_short_is_named(place: Place):
    snapshot = store_snapshot(place.store, TREE)
    never = threading.Event()
    place.cache.hold("default", snapshot.digest, never).release()
    (name,) = snapshot.objects
    path = place.cache.path_of("default", name)
    path.chmod(0o600)
    path.write_bytes(b"short")
    path_of = partial(place.cache.path_of, "default")
    with pytest.raises(MissingObjectError, match=name):
        unpack(snapshot, path_of, place.job, never)
    place.cache.drop("default", name)
    with pytest.raises(MissingObjectError, match=name):
        unpack(snapshot, path_of, place.job, never)
    place.unpack(snapshot)
    assert tree_of(place.work) == {p: text.encode() for p, text in TREE.items()}


def test_it_ends_when_nobody_wants_it(place: Place):
    snapshot = store_snapshot(place.store, TREE)
    over = threading.Event()
    place.cache.hold("default", snapshot.digest, over).release()
    over.set()
    with pytest.raises(GivenUp):
        unpack(snapshot, partial(place.cache.path_of, "default"), place.job, over)


def test_of_a_job_that_keeps_its_folder_the_code_goes_and_what_it_made_stays(place: Place):
    snapshot = store_snapshot(place.store, TREE, folders=("none",))
    place.unpack(snapshot)
    place.age()
    (place.work / "src/a/made").write_text("1")
    (place.work / "run.sh").write_text("changed")
    remove_unpacked(place.job)
    assert tree_of(place.job) == {"work/src/a/made": b"1", "work/run.sh": b"changed"}
