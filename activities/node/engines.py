"""Engines of this node: how one is started, what it says of itself, and who is told."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.node.public_files import open_public
from longshore.activities.rpc_errors import is_unknown
from longshore.activities.serving.engine_command import ADDRESS, GPU_MEMORY, LOADING, SPEC
from longshore.models.node import Inventory
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import Placement, PlacementKey
from longshore.models.retry import FailureClass
from longshore.models.service_messages import EngineNotice, service_workflow_id
from longshore.models.serving import EngineReport, EngineSpec, EngineStage

REPORT = "engine"
"""Name in the public folder of a run: what its engine says of itself."""
_LONGEST = 20_000
_POLL_EVERY = 0.5
_FAILURES = (FailureClass.USER, FailureClass.START, FailureClass.OUT_OF_MEMORY)
"""That lie with an engine, and not with its node."""
_log = logging.getLogger(__name__)


def engine_argv(public: Path) -> tuple[str, ...]:
    """Return the command of a job that serves a model; its packages are those of the agent."""
    runs = "longshore.activities.serving.engine"
    return (sys.executable, "-I", "-m", runs, str(public / REPORT))


def engine_env(
    spec: EngineSpec, placement: Placement, inventory: Inventory, address: str, loading: Path
) -> dict[str, str]:
    """Return what its process finds in its environment; `loading` is the folder of the locks that
    those hold which load."""
    held = [gpu.vram for gpu in inventory.gpus if gpu.index in placement.gpu_indices]
    return {
        SPEC: spec.model_dump_json(),
        ADDRESS: address,
        LOADING: str(loading.absolute()),
        GPU_MEMORY: str(int(min(held, default=0.0) * 1000)),
    }


def read_report(public: Path, last: EngineReport | None) -> EngineReport | None:
    """Return what an engine says now; what it said before where that cannot be read."""
    try:
        with open_public(public / REPORT) as file:
            return EngineReport.model_validate_json(file.read(_LONGEST))
    except (OSError, ValidationError):
        return last


def last_words(
    said: EngineReport | None, how: ProcessReport, *, stopped: bool
) -> EngineReport | None:
    """Return what an engine that has ended said last.

    It has failed, too, where it could not say so: it never started, or was killed, and was not to
    be `stopped`. None where it said nothing, and nothing is wrong with it.
    """
    told = said is not None and said.stage is EngineStage.FAILED
    if told or stopped or how.failure not in _FAILURES:
        return said
    return EngineReport(stage=EngineStage.FAILED, message=how.message)


Reports = Iterable[tuple[PlacementKey, EngineSpec, EngineReport]]


class Engines:
    """Tells the services of this node's engines what becomes of these."""

    def __init__(self, client: Client, node_id: str, reports: Callable[[], Reports]) -> None:
        """`reports` gives what the engines that run here say now, and last words."""
        self._client = client
        self._node_id = node_id
        self._reports = reports
        self._told: dict[PlacementKey, EngineReport] = {}
        self._untold: dict[PlacementKey, tuple[EngineSpec, EngineReport]] = {}

    async def keep_telling(self) -> None:
        """Tell what has changed, until cancelled; what nobody took is told again."""
        while True:
            now = {key: (spec, said) for key, spec, said in self._reports()}
            self._told = {key: said for key, said in self._told.items() if key in now}
            self._untold |= {
                key: found for key, found in now.items() if self._told.get(key) != found[1]
            }
            for key, (spec, said) in list(self._untold.items()):
                if await self._tell(key, spec, said):
                    self._told[key] = said
                    del self._untold[key]
            await asyncio.sleep(_POLL_EVERY)

    async def _tell(self, key: PlacementKey, spec: EngineSpec, said: EngineReport) -> bool:
        if spec.service is None:
            return True
        handle = self._client.get_workflow_handle(service_workflow_id(spec.service))
        notice = EngineNotice(
            job_id=key.job_id, attempt=key.attempt, node_id=self._node_id, report=said
        )
        try:
            await handle.signal("engine", notice)
        except RPCError as error:
            if is_unknown(error):
                _log.warning("service %s is not there: nobody hears of %s", spec.service, key)
                return True
            _log.warning("service %s did not hear of %s: %r", spec.service, key, error)
            return False
        return True
