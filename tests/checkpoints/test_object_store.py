"""The stores of checkpoints and logs on an object store (`tests/support/object_store.py`)."""

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.logstore import LogStore
from longshore.activities.storage import GivenUp, connect
from longshore.models.errors import DamagedError, StoreError
from tests.support.checkpoints import JOB, a_draft, publish, restore, tree_of, write_tree
from tests.support.object_store import object_store


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Starts an S3 server of moto, unless TEST_OBJECT_STORE names an object store; 2 s."""
    with object_store() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """A place of the test's own; 0 s."""
    return f"{server}/{uuid.uuid4().hex}"


def test_what_is_published_comes_back_and_the_newest_stay(url: str, tmp_path: Path) -> None:
    store = CheckpointStore(url)
    assert (store.jobs(), store.newest(JOB)) == ((), None)
    # More than s3fs sends in one piece, so that it comes in parts.
    tree = {"a": b"1", "d/b": b"", "big": os.urandom(60_000_000)}
    publish(store, write_tree(tmp_path / "saved", tree))
    restored = restore(store, tmp_path / "back")
    assert restored
    assert tree_of(tmp_path / "back") == tree
    for number in (2, 3, 4):
        publish(store, write_tree(tmp_path / str(number), {"a": b"%d" % number}), 1, number)
    assert store.prune(JOB, store.names(JOB)[-1], keep=2) == 2
    fs, root = connect(url)
    assert len(fs.find(root)) == 4  # two manifests with a file each
    store.delete(JOB)
    assert (store.jobs(), fs.find(root)) == ((), [])


def test_what_others_store_is_seen_at_once(url: str, tmp_path: Path) -> None:
    """No listing is kept from before."""
    fs, _ = connect(url)
    store = CheckpointStore(url)
    assert store.names(JOB) == ()
    manifest = publish(store, write_tree(tmp_path / "saved", {"a": b"1"}))
    assert [name.number for name in store.names(JOB)] == [1]
    fs.pipe_file(
        f"{url.partition('://')[2]}/{JOB}/files/{manifest.prefix}/000000", b"2"
    )  # as long as before
    with pytest.raises(DamagedError, match="is damaged"):
        restore(store, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_upload_that_is_given_up_leaves_nothing_that_counts(url: str, tmp_path: Path) -> None:
    store, given_up = CheckpointStore(url), threading.Event()
    given_up.set()
    folder = write_tree(tmp_path / "saved", {"a": b"1"})
    with pytest.raises(GivenUp):
        store.publish(folder, a_draft(), given_up)
    assert store.names(JOB) == ()


def test_logs_arrive_part_by_part(url: str) -> None:
    store = LogStore(url)
    assert store.read(JOB).attempt is None
    store.write(JOB, 1, "box", "stdout", 0, b"one ")
    assert store.read(JOB).data == b"one "
    store.write(JOB, 1, "box", "stdout", 4, b"two")
    store.write_end(JOB, 1, "box")
    piece = store.read(JOB)
    assert (piece.data, piece.ended, store.stored(JOB, 1, "box", "stdout")) == (
        b"one two",
        True,
        7,
    )


def test_no_bucket_is_made_of_a_mistyped_name(server: str, tmp_path: Path) -> None:
    scheme = server.partition("://")[0]
    store = CheckpointStore(f"{scheme}://longshore-{uuid.uuid4().hex}/checkpoints")
    with pytest.raises(StoreError, match="cannot be written"):
        publish(store, write_tree(tmp_path / "saved", {"a": b"1"}))
