"""Workflows whose timers take no time."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from longshore.client.api import Longshore
from longshore.models.settings import Settings


@pytest.fixture
def skipper(temporal: Client) -> TimeSkipper:
    """Has workflows skip over their timers; starts nothing. The only place that knows how.

    Time does not jump while an activity runs: what waits for a process waits in real time.
    """
    return TimeSkipper(temporal)


@pytest.fixture
async def hasty(skipper: TimeSkipper, settings: Settings) -> AsyncIterator[Longshore]:
    """A client whose jobs skip the time that they would wait on a timer."""
    client = Longshore(skipper.client, settings)
    yield client
    await client.close()
