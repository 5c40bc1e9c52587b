"""The workflows that live on, as a versioned control worker registers them.

Temporal refuses a versioning behaviour from a worker without a version: so the plain classes have
none, and these add it. A job has no class here: see docs/decisions/0009-worker-deployments.md.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from longshore.models.messages import NODE_WORKFLOW, POOL_WORKFLOW, PoolInput
    from longshore.models.node_messages import NodeInput, NodeStatus

from longshore.workflows.node import NodeWorkflow
from longshore.workflows.pool import PoolWorkflow


@workflow.defn(name=POOL_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class PinnedPoolWorkflow(PoolWorkflow):
    """A pool whose every run stays with the version that it began on."""

    @workflow.init
    def __init__(self, pool: PoolInput) -> None:
        super().__init__(pool)

    @workflow.run
    async def run(self, pool: PoolInput) -> None:
        await super().run(pool)


@workflow.defn(name=NODE_WORKFLOW, versioning_behavior=VersioningBehavior.PINNED)
class PinnedNodeWorkflow(NodeWorkflow):
    """A node whose every run stays with the version that it began on."""

    @workflow.init
    def __init__(self, node: NodeInput) -> None:
        super().__init__(node)

    @workflow.run
    async def run(self, node: NodeInput) -> NodeStatus:
        return await super().run(node)
