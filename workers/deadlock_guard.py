"""Lets workflow code that is slow to yield end its step.

The SDK takes a workflow for deadlocked that did not yield for two seconds of the clock, as one on
a busy machine may. It fails the workflow's task, which is right, and has Python raise an error in
the thread wherever that stands: where it has just taken the lock of the log, that stays locked,
and all other threads wait for it for ever. No lock is safe from that, so it is left out here.
"""

import threading
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
)


class UninterruptedRunner(UnsandboxedWorkflowRunner):
    """The SDK's, but nothing interrupts a step of a workflow: its task fails and is tried again
    once the step has ended. Of a step that took too long the log does not say where it stood."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Uninterrupted(super().create_instance(det))


class _Uninterrupted(WorkflowInstance):
    """One run of a workflow. It does not tell its thread (`get_thread_id`), so that no error can
    be raised there."""

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._step = threading.Lock()

    def activate(self, act: Any) -> Any:
        # The SDK forgets a run whose task has failed, while its step may still be under way.
        with self._step:
            return self._instance.activate(act)

    def get_info(self) -> workflow.Info:
        return self._instance.get_info()

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)
