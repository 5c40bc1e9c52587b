"""The scene of `make survive`, on a stack that leaves nodes later, so that it takes less time.

The command itself runs in full in `tests/faults/test_training.py`.
"""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from client.api import Longshore
from models.job import JobState
from models.settings import Settings
from tests.support.home import Home
from tests.support.local_stack import temporary_folder
from workers.survival import EXPECTED_ENDS, Pace, Survival

pytestmark = pytest.mark.timeout(400)
PACE = Pace(
    epochs=120, epoch_seconds=0.25, between=3, expected=timedelta(seconds=5),
    slack=timedelta(seconds=15),
)  # fmt: skip


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """An empty state folder; the scene starts a stack in it (5 s), which ends with the test."""
    monkeypatch.setenv("LONGSHORE_PUBLISH_ALLOWANCE", "2s")
    monkeypatch.setenv("LONGSHORE_NODE_END_MARGIN", "3s")
    monkeypatch.setenv("LONGSHORE_NODE_LOST_AFTER", "6s")
    with temporary_folder() as folder:
        home = Home(folder)
        try:
            yield home
        finally:
            home.stack.stop(lambda line: None)


async def test_the_training_survives_and_is_where_it_may_stay(home: Home):
    await asyncio.to_thread(home.up, "--nodes", "1")
    told: list[str] = []
    api = await Longshore.connect(Settings(state_dir=home.folder))
    scene = Survival(home.stack, api, lambda kind, what: told.append(f"{kind} {what}"), PACE)
    try:
        report = await scene.run()
    finally:
        await scene.close()
        await api.close()
    assert report.problems == (), told
    disturbed, undisturbed = report.disturbed, report.undisturbed
    assert disturbed.state is undisturbed.state is JobState.SUCCEEDED
    assert disturbed.digest == undisturbed.digest
    assert [each.end.partition(":")[0] for each in disturbed.attempts] == EXPECTED_ENDS
    # On the node that ends it has worked for as long as it said at least.
    there = disturbed.attempts[2]
    assert there.node_id == "survive-2"
    assert there.reached - there.resumed_at >= PACE.between
