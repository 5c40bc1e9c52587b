"""`eventually` waits on where a server was too busy to answer, and tells what will never be."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from longshore.models.errors import UnavailableError
from tests.support.waiting import eventually

LATE = RPCError("Timeout expired", RPCStatusCode.CANCELLED, b"")
UNKNOWN = RPCError("workflow not found for ID: job-a", RPCStatusCode.NOT_FOUND, b"")


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("not yet"),
        UnavailableError("no answer"),
        LATE,
        ConnectionResetError("Connection reset by peer"),
    ],
)
async def test_what_is_not_so_yet_is_asked_again(error: Exception):
    answers: list[object] = [error, "", "there"]

    def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await eventually(ask) == "there"
    with pytest.raises(type(error)):
        await eventually(lambda: _fails(error), timeout=0.01)


async def test_what_is_not_there_is_told_at_once():
    with pytest.raises(RPCError):
        await eventually(lambda: _fails(UNKNOWN))


def _fails(error: Exception) -> None:
    raise error
