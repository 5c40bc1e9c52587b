"""A training that is preempted twice, moved off a node that ends, and loses its agent to kill -9
ends with the weights of one that nobody disturbed: `longshore demo --survive`."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from longshore.models.job_status import JobState
from longshore.workers.survival import EXPECTED_ENDS, USUAL_PACE, SurvivalReport
from tests.support.home import Home, new_home

EPOCHS = USUAL_PACE.epochs
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty state folder; the test starts a stack in it (5 s), which ends with it."""
    with new_home() as home:
        yield home


async def test_a_training_survives_everything_bit_for_bit(home: Home):
    scene = home.start("demo", "--survive", "--json")
    out, told = await asyncio.to_thread(scene.communicate, timeout=500)
    assert scene.returncode == 0, told
    report = SurvivalReport.model_validate_json(out)
    assert report.problems == ()
    disturbed, undisturbed = report.disturbed, report.undisturbed
    assert disturbed.state is undisturbed.state is JobState.SUCCEEDED
    assert disturbed.digest == undisturbed.digest
    assert len(disturbed.digest) == 64
    attempts = disturbed.attempts
    assert [each.end.partition(":")[0] for each in attempts] == EXPECTED_ENDS
    # It moved to a node that has nothing of it, and to another after the loss.
    assert [each.node_id[-1] for each in attempts] == ["1", "1", "2", "1", "3"]
    # Stopped in order it loses nothing; after a kill it goes on from what was published.
    for before, after in pairwise(attempts[:4]):
        assert after.resumed_at == before.reached
    assert 0 < attempts[4].resumed_at < attempts[4].reached == EPOCHS
    assert [(each.resumed_at, each.reached) for each in undisturbed.attempts] == [(0, EPOCHS)]
