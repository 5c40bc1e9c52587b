"""Signals and updates that no handler takes, to every class of workflow that has handlers."""

import inspect
import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from longshore.activities.database import Database
from longshore.models.base import Input
from longshore.models.errors import SpecError
from longshore.models.settings import Settings
from longshore.workers import control
from longshore.workers.versioning import VERSIONED_WORKFLOWS, WORKFLOWS
from longshore.workflows.arguments import FittingArguments

ODD = (None, b"abc", Payload(data=b"abc"), 7, ["x"], "x")
"""What a converter gives on as it is, whatever the handler takes, and JSON of a wrong shape."""
REGISTERED = sorted({*WORKFLOWS, *VERSIONED_WORKFLOWS}, key=lambda each: each.__name__)


def handlers_of(of: type) -> tuple[list[str | None], list[str | None]]:
    """Return the names of the signals and of the updates that a class of workflow takes."""
    known = workflow._Definition.must_from_class(of)  # pyright: ignore[reportPrivateUsage]
    return list(known.signals), list(known.updates)


def takes(of: type, handler: str | None) -> list[inspect.Parameter]:
    """Return what a handler takes beside the workflow."""
    return list(inspect.signature(getattr(of, str(handler))).parameters.values())[1:]


WITH_HANDLERS = [of for of in REGISTERED if any(handlers_of(of))]


def deaf_but_for_its_handlers(of: type) -> type:
    """Return a workflow with the handlers of `of` that does nothing, until it is told `the_end`.

    It has nothing that a handler needs: one that is called with what it does not take fails.
    """
    name = f"Hears{of.__name__}"

    async def run(self: Any) -> None:
        await workflow.wait_condition(lambda: hasattr(self, "ended"))

    def the_end(self: Any) -> None:
        self.ended = True

    run.__qualname__ = f"{name}.run"
    own = {
        "__init__": lambda self: None, "run": workflow.run(run),
        "the_end": workflow.signal(the_end),
    }  # fmt: skip
    return workflow.defn(type(name, (of,), own))


@pytest.mark.parametrize("of", WITH_HANDLERS, ids=lambda of: of.__name__)
async def test_no_workflow_fails_by_what_its_handlers_do_not_take(temporal: Client, of: type):
    hears, queue = deaf_but_for_its_handlers(of), f"hostile-{uuid.uuid4().hex[:8]}"
    signals, updates = handlers_of(of)
    # What comes to one that takes nothing is left out, and it is called.
    signals = [name for name in signals if takes(of, name)]
    async with Worker(
        temporal, task_queue=queue, workflows=[hears], interceptors=[FittingArguments()],
        workflow_runner=UnsandboxedWorkflowRunner(), workflow_failure_exception_types=[SpecError],
    ):  # fmt: skip
        handle = await temporal.start_workflow(hears.__name__, id=queue, task_queue=queue)
        for what in ODD:
            for signal in (*signals, "of-nobody"):
                await handle.signal(str(signal), what)
            for update in (*updates, "of-nobody"):
                await _is_refused(handle, str(update), what)
        await handle.signal("the_end")
        await handle.result()
    async for event in handle.fetch_history_events():
        assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


async def _is_refused(handle: WorkflowHandle[Any, Any], update: str, what: Any) -> None:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update(update, what)
    assert isinstance(refused.value.cause, ApplicationError)


@pytest.mark.parametrize("of", WITH_HANDLERS, ids=lambda of: of.__name__)
def test_what_each_handler_takes_can_be_held_against_what_comes(of: type):
    """`workflows/arguments.py` does so by the types that its method names: classes, and of an
    update one input that says what would be right."""
    signals, updates = handlers_of(of)
    for name in (*signals, *updates):
        assert name is not None, "one that takes all names takes what nobody has looked at"
        taken = takes(of, name)
        for parameter in taken:
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, (name, parameter)
            assert isinstance(parameter.annotation, type), (name, parameter)
            assert parameter.annotation is not object, (name, parameter)
        if name in updates:
            (wanted,) = taken
            assert issubclass(wanted.annotation, Input), name


async def test_the_control_worker_takes_all_arguments_through_that(
    temporal: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    given: dict[str, Any] = {}
    monkeypatch.setattr(control, "Worker", lambda *_, **named: given.update(named))
    database = Database(settings.resolve_database_url())
    control.control_worker(temporal, database, settings)
    await database.close()
    assert set(given["workflows"]) == set(WORKFLOWS)
    assert [type(each) for each in given["interceptors"]] == [FittingArguments]
