"""Which checkpoints are published where a job saves faster than the store takes them."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.node.publisher import Moment, Publisher
from longshore.models.checkpoint import Manifest, StoredFile
from longshore.models.errors import StoreError
from longshore.scheduling.checkpoints import whole
from tests.support.checkpoints import JOB, a_draft, tree_of, write_tree
from tests.support.waiting import eventually


class GatedStore(CheckpointStore):
    """A store that publishes when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begun: list[int] = []
        """Numbers of what it was given."""
        self.ended = 0
        self.refuses = False
        self.gate = threading.Semaphore(0)

    def publish(
        self,
        folder: Path,
        draft: Manifest,
        given_up: threading.Event,
        wanted: Callable[[StoredFile], bool] = lambda file: True,
        files_in: Callable[[Path], list[StoredFile]] | None = None,
    ) -> Manifest:
        self.begun.append(draft.number)
        self.gate.acquire()
        try:
            if self.refuses:
                raise StoreError("away")
            return super().publish(folder, draft, given_up, wanted)
        finally:
            self.ended += 1


class Process:
    """One process that saves, and how long its store takes, in a time of their own."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.store = GatedStore((folder / "store").as_uri())
        self.publisher = Publisher(
            self.store, 1000, lambda _: True, lambda _: None, lambda _: None
        )
        self._folder, self._rank, self._ranks = folder / f"rank-{rank}", rank, ranks

    async def save(self, number: int, step: int | None) -> None:
        moment = write_tree(self._folder / str(number), {f"part-{self._rank}": b"1"})
        draft = a_draft(1, number, rank=self._rank, ranks=self._ranks, step=step)
        await self.publisher.offer(Moment(moment, draft))

    async def begins(self) -> None:
        await eventually(lambda: len(self.store.begun) > self.store.ended)

    async def ends(self) -> None:
        ended = self.store.ended
        self.store.gate.release()
        await eventually(lambda: self.store.ended > ended)

    async def play(self, steps: Sequence[int | None], takes: float) -> None:
        """Save once a second, and publish each in `takes` seconds; at the end publish the rest."""
        self.publisher.start()
        done_at = None
        for number, step in enumerate(steps, 1):
            while done_at is not None and done_at <= number:
                one_waits = number - 1 not in self.store.begun  # the newest, at least
                await self.ends()
                if one_waits:
                    await self.begins()
                done_at = done_at + takes if one_waits else None
            await self.save(number, step)
            if done_at is None:
                await self.begins()
                done_at = number + takes
        for _ in steps:
            self.store.gate.release()
        await self.publisher.finish(timedelta(minutes=1))


@pytest.mark.parametrize(
    "step_of",
    [lambda _: None, lambda number: number * 500, lambda number: number * 1000 - 1],
    ids=["numbers", "steps", "steps from 0"],
)
async def test_ranks_choose_the_same_saves(
    tmp_path: Path, step_of: Callable[[int], int | None]
) -> None:
    steps = [step_of(number) for number in range(1, 36)]
    for rank, takes in enumerate((1.84, 2.12)):
        await Process(tmp_path, rank, ranks=2).play(steps, takes)
    stored = [one.manifests[0].number for one in whole(Process(tmp_path, 0, 2).store.names(JOB))]
    gaps = [newer - older for newer, older in zip(stored, [*stored[1:], 0], strict=True)]
    assert stored[0] == 35  # what was saved last
    assert max(gaps) <= 4  # the next power of two above what the slower one needs
    for rank in (0, 1):
        assert tree_of(tmp_path / f"rank-{rank}") == {}  # no moment is left


async def test_of_one_process_the_newest_wins(tmp_path: Path) -> None:
    process = Process(tmp_path, 0, ranks=1)
    await process.play([None] * 9, takes=2.5)
    assert process.store.begun == [1, 3, 5, 8, 9]


async def test_what_is_refused_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore.activities.node.publisher.FIRST_WAIT", 0.01)
    process = Process(tmp_path, 0, ranks=2)
    process.store.refuses = True
    process.publisher.start()
    await process.save(4, None)
    await process.begins()
    for number in (5, 6, 7):
        await process.save(number, None)
    await process.ends()
    process.store.refuses = False
    for _ in range(3):
        process.store.gate.release()
    await process.publisher.finish(timedelta(minutes=1))
    assert sorted(name.number for name in process.store.names(JOB)) == [4, 7]
