"""A control worker as one version of a worker deployment.

Jobs differ from pools and nodes, and agents are never versioned:
docs/decisions/0009-worker-deployments.md says why.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from longshore.client.deployments import Deployments
from longshore.models.deployment import WorkerVersion
from longshore.models.errors import LongshoreError
from longshore.workflows.array import ArrayWorkflow
from longshore.workflows.block import BlockWorkflow
from longshore.workflows.buying import BuyingWorkflow
from longshore.workflows.checkpoints import CheckpointWatchWorkflow
from longshore.workflows.dag import DagWorkflow
from longshore.workflows.job import JobWorkflow
from longshore.workflows.market import MarketWatchWorkflow
from longshore.workflows.node import NodeWorkflow
from longshore.workflows.ping import PingWorkflow
from longshore.workflows.pinned import PinnedNodeWorkflow, PinnedPoolWorkflow
from longshore.workflows.pool import PoolWorkflow
from longshore.workflows.price import PriceWorkflow
from longshore.workflows.purchase import PurchaseWorkflow
from longshore.workflows.reconcile import ReconcileWorkflow
from longshore.workflows.schedule_run import ScheduleRunWorkflow
from longshore.workflows.service import ServiceWorkflow

WORKFLOWS = (
    JobWorkflow, ArrayWorkflow, DagWorkflow, ScheduleRunWorkflow, PoolWorkflow, NodeWorkflow,
    ReconcileWorkflow, MarketWatchWorkflow, BuyingWorkflow, PurchaseWorkflow, BlockWorkflow,
    PriceWorkflow, CheckpointWatchWorkflow, ServiceWorkflow, PingWorkflow,
)  # fmt: skip
VERSIONED_WORKFLOWS = (
    JobWorkflow, ArrayWorkflow, DagWorkflow, ScheduleRunWorkflow, PinnedPoolWorkflow,
    PinnedNodeWorkflow, ReconcileWorkflow, MarketWatchWorkflow, BuyingWorkflow, PurchaseWorkflow,
    BlockWorkflow, PriceWorkflow, CheckpointWatchWorkflow, ServiceWorkflow, PingWorkflow,
)  # fmt: skip
POLL_EVERY = 10.0
_KNOWN_WITHIN = 60.0
_ASK_EVERY = 0.5

logger = logging.getLogger("longshore.workers.versioning")


def workflows_of(version: WorkerVersion | None) -> Sequence[type]:
    """Return the classes that a control worker registers."""
    return WORKFLOWS if version is None else VERSIONED_WORKFLOWS


def deployment_config(version: WorkerVersion | None) -> WorkerDeploymentConfig | None:
    """Return what makes a worker this version; None for an unversioned one."""
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(version.deployment, version.build_id),
        use_worker_versioning=True,
        # Of jobs, which say nothing themselves: they go over with their next step.
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


async def look_after(
    temporal: Client, version: WorkerVersion, *, set_current: bool, every: float = POLL_EVERY
) -> None:
    """Have pools and nodes follow whenever this version is current, until cancelled.

    Whoever makes it current may know nothing of them: Temporal's own command line, its controller
    for Kubernetes. With `set_current` this version is made current first, once the server knows
    it; the worker must be asking for work meanwhile.
    """
    deployment = Deployments(temporal, version.deployment)
    if set_current:
        await _become_current(deployment, version.build_id)
    mover = deployment.mover(version.build_id)
    while True:
        try:
            if await deployment.is_current(version.build_id):
                _tell(version.build_id, *await mover.wake())
        except RPCError as error:
            logger.debug("cannot look at deployment %s: %s", version.deployment, error.message)
        await asyncio.sleep(every)


async def _become_current(deployment: Deployments, build_id: str) -> None:
    """Make this version current; log why that is not possible, if so: the worker goes on."""
    deadline = asyncio.get_running_loop().time() + _KNOWN_WITHIN
    while True:
        try:
            moved = await deployment.set_current(build_id)
        except LongshoreError as error:
            # A version is known, and has its task queues, a moment after it first asked for work.
            if asyncio.get_running_loop().time() > deadline:
                logger.error("version %s is not current: %s", build_id, error)
                return
            await asyncio.sleep(_ASK_EVERY)
            continue
        logger.info("version %s is current", build_id)
        _tell(build_id, moved.moved, moved.stayed)
        return


def _tell(build_id: str, moved: Collection[str], stayed: Collection[str]) -> None:
    if moved:
        logger.info("moved to version %s: %s", build_id, ", ".join(sorted(moved)))
    if stayed:
        names = ", ".join(sorted(stayed))
        logger.warning("stay on another version, and need a worker of it: %s", names)
