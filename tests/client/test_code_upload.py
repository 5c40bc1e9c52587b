"""Folders that become snapshots: what is sent, what is not sent again, what is cut off."""

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore.activities import database as database_module
from longshore.activities.artifacts import rows
from longshore.activities.artifacts.rows import _LOCK, sweep_artifacts
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.database import Database
from longshore.client import code_cache, code_upload
from longshore.client.code_cache import CodeCache
from longshore.client.code_files import FoundFiles, find_files
from longshore.client.code_upload import Uploaded, UploadTo, upload
from longshore.models.errors import DamagedError, LockedError, SpecError, StoreError
from longshore.models.snapshot import Snapshot
from longshore.scheduling import code_packs


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database of the test's own; 0.1 s."""
    database = Database(database_url)
    yield database
    await database.close()


class Place:
    """A folder, and a store that it is uploaded to."""

    def __init__(self, root: Path, database: Database) -> None:
        self.root = root
        self.folder = root / "code"
        self.folder.mkdir()
        self.database = database
        self.store = ArtifactStore((root / "store").as_uri())

    def write(self, files: dict[str, bytes]) -> None:
        for path, content in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    async def upload(
        self,
        *,
        tenant: str = "default",
        store: ArtifactStore | None = None,
        found: FoundFiles | None = None,
        anew: bool = False,
    ) -> Uploaded:
        found = found or find_files(self.folder)
        with CodeCache(self.root / "cache.sqlite") as cache:
            to = UploadTo(self.database, store or self.store, tenant, cache, self.root / "uploads")
            of = replace(found, commit=None, changed=False)
            return await upload(self.folder, of, to, anew=anew)

    def stored(self, uploaded: Uploaded, tenant: str = "default") -> Snapshot:
        return self.store.snapshot(tenant, uploaded.code.snapshot or "")

    def contents(self, uploaded: Uploaded) -> dict[str, bytes]:
        """Return all files of a snapshot as a node would write them."""
        found: dict[str, bytes] = {}
        for file in self.stored(uploaded).files:
            content = b"".join(
                self.store.get("default", part.object)[part.offset :][: part.size]
                for part in file.parts
            )
            assert hashlib.sha256(content).hexdigest() == file.sha256
            found[file.path] = content
        return found

    async def let_leases_pass(self) -> None:
        async with self.database.transaction() as connection:
            for table in ("artifact_objects", "snapshots"):
                await connection.execute(
                    text(f"UPDATE {table} SET leased_until = now() - interval '1 s'")
                )


