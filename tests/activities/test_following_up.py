"""What a market refuses by mistake ends neither a purchase nor a block that are under way."""

from dataclasses import replace
from typing import Any

import pytest
from psycopg.errors import UniqueViolation
from sqlalchemy.exc import DataError, IntegrityError, NoResultFound
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from longshore.activities.buying.sending import TRIES, Sending
from longshore.activities.error_translation import follows_up, reports_errors
from longshore.models.errors import (
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    MarketError,
    NoProviderError,
    NotFoundError,
    RefusedError,
    StoredError,
)
from longshore.models.records.buying import OrderRow
from longshore.models.settings import Settings

ROW: dict[str, Any] = {"provider": "prime", "key": "p-1.1"}
REFUSED = InvalidOrderError("prime", "GET /pods/1 was refused", status=422)


async def _fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("decorate", "error", "final"),
    [
        (reports_errors, REFUSED, True),
        (follows_up, REFUSED, False),
        (follows_up, NotFoundError("no such block"), True),
        (follows_up, NoProviderError("no provider prime"), False),
        (reports_errors, RefusedError("markets are off"), True),
        (follows_up, RefusedError("markets are off"), False),
        (reports_errors, DataError("SELECT", None, ValueError()), True),
        (follows_up, DataError("SELECT", None, ValueError()), False),
        (reports_errors, NoResultFound(), True),
        (follows_up, NoResultFound(), True),
    ],
)
async def test_a_step_on_what_was_bought_is_tried_again_and_one_on_nothing_is_not(
    decorate: Any, error: Exception, final: bool
):
    with pytest.raises(ApplicationError) as raised:
        await decorate(_fails)(error)
    assert raised.value.non_retryable is final


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (StoredError("pool", ("it cannot be read",)), (2, 4, 300)),
        (DataError("SELECT", None, ValueError()), (2, 4, 300)),
        (NoProviderError("no provider prime"), (2, 4, 300)),
        (REFUSED, (None, None, None)),  # as the policy of the step says: a market comes back
    ],
)
async def test_what_only_a_person_can_help_is_tried_ever_less_often(
    error: Exception, pauses: tuple[int | None, ...]
):
    found: list[object] = []
    for attempt in (1, 2, 50):
        step = ActivityEnvironment()
        step.info = replace(step.info, attempt=attempt)
        with pytest.raises(ApplicationError) as raised:
            await step.run(follows_up(_fails), error)
        delay = raised.value.next_retry_delay
        found.append(delay and delay.total_seconds())
    assert tuple(found) == pauses


@pytest.mark.timeout(30)
async def test_an_error_whose_causes_go_round_holds_up_nobody():
    refused, away = InvalidOrderError("prime", "no"), MarketAwayError("prime", "no")
    refused.__cause__, away.__cause__ = away, refused
    with pytest.raises(ApplicationError) as raised:
        await reports_errors(_fails)(refused)
    assert raised.value.__cause__ is None


async def test_a_row_that_another_try_has_stored_is_found_by_the_next():
    error = IntegrityError("INSERT", None, UniqueViolation("there already"))
    with pytest.raises(ApplicationError, match="there already") as raised:
        await reports_errors(_fails)(error)
    assert (raised.value.type, raised.value.non_retryable) == ("IntegrityError", False)


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_look_that_is_refused_says_nothing_of_an_order_that_was_sent(status: int):
    nothing: Any = None
    sending: Any = Sending(nothing, Settings())
    row = OrderRow(**ROW)
    of_a_look = InvalidOrderError("prime", "GET /pods/ was refused", status=status)
    with pytest.raises(MarketAwayError) as raised:
        await sending.is_final(row, of_a_look, True)
    assert raised.value.uncertain
    assert await sending.is_final(row, of_a_look, False)


@pytest.mark.parametrize("error", [InvalidOrderError, GoneError])
async def test_an_order_that_was_sent_is_asked_for_a_few_times_before_a_refusal_is_believed(
    error: type[MarketError],
):
    """A market may refuse by mistake a key that it has taken: the order would be nobody's."""
    nothing: Any = None
    sending: Any = Sending(nothing, Settings())
    row = OrderRow(**ROW)
    refused = error("prime", "POST /pods/ was refused", status=422)
    refused.creates = True

    async def believed(attempt: int, sent_before: bool) -> bool:
        step = ActivityEnvironment()
        step.info = replace(step.info, attempt=attempt)
        return await step.run(sending.is_final, row, refused, sent_before)

    assert await believed(1, sent_before=False)
    with pytest.raises(MarketAwayError) as raised:
        await believed(TRIES - 1, sent_before=True)
    assert raised.value.uncertain
    assert await believed(TRIES, sent_before=True)
