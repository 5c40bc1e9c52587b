"""What an agent does beside its work: it never ends unseen."""

import asyncio
import logging

import pytest

from longshore.workers.agent import _beside  # pyright: ignore[reportPrivateUsage]
from tests.support.waiting import eventually


async def _fails() -> None:
    raise RecursionError("too deep")


async def test_the_log_says_what_is_lost_where_it_fails(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.ERROR), _beside(_fails(), "old runs are not removed"):
        await eventually(lambda: caplog.records)
    (record,) = caplog.records
    said = "old runs are not removed any more, until this agent starts anew"
    assert (record.getMessage(), bool(record.exc_info)) == (said, True)


async def test_the_end_of_the_agent_is_no_failure(caplog: pytest.LogCaptureFixture):
    with _beside(asyncio.Event().wait(), "nothing"):  # pyright: ignore[reportArgumentType]
        await asyncio.sleep(0)  # it begins
    await asyncio.sleep(0)  # it ends
    assert caplog.records == []