@pytest.fixture
def place(tmp_path: Path, database: Database) -> Place:
    return Place(tmp_path, database)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs and chunks of a thousandth of their size."""
    monkeypatch.setattr(code_packs, "LARGE", 8_000)
    monkeypatch.setattr(code_packs, "LARGEST_OBJECT", 16_000)
    monkeypatch.setattr(code_packs, "SPARSE", 1_000)


def some_files(number: int = 60, size: int = 1_000) -> dict[str, bytes]:
    return {f"src/{at // 10}/m{at}.py": bytes([at]) * size for at in range(number)}


async def test_a_folder_is_stored_whole_and_a_second_time_nothing_is_sent(place: Place) -> None:
    files = {"train.py": b"print(1)\n", "data/a.txt": b"a" * 1000, "empty": b"", "b.txt": b"b"}
    place.write(files)
    (place.folder / "train.py").chmod(0o755)
    first = await place.upload()
    assert place.contents(first) == files
    assert str(first) == "4 files, 1.0kB: 3 files, 1.0kB sent"
    assert {each.path for each in place.stored(first).files if each.executable} == {"train.py"}
    again = await place.upload()
    assert again.code == first.code
    assert str(again) == "4 files, 1.0kB: nothing sent, all of it is stored"


@pytest.mark.usefixtures("small")
async def test_what_changed_is_sent_and_the_rest_stays_where_it_lies(place: Place) -> None:
    files = some_files() | {"model.bin": os.urandom(50_000)}
    place.write(files)
    first = await place.upload()
    assert first.sent_bytes == 110_000
    files["src/3/m35.py"] = b"changed"
    place.write({"src/3/m35.py": b"changed"})
    second = await place.upload()
    assert (second.sent_files, second.sent_bytes) == (1, 7)
    assert place.contents(second) == files
    assert place.contents(first)["src/3/m35.py"] == bytes([35]) * 1000
    kept = place.stored(first).objects & place.stored(second).objects
    assert len(kept) == len(place.stored(first).objects)


async def test_a_file_that_was_renamed_is_not_sent_again(place: Place) -> None:
    place.write({"a.py": b"same"})
    await place.upload()
    (place.folder / "a.py").rename(place.folder / "b.py")
    moved = await place.upload()
    assert moved.sent_bytes == 0
    assert place.contents(moved) == {"b.py": b"same"}


class Failing(ArtifactStore):
    """A store that goes away after some objects."""

    def __init__(self, url: str, takes: int) -> None:
        super().__init__(url)
        self.takes = takes

    def put(self, tenant: str, name: str, data: bytes) -> None:
        if self.takes == 0:
            raise StoreError("the store has gone")
        self.takes -= 1
        super().put(tenant, name, data)


@pytest.mark.usefixtures("small")
async def test_an_upload_that_is_cut_off_goes_on_where_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_upload, "IN_FLIGHT", 1)
    files = some_files() | {"model.bin": os.urandom(50_000)}
    place.write(files)
    with pytest.raises(StoreError, match="the store has gone"):
        await place.upload(store=Failing(place.store.url, takes=5))
    objects = [path for path in (place.root / "store").rglob("*.*") if path.is_file()]
    there = sum(path.stat().st_size for path in objects)
    assert there > 16_000 * 3
    rest = await place.upload()
    assert rest.sent_bytes == 110_000 - there
    assert place.contents(rest) == files


async def test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_stored(
    place: Place,
) -> None:
    place.write({"a.py": b"one", "b.py": b"two", "c.py": b"three"})
    found = find_files(place.folder)
    place.write({"a.py": b"other", "b.py": b"others"})
    with pytest.raises(SpecError) as error:
        await place.upload(found=found)
    assert [each.partition(" changed while it was read")[0] for each in error.value.problems] == [
        "'a.py'", "'b.py'",
    ]  # fmt: skip
    assert not (place.root / "store").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [9, 50_000], ids=["packed", "in chunks"])
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_change_that_no_time_tells_is_seen_when_it_is_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch, size: int, resumed: bool
) -> None:
    """As of a program that writes through mmap: the file looks as it did."""
    monkeypatch.setattr(code_cache, "TICK", 0)
    monkeypatch.setattr(code_upload, "look_of", lambda stat: str(stat.st_size))
    monkeypatch.setattr(code_upload, "IN_FLIGHT", 1)
    place.write({"data.bin": os.urandom(size)})
    takes = 1 if resumed and size > 9 else 0
    with pytest.raises(StoreError):
        await place.upload(store=Failing(place.store.url, takes=takes))
    changed = os.urandom(size)
    place.write({"data.bin": changed})
    with pytest.raises(SpecError, match=r"data\.bin' changed while it was read"):
        await place.upload()
    assert place.contents(await place.upload()) == {"data.bin": changed}


def test_stores_that_look_alike_are_two_in_the_cache_and_no_secret_is_in_it(place: Place) -> None:
    def key(url: str) -> str:
        with CodeCache(place.root / "cache.sqlite") as cache:
            return UploadTo(place.database, ArtifactStore(url), "default", cache).key

    keys = {key(f"{place.store.url}?token={token}") for token in ("hunter1", "hunter2")}
    assert len(keys) == 2
    assert not any("hunter" in each for each in keys)
    assert key(place.store.url) == f"{place.store.url} default"


async def test_equal_uploads_at_once_leave_one_snapshot_that_is_whole(place: Place) -> None:
    files = some_files(20)
    place.write(files)
    found = find_files(place.folder)

    async def from_another_machine(number: int) -> Uploaded:
        with CodeCache(place.root / f"{number}.sqlite") as cache:
            to = UploadTo(place.database, place.store, "default", cache)
            return await upload(place.folder, replace(found, commit=None, changed=False), to)

    uploads = await asyncio.gather(*map(from_another_machine, range(4)))
    assert len({each.code.snapshot for each in uploads}) == 1
    async with place.database.transaction() as connection:
        await connection.execute(text("UPDATE artifact_objects SET leased_until = now()"))
    await sweep_artifacts(place.database, place.store, timedelta(0))
    assert place.contents(uploads[0]) == files


@pytest.mark.parametrize("ends", [True, False])
async def test_a_slow_submit_of_another_machine_is_waited_for_and_not_without_end(
    place: Place, database_url: str, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """The other one is just writing the snapshot of the same folder, longer than a look waits."""
    monkeypatch.setattr(code_upload, "_LOCKED_TRIES", 3)
    files = some_files(5)
    place.write(files)
    found = replace(find_files(place.folder), commit=None, changed=False)
    digest = (await place.upload(tenant="other")).code.snapshot
    hasty = Database(database_url, patience=timedelta(milliseconds=100))
    said, let_go = list[str](), asyncio.Event()

    def heard(words: str) -> None:
        said.append(words)
        let_go.set()

    async def another_machine() -> None:
        async with place.database.transaction() as connection:
            await connection.execute(text(_LOCK), {"tenant": "default", "digest": digest})
            locked.set()
            await (let_go if ends else over).wait()

    locked, over = asyncio.Event(), asyncio.Event()
    other = asyncio.create_task(another_machine())
    await locked.wait()
    with CodeCache(place.root / "cache.sqlite") as cache:
        to = UploadTo(hasty, place.store, "default", cache)
        if ends:
            assert place.contents(await upload(place.folder, found, to, waits=heard)) == files
        else:
            with pytest.raises(LockedError):
                await upload(place.folder, found, to, waits=heard)
    over.set()
    await other
    await hasty.close()
    assert said == ["Waiting for another submit, which stores the same code or a part of it"]


async def test_a_snapshot_may_take_longer_to_store_than_a_database_to_answer(
    place: Place, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50,000 files it has 11 MB, which take 31 s at 3 Mbit/s."""
    place.write(some_files(5))
    put, hasty = ArtifactStore.put_snapshot, Database(database_url, patience=timedelta(seconds=8))

    def slowly(store: ArtifactStore, tenant: str, digest: str, content: bytes) -> None:
        time.sleep(0.6)  # the line is slow
        put(store, tenant, digest, content)

    monkeypatch.setattr(database_module, "SILENCE", timedelta(seconds=0.5))
    monkeypatch.setattr(rows, "_SLOWEST", 100)
    monkeypatch.setattr(ArtifactStore, "put_snapshot", slowly)
    place.database = hasty
    uploaded = await place.upload()
    assert place.stored(uploaded).digest == uploaded.code.snapshot
    await hasty.close()


