"""A control worker as one version of a worker deployment.

Jobs differ from pools and nodes, and agents are never versioned:
docs/decisions/0009-worker-deployments.md says why.
"""

import asyncio
import logging
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from client.deployments import Deployments
from models.deployment import WorkerVersion
from models.errors import LongshoreError, NotFoundError, RefusedError
from workflows.job import JobWorkflow
from workflows.node import NodeWorkflow
from workflows.pinned import PinnedNodeWorkflow, PinnedPoolWorkflow
from workflows.pool import PoolWorkflow
from workflows.reconcile import ReconcileWorkflow

WORKFLOWS = (JobWorkflow, PoolWorkflow, NodeWorkflow, ReconcileWorkflow)
VERSIONED_WORKFLOWS = (JobWorkflow, PinnedPoolWorkflow, PinnedNodeWorkflow, ReconcileWorkflow)
_KNOWN_WITHIN = 60.0
_ASK_EVERY = 0.2

logger = logging.getLogger("workers.versioning")


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


async def become_current(temporal: Client, version: WorkerVersion) -> None:
    """Make this version current as soon as the server knows it, and move pools and nodes to it.

    The worker must be asking for work meanwhile. Raises NotFoundError or RefusedError when the
    server does not want it within a minute, UnavailableError.
    """
    deployment = Deployments(temporal, version.deployment)
    deadline = asyncio.get_running_loop().time() + _KNOWN_WITHIN
    while True:
        try:
            moved = await deployment.set_current(version.build_id)
        except (NotFoundError, RefusedError):
            # A version is known, and has its task queues, a moment after it first asked for work.
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(_ASK_EVERY)
            continue
        logger.info(
            "version %s is current; pools and nodes moved to it: %d",
            version.build_id,
            len(moved.moved),
        )
        if moved.stayed:
            logger.warning("these need a worker of their own version: %s", ", ".join(moved.stayed))
        return


async def try_to_become_current(temporal: Client, version: WorkerVersion) -> None:
    """Do so, and log what comes in between: a worker goes on without being current."""
    try:
        await become_current(temporal, version)
    except LongshoreError as error:
        logger.error("version %s is not current: %s", version.build_id, error)
