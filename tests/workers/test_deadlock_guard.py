"""A workflow that the SDK takes for deadlocked is tried again, and its step is not interrupted."""

import asyncio
import logging
import threading
import uuid

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from longshore.workers.control import workflow_runner

_WAIT = 60.0
_taken_for_deadlocked = threading.Event()
_ends: list[str] = []


@workflow.defn
class SlowStep:
    """Yields for the first time once it is taken for deadlocked, and later still."""

    @workflow.run
    async def run(self) -> str:
        if not _ends:
            try:
                assert _taken_for_deadlocked.wait(_WAIT)
                for _ in range(1_000_000):  # where Python would raise an error
                    pass
                _ends.append("in order")
            except BaseException as error:
                _ends.append(type(error).__name__)
                raise
        await asyncio.sleep(0)
        return "done"


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if record.exc_info and "[TMPRL1101]" in str(record.exc_info[1]):
            _taken_for_deadlocked.set()


async def test_a_slow_step_of_a_workflow_is_not_interrupted(temporal: Client):
    heard = _Heard()
    logger = logging.getLogger("temporalio.worker")
    logger.addHandler(heard)
    queue = f"slow-{uuid.uuid4().hex[:8]}"
    worker = Worker(
        temporal, task_queue=queue, workflows=[SlowStep], workflow_runner=workflow_runner()
    )
    try:
        async with asyncio.timeout(_WAIT), worker:
            assert await temporal.execute_workflow(SlowStep.run, id=queue, task_queue=queue)
    finally:
        logger.removeHandler(heard)
    assert _ends == ["in order"]
    assert [line for line in heard.lines if "evict" in line] == []
