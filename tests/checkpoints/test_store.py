"""The checkpoint store: what is published comes back byte for byte, or is known to be damaged."""

import itertools
import random
import shutil
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.node.checkpoint_files import moment_of, put_back
from longshore.activities.storage import GivenUp, connect, make_folder
from longshore.models.errors import DamagedError, StoreError
from tests.support.checkpoints import (
    JOB,
    Tree,
    a_draft,
    publish,
    restore,
    tree_of,
    write_tree,
)

NAMES = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=12
).filter(
    lambda name: name not in (".", "..") and not name.endswith((".tmp", ".draft", ".partial"))
)
NUMBERS = itertools.count()
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
"""Folders are numbered by the tests themselves, and a loaded disk is slow."""


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Files in folders that are two deep, whose names no file has."""
    folders = [f"d{name}/" for name in draw(st.lists(NAMES, max_size=2))]
    places = st.builds("{}f{}".format, st.sampled_from(["", *folders]), NAMES)
    return draw(st.dictionaries(places, st.binary(max_size=200), min_size=1, max_size=6))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore((tmp_path / "store").as_uri())


@given(tree=trees())
@settings(deadline=None, max_examples=40, suppress_health_check=SLOW)
@pytest.mark.parametrize("url", ["file", "memory"])
def test_what_is_published_comes_back(tree: Tree, tmp_path: Path, url: str) -> None:
    here = tmp_path / str(next(NUMBERS))
    place = (here / "store").as_uri() if url == "file" else f"memory://{uuid.uuid4().hex}"
    store = CheckpointStore(place)
    manifest = publish(store, write_tree(here / "saved", tree), step=7)
    assert manifest.bytes == sum(map(len, tree.values()))
    write_tree(here / "back", {"older": b"gone"})
    restored = restore(store, here / "back")
    assert restored
    assert restored.checkpoint.step == 7
    assert tree_of(here / "back") == tree


@given(tree=trees(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=60, suppress_health_check=SLOW)
def test_any_changed_byte_is_found_and_the_one_before_is_used(
    tree: Tree, seed: int, tmp_path: Path
) -> None:
    here = tmp_path / str(next(NUMBERS))
    store = CheckpointStore((here / "store").as_uri())
    publish(store, write_tree(here / "old", {"state": b"old"}), 1, 1)
    before = set((here / "store").rglob("*"))
    publish(store, write_tree(here / "new", tree), 1, 2)
    chance = random.Random(seed)
    stored = sorted(p for p in set((here / "store").rglob("*")) - before if p.is_file())
    _damage(chance.choice(stored), chance)
    restored = restore(store, here / "back")
    assert restored
    assert tree_of(here / "back") == {"state": b"old"}
    assert len(restored.damaged) == 1


def test_a_file_that_has_gone_is_damage_too(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "saved", {"a": b"1", "b/c": b"2"})
    manifest = publish(store, folder)
    next((tmp_path / "store" / JOB / "files" / manifest.prefix).iterdir()).unlink()
    kept = write_tree(tmp_path / "back", {"mine": b"still"})
    with pytest.raises(DamagedError, match="has gone"):
        restore(store, kept)
    assert tree_of(kept) == {"mine": b"still"}
    assert not [path for path in tmp_path.iterdir() if "restoring" in path.name]


def test_links_modes_and_times_come_back(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "saved", {"step-2/weights": b"w"})
    (folder / "latest").symlink_to("step-2")
    (folder / "step-2/weights").chmod(0o750)
    publish(store, folder)
    restore(store, tmp_path / "back")
    back = tmp_path / "back"
    assert (back / "latest").readlink() == Path("step-2")
    before, after = (folder / "step-2/weights").stat(), (back / "step-2/weights").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_moment_stays_as_it_was_while_the_job_replaces_its_files(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "saved", {"model": b"one", "model.tmp": b"half"})
    moment = moment_of(folder, tmp_path)
    write_tree(folder, {"next": b"two"})
    (folder / "next").replace(folder / "model")
    assert tree_of(moment) == {"model": b"one"}
    assert tree_of(folder) == {"model": b"two", "model.tmp": b"half"}


def test_a_file_that_changes_while_it_is_read_is_not_published(
    store: CheckpointStore, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "saved", {"model": b"one"})

    def overwritten(_: object) -> bool:
        (folder / "model").write_bytes(b"longer")
        return True

    with pytest.raises(DamagedError, match="changed while it was read"):
        store.publish(folder, a_draft(), threading.Event(), overwritten)
    assert store.names(JOB) == ()


def test_a_gang_goes_on_from_what_all_ranks_have_saved(
    store: CheckpointStore, tmp_path: Path
) -> None:
    for rank in (0, 1):
        tree = {"state": f"rank {rank}".encode(), f"shard-{rank}": b"10"}
        publish(store, write_tree(tmp_path / f"{rank}", tree), 1, 1, step=10, rank=rank, ranks=2)
    ahead = write_tree(tmp_path / "ahead", {"state": b"rank 0, alone"})
    publish(store, ahead, 1, 2, step=20, rank=0, ranks=2)
    for rank in (0, 1, 2):
        restored = restore(store, tmp_path / f"back-{rank}", rank)
        assert restored
        assert restored.checkpoint.step == 10
        own = f"rank {rank if rank < 2 else 0}".encode()
        expected = {"state": own, "shard-0": b"10", "shard-1": b"10"}
        assert tree_of(tmp_path / f"back-{rank}") == expected


def test_ranks_that_count_differently_agree_by_step(
    store: CheckpointStore, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    publish(store, folder, 1, 3, step=30, rank=0, ranks=2)
    publish(store, folder, 1, 2, step=30, rank=1, ranks=2)
    publish(store, folder, 1, 2, step=20, rank=0, ranks=2)
    found = store.newest(JOB)
    assert found
    assert found.step == 30


def test_the_newest_stay(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    for attempt, number in ((1, 1), (1, 2), (2, 1), (2, 2)):
        last = publish(store, folder, attempt, number)
        store.prune(JOB, last.name, keep=2)
    assert sorted(name.order for name in store.names(JOB)) == [(2, 1), (2, 2)]
    assert len(list((tmp_path / "store" / JOB / "files").iterdir())) == 2


def test_what_was_begun_and_not_finished_is_removed(
    store: CheckpointStore, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    first = publish(store, folder, 1, 1)
    files = tmp_path / "store" / JOB / "files"
    shutil.copytree(files / first.prefix, files / f"{a_draft(1, 2).name.stem}-01234567")
    shutil.copytree(files / first.prefix, files / f"{a_draft(1, 2, rank=1).name.stem}-01234567")
    last = publish(store, folder, 1, 3)
    store.prune(JOB, last.name, keep=2)
    left = {path.name.rpartition("-")[0] for path in files.iterdir()}
    assert left == {first.name.stem, last.name.stem, a_draft(1, 2, rank=1).name.stem}


def test_ranks_that_the_job_no_longer_has_are_removed_by_rank_0(
    store: CheckpointStore, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    for rank in (0, 1):
        publish(store, folder, 1, 1, rank=rank, ranks=2)
    last = publish(store, folder, 2, 1)
    store.prune(JOB, last.name, keep=1)
    assert [name.order for name in store.names(JOB)] == [(2, 1)]


def test_all_of_a_job_can_be_deleted_twice(store: CheckpointStore, tmp_path: Path) -> None:
    publish(store, write_tree(tmp_path / "saved", {"state": b"x"}))
    assert store.jobs() == (JOB,)
    store.delete(JOB)
    store.delete(JOB)
    assert (store.jobs(), store.names(JOB)) == ((), ())


@pytest.mark.parametrize("url", ["nowhere://x/y", "file"])
def test_a_store_that_cannot_be_used_is_one_kind_of_error(tmp_path: Path, url: str) -> None:
    (tmp_path / "taken").write_text("a file")
    store = CheckpointStore(url if "://" in url else (tmp_path / "taken" / "in").as_uri())
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    for call in (lambda: publish(store, folder), lambda: store.names(JOB), store.jobs):
        with pytest.raises(StoreError, match="cannot be"):
            call()


def test_nobody_waits_for_what_was_given_up(store: CheckpointStore, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "saved", {"state": b"x"})
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(GivenUp):
        store.publish(folder, a_draft(), given_up)
    publish(store, folder)
    kept = write_tree(tmp_path / "kept", {"mine": b"still"})
    with pytest.raises(GivenUp):
        store.restore(JOB, 0, kept, given_up)
    assert tree_of(kept) == {"mine": b"still"}
    assert len(list((tmp_path / "store" / JOB / "files").iterdir())) == 1


def test_an_interrupted_replacement_is_undone(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write_tree(tmp_path / ".saved.old-1", {"state": b"old"})
    write_tree(tmp_path / ".saved.restoring-1", {"state": b"half"})
    write_tree(tmp_path / ".savedX.old-1", {"state": b"another's"})
    put_back(folder)
    assert tree_of(tmp_path) == {"saved/state": b"old", ".savedX.old-1/state": b"another's"}


def _damage(file: Path, chance: random.Random) -> None:
    """Change a byte; of an empty file, the length."""
    data = bytearray(file.read_bytes())
    if not data:
        file.write_bytes(b"x")
        return
    data[chance.randrange(len(data))] ^= chance.randint(1, 255)
    file.write_bytes(bytes(data))


def test_a_url_leads_to_the_folder_that_it_was_made_of(tmp_path: Path) -> None:
    folder = tmp_path / "a blank, 100% of ü"
    fs, root = connect(folder.as_uri())
    make_folder(fs, root)
    assert list(tmp_path.iterdir()) == [folder]