async def test_who_submits_what_a_slow_submit_stores_a_part_of_waits_for_it(
    place: Place, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was changed while its last snapshot is still on its way, and shares objects."""
    place.write(some_files(5))
    put, hasty = ArtifactStore.put_snapshot, Database(database_url, patience=timedelta(0, 0.1))
    stores, go_on, said = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def slowly(store: ArtifactStore, tenant: str, digest: str, content: bytes) -> None:
        loop.call_soon_threadsafe(stores.set)
        assert go_on.wait(30)
        put(store, tenant, digest, content)

    def heard(words: str) -> None:
        said.append(words)
        go_on.set()

    monkeypatch.setattr(ArtifactStore, "put_snapshot", slowly)
    first = asyncio.create_task(place.upload())
    await stores.wait()
    place.write({"more.py": b"more"})
    found = replace(find_files(place.folder), commit=None, changed=False)
    with CodeCache(place.root / "cache.sqlite") as cache:
        to = UploadTo(hasty, place.store, "default", cache)
        second = await upload(place.folder, found, to, waits=heard)
    assert (second.sent_files, len(said)) == (1, 1)
    assert place.contents(await first) == some_files(5)
    assert place.contents(second) == some_files(5) | {"more.py": b"more"}
    await hasty.close()


async def test_what_was_swept_is_sent_again_under_other_names(place: Place) -> None:
    place.write({"a.py": b"one"})
    first = await place.upload()
    before = place.stored(first).objects
    await place.let_leases_pass()
    assert await sweep_artifacts(place.database, place.store, timedelta(0)) == (1, 1)
    with pytest.raises(DamagedError, match="has gone"):
        place.stored(first)
    again = await place.upload()
    assert again.sent_bytes == 3
    assert place.contents(again) == {"a.py": b"one"}
    assert not before & place.stored(again).objects


async def test_tenants_share_no_object(place: Place) -> None:
    place.write({"a.py": b"one"})
    await place.upload()
    other = await place.upload(tenant="other")
    assert other.sent_bytes == 3
    assert place.stored(other, "other").objects != place.stored(other).objects


async def test_a_file_that_is_as_it_was_is_not_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "TICK", 0)
    place.write({"a.py": b"one", "b.py": b"two"})
    read: list[str] = []
    plain = code_cache.sha256_of

    def counted(path: str) -> str:
        read.append(Path(path).name)
        return plain(path)

    monkeypatch.setattr(code_upload, "sha256_of", counted)
    await place.upload()
    assert sorted(read) == ["a.py", "b.py"]
    read.clear()
    place.write({"b.py": b"new"})
    await place.upload()
    assert read == ["b.py"]


@pytest.mark.parametrize(("tick", "seen"), [(code_cache.TICK, b"two"), (0, b"one")])
async def test_a_change_within_the_tick_of_the_last_look_is_seen(
    place: Place, monkeypatch: pytest.MonkeyPatch, tick: int, seen: bytes
) -> None:
    """A file system whose clock does not move on: only the size tells. Without the rule, the last
    case, the change is missed."""
    monkeypatch.setattr(code_cache, "TICK", tick)
    monkeypatch.setattr(code_upload, "look_of", lambda stat: str(stat.st_size))
    place.write({"a.py": b"one"})
    await place.upload()
    place.write({"a.py": b"two"})
    assert place.contents(await place.upload()) == {"a.py": seen}


async def test_a_damaged_cache_is_begun_anew(place: Place) -> None:
    (place.root / "cache.sqlite").write_bytes(b"no database at all, but long enough" * 100)
    place.write({"a.py": b"one"})
    assert place.contents(await place.upload()) == {"a.py": b"one"}


async def test_what_the_store_has_lost_is_stored_anew_on_demand(place: Place) -> None:
    place.write({"a.py": b"one", "b.py": b"two"})
    first = await place.upload()
    assert first.code.snapshot is not None
    before = place.store.snapshot("default", first.code.snapshot)
    for name in before.objects:
        place.store.remove("default", name)
    assert (await place.upload()).sent_bytes == 0  # what is on record is taken for stored
    again = await place.upload(anew=True)
    assert (again.code, again.sent_files) == (first.code, 2)
    after = place.store.snapshot("default", first.code.snapshot)
    assert after.objects.isdisjoint(before.objects)
    for name in after.objects:
        assert place.store.get("default", name) == b"onetwo"
    async with place.database.transaction() as connection:
        found = await connection.scalars(text("SELECT object FROM snapshot_objects"))
        assert set(found) == after.objects
    assert (await place.upload()).sent_bytes == 0


async def test_a_folder_whose_own_name_is_not_utf_8_is_sent(place: Place) -> None:
    place.folder = place.folder.rename(place.root / os.fsdecode(b"caf\xe9"))
    place.write({"a.py": b"one"})
    assert (await place.upload()).sent_bytes == 3
    assert (await place.upload()).sent_bytes == 0


@pytest.mark.parametrize("blocked", ["cache", "cache/code.sqlite"])
async def test_where_nothing_can_be_noted_all_is_read_again(place: Place, blocked: str) -> None:
    in_the_way = place.root / blocked
    in_the_way.parent.mkdir(exist_ok=True)
    if blocked == "cache":
        in_the_way.touch()
    else:
        in_the_way.mkdir()
    place.write({"a.py": b"one"})
    for _ in range(2):
        with CodeCache(place.root / "cache" / "code.sqlite") as cache:
            to = UploadTo(place.database, place.store, "default", cache)
            uploaded = await upload(place.folder, find_files(place.folder), to)
        assert place.contents(uploaded) == {"a.py": b"one"}


async def test_equal_submits_at_the_same_time_send_it_once(place: Place, small: None) -> None:
    place.write(some_files() | {"large": os.urandom(40_000)})
    uploads = await asyncio.gather(*(place.upload() for _ in range(3)))
    assert sorted(each.sent_bytes for each in uploads) == [0, 0, 100_000]
    stored = (path for path in (place.root / "store").rglob("*") if path.is_file())
    assert 100_000 <= sum(path.stat().st_size for path in stored) < 130_000
    assert list((place.root / "uploads").iterdir()) == []
