"""A query that got no answer is asked again, by every client that Longshore makes.

The refusals are those that the SDK makes: a worker that is made to stop for two seconds cannot be
ended afterwards, so none is made to.
"""

from typing import Any

import pytest
from temporalio.client import (
    DescribeWorkflowInput,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from longshore.client import late_answers
from longshore.client.errors import as_ours
from longshore.client.late_answers import AskAgain, NoAnswerError
from longshore.models.errors import UnavailableError

LATE = WorkflowQueryFailedError(
    "[TMPRL1101] Potential deadlock detected: workflow didn't yield within 2 second(s)."
)
BROKEN = RPCError("h2 protocol error: http2 error", RPCStatusCode.CANCELLED, b"")
LATE_CALL = RPCError("Timeout expired", RPCStatusCode.CANCELLED, b"")
NO_WORKER = RPCError(
    "query timed out before a worker could process it", RPCStatusCode.DEADLINE_EXCEEDED, b""
)
MANY = RPCError(
    "consistent query buffer is full, this may be caused by too many queries",
    RPCStatusCode.RESOURCE_EXHAUSTED,
    b"",
)
WRONG = WorkflowQueryFailedError("Query handler for 'state' expected but not found")


class Server(OutboundInterceptor):
    """Answers each question with the next of `answers`, and says of a workflow what there is."""

    def __init__(self, *answers: str | Exception, away: bool = False) -> None:
        self.answers = list(answers)  # it has none behind it
        self.away = away

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        assert input.id == "job-a"
        if self.away:
            raise LATE_CALL

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "_PAUSES", (0.01, 0.01))


async def test_a_question_that_the_worker_did_not_come_to_is_asked_again():
    assert await _ask(Server(LATE, "here")) == "here"


async def test_a_worker_that_never_comes_to_it_is_named():
    with pytest.raises(RPCError) as told:
        await _ask(Server(LATE, LATE, "here"))
    ours = as_ours(told.value, "job a")
    assert isinstance(ours, UnavailableError)
    assert str(ours) == (
        "Temporal knows job a, but the control worker is too busy to answer. Ask again in a "
        "moment; `longshore doctor` says whether one runs, and what it does."
    )


@pytest.mark.parametrize("late", [LATE_CALL, NO_WORKER])
async def test_a_server_that_answers_is_not_said_to_be_away(late: RPCError):
    with pytest.raises(NoAnswerError) as told:
        await _ask(Server(late))
    ours = as_ours(told.value, "job a")
    assert isinstance(ours, UnavailableError)
    says = "Temporal knows job a, but no control worker has answered within 30 s. Ask again"
    assert str(ours).startswith(says)
    with pytest.raises(RPCError) as told:
        await _ask(Server(late, away=True))
    assert str(as_ours(told.value, "job a")).startswith("Temporal does not answer")


async def test_more_questions_than_the_server_keeps_are_told_with_what_helps():
    with pytest.raises(NoAnswerError) as told:
        await _ask(Server(MANY))
    says = str(as_ours(told.value, "job a"))
    assert "many ask at once, or no control worker answers" in says
    assert "longshore doctor" in says
    assert "query buffer" not in says


async def test_a_question_whose_connection_broke_is_asked_again():
    assert await _ask(Server(BROKEN, "here")) == "here"
    with pytest.raises(RPCError, match="h2 protocol error"):
        await _ask(Server(BROKEN, BROKEN, "here"))


async def test_a_refusal_is_not_asked_again():
    refused = RPCError("not for you", RPCStatusCode.PERMISSION_DENIED, b"")
    with pytest.raises(RPCError, match="not for you"):
        await _ask(Server(refused, "here"))


async def test_a_question_that_is_wrong_is_not_asked_again():
    with pytest.raises(WorkflowQueryFailedError, match="expected but not found"):
        await _ask(Server(WRONG, "here"))


async def _ask(server: Server) -> object:
    question = QueryWorkflowInput(
        id="job-a", run_id=None, query="status", args=[], reject_condition=None, headers={},
        ret_type=None, rpc_metadata={}, rpc_timeout=None,
    )  # fmt: skip
    return await AskAgain().intercept_client(server).query_workflow(question)
