"""What a step fails with that the database refuses: what that said first, and no statement."""

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import text
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.serving.service_views import service_view
from longshore.models.errors import SpecError
from longshore.models.purchase import PurchaseRequest
from longshore.models.settings import Settings
from tests.support.waiting import eventually

LONG = f"/* {'a statement that goes on, ' * 1_000} */"
"""Longer than what Temporal keeps of the failure of a step that is tried again: 4 KB."""
_RAISE = "DO $$ BEGIN RAISE EXCEPTION 'it said so' USING ERRCODE = '{}', HINT = 'a hint'; END $$"


class Steps:
    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn(name="step_on_database")
    @reports_errors
    async def step(self, statement: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(text(f"{statement} {LONG}"))


@workflow.defn(name="StepOnDatabaseWorkflow", sandboxed=False)
class StepWorkflow:
    @workflow.run
    async def run(self, statement: str) -> None:
        await workflow.execute_activity(
            "step_on_database", statement, start_to_close_timeout=timedelta(seconds=30)
        )


@pytest.mark.parametrize("value", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
async def test_who_gives_text_that_no_row_can_have_is_told_so(
    control: Database, settings: Settings, value: str
):
    """Whatever is looked for by it: a service, a model, a DAG."""
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    with pytest.raises(SpecError, match="the capacity database takes no such value: "):
        async with database.snapshot() as connection:
            await service_view(connection, value)
    await database.close()


async def test_what_is_beyond_a_bound_of_a_table_is_told_and_not_tried_again(
    control: Database, settings: Settings
):
    beyond = "INSERT INTO tenants (name, quotas) VALUES ('much', '{\"max_jobs\": 9999999999}')"
    database = Database.for_people(settings.resolve_database_url(), pool_size=1)
    with pytest.raises(SpecError, match="it is beyond the bounds of tenants_quotas_in_bounds"):
        async with database.transaction() as connection:
            await connection.execute(text(beyond.replace(":", "\\:")))
    await database.close()
    with pytest.raises(ApplicationError, match="tenants_quotas_in_bounds") as raised:
        await Steps(control).step(beyond.replace(":", "\\:"))
    assert raised.value.non_retryable


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT nothing_here", 'the capacity database: column "nothing_here" does not exist'),
        (_RAISE.format("23505"), "the capacity database: it said so"),
        (_RAISE.format("XX000"), "the capacity database: it said so"),
        (_RAISE.format("53200"), "the capacity database does not answer: it said so"),
        (_RAISE.format("53100"), "the capacity database's disk is full: it said so"),
        (_RAISE.format("55P03"), "the capacity database is locked: "),
        (
            f"DO $$ BEGIN RAISE EXCEPTION '{'x' * 5_000}'; END $$",
            f"the capacity database: {'x' * 900}",
        ),
    ],
    ids=["wrong", "taken", "internal", "memory", "disk", "locked", "long"],
)
async def test_what_the_database_said_can_be_read_in_temporal(
    temporal: Client, control: Database, statement: str, said: str
):
    queue = f"steps-{uuid.uuid4().hex[:8]}"
    steps = Steps(control)
    async with Worker(
        temporal, task_queue=queue, workflows=[StepWorkflow], activities=[steps.step]
    ):
        flow = await temporal.start_workflow(
            StepWorkflow.run, statement, id=queue, task_queue=queue
        )
        assert (await eventually(lambda: _failure(flow))).startswith(said)
        await flow.terminate()


async def _failure(flow: WorkflowHandle[StepWorkflow, None]) -> str:
    """Return what the step failed with last; empty before it has."""
    pending = (await flow.describe()).raw_description.pending_activities
    return pending[0].last_failure.message if pending else ""


async def test_a_statement_that_wants_a_value_is_not_tried_again(control: Database):
    """It was never sent, and the next try would have no other values."""

    @reports_errors
    async def step() -> None:
        async with control.transaction() as connection:
            await connection.execute(text("SELECT CAST(:wanted AS text)"), [{}])

    with pytest.raises(ApplicationError, match="A value is required for bind parameter") as failed:
        await step()
    assert (failed.value.type, failed.value.non_retryable) == ("DataError", True)
    assert "SELECT" not in failed.value.message


@pytest.mark.parametrize(
    ("stored", "said"),
    [({}, "options: is required"), ([1], "all of it: must be a mapping")],
    ids=["empty", "list"],
)
async def test_what_cannot_be_read_is_told_in_words_and_tried_again(stored: object, said: str):
    @reports_errors
    async def step() -> PurchaseRequest:
        return PurchaseRequest.model_validate(stored)

    with pytest.raises(ApplicationError) as told:
        await step()
    assert str(told.value).startswith(f"ValidationError: a PurchaseRequest cannot be read: {said}")
    assert "pydantic" not in str(told.value)
    assert (told.value.type, told.value.non_retryable) == ("ValidationError", False)
    assert told.value.__cause__ is None
