"""A worker deployment: which version of the control worker gets the work.

Temporal gives work to a versioned worker only when its version is current, or ramping. Jobs go
over to the current version with their next step; pools and nodes are moved
(client.version_migration).
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.deployment.v1 import WorkerDeploymentInfo
from temporalio.api.enums.v1 import (
    TaskQueueType,
    WorkerDeploymentVersionStatus,
    WorkerVersioningMode,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerDeploymentRequest,
    ListWorkerDeploymentsRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.pollers import poll_time
from longshore.client.version_migration import Mover
from longshore.models.deployment import (
    DEFAULT_DEPLOYMENT,
    DeploymentView,
    Moved,
    Trouble,
    VersionState,
    VersionView,
    WorkerVersion,
)
from longshore.models.errors import LongshoreError, NotFoundError, RefusedError, UnavailableError
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JOB_WORKFLOW,
    NODE_WORKFLOW,
    POOL_WORKFLOW,
)
from longshore.models.text import count

ASKED_WITHIN = timedelta(seconds=75)
"""A request for work waits at the server for up to a minute before the next one comes."""
_PATIENCE = timedelta(seconds=15)
"""Of each call; the server takes some questions about one deployment a second, and no more."""
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
_STATUS = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_Summary = WorkerDeploymentInfo.WorkerDeploymentVersionSummary


class Deployments:
    """One worker deployment of control workers."""

    def __init__(self, temporal: Client, name: str) -> None:
        self._temporal = temporal
        self.name = name

    async def status(self) -> DeploymentView:
        """Return the versions, which of them has workers, and what runs on each.

        A deployment that no worker has named has no versions. Raises UnavailableError.
        """
        try:
            info = await self._describe()
            now = await poll_time(self._temporal)
            workers = _pollers(await _control_queue(self._temporal), now)
            versions = [
                await self._version(each, workers[self.name, each.deployment_version.build_id])
                for each in info.version_summaries
            ]
        except RPCError as error:
            raise self._as_ours(error) from error
        routing = info.routing_config
        view = DeploymentView(
            name=self.name,
            current=routing.current_deployment_version.build_id or None,
            ramping=routing.ramping_deployment_version.build_id or None,
            ramp_percent=routing.ramping_version_percentage,
            versions=tuple(versions),
            unversioned_workers=workers["", ""],
        )
        return view.model_copy(update={"trouble": trouble_with(view)})

    async def set_current(self, build_id: str, *, force: bool = False) -> Moved:
        """Give new work to this version, and have pools and nodes go over to it.

        Those whose own version has no worker any more stay; with `force` they are moved as they
        are, and this version must agree with all that they have done. Raises NotFoundError for a
        version that no worker has named, RefusedError when the server does not want it.
        """
        mover = self.mover(build_id)
        try:
            # Not from the reply: a call that is made again finds its own version current.
            before = (await self._describe()).routing_config.current_deployment_version
            service = self._temporal.workflow_service
            await service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=self._temporal.namespace, deployment_name=self.name,
                    build_id=build_id, identity=self._temporal.identity,
                ),
                retry=True,
                timeout=_PATIENCE,
            )  # fmt: skip
            moved, stayed = await mover.wake()
            if force:
                forced, stayed = await mover.force(stayed)
                moved |= forced
        except RPCError as error:
            raise self._as_ours(error, build_id) from error
        return Moved(
            build_id=build_id,
            previous=before.build_id or None,
            moved=tuple(sorted(moved)),
            stayed=tuple(sorted(stayed)),
        )

    def mover(self, build_id: str) -> Mover:
        """Return what brings pools and nodes to this version."""
        return Mover(self._temporal, WorkerVersion(deployment=self.name, build_id=build_id))

    async def is_current(self, build_id: str) -> bool:
        """Return whether new work goes to this version. Raises RPCError."""
        routing = (await self._describe()).routing_config
        return routing.current_deployment_version.build_id == build_id

    async def ramp(self, build_id: str, percent: float) -> None:
        """Give this share of new work and of jobs to this version. Raises as `set_current`."""
        try:
            service = self._temporal.workflow_service
            await service.set_worker_deployment_ramping_version(
                SetWorkerDeploymentRampingVersionRequest(
                    namespace=self._temporal.namespace, deployment_name=self.name,
                    build_id=build_id, percentage=percent, identity=self._temporal.identity,
                ),
                retry=True,
                timeout=_PATIENCE,
            )  # fmt: skip
        except RPCError as error:
            raise self._as_ours(error, build_id) from error

    async def _describe(self) -> WorkerDeploymentInfo:
        try:
            reply = await self._temporal.workflow_service.describe_worker_deployment(
                DescribeWorkerDeploymentRequest(
                    namespace=self._temporal.namespace, deployment_name=self.name
                ),
                retry=True,
                timeout=_PATIENCE,
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return WorkerDeploymentInfo(name=self.name)
            raise
        return reply.worker_deployment_info

    async def _version(self, summary: _Summary, workers: int) -> VersionView:
        build_id = summary.deployment_version.build_id
        return VersionView(
            build_id=build_id,
            state=_state(summary),
            workers=workers,
            pools=await self._count(POOL_WORKFLOW, build_id),
            nodes=await self._count(NODE_WORKFLOW, build_id),
            jobs=await self._count(JOB_WORKFLOW, build_id),
            created_at=summary.create_time.ToDatetime(tzinfo=UTC),
        )

    async def _count(self, workflow_type: str, build_id: str) -> int:
        found = await self._temporal.count_workflows(
            f"ExecutionStatus = 'Running' AND TaskQueue = '{CONTROL_TASK_QUEUE}' "
            f"AND WorkflowType = '{workflow_type}' "
            f"AND TemporalWorkerDeploymentVersion = '{self.name}:{build_id}'"
        )
        return found.count

    def _as_ours(self, error: RPCError, build_id: str = "") -> LongshoreError:
        if error.status is RPCStatusCode.NOT_FOUND and build_id:
            return NotFoundError(
                f"deployment {self.name} has no version {build_id}: start a worker of it first "
                "(longshore deployment status lists those that there are)"
            )
        if error.status in (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.INVALID_ARGUMENT):
            return RefusedError(f"Temporal refused: {error.message}")
        return UnavailableError(f"Temporal does not answer: {error.message}")


async def deployments_in_use(temporal: Client) -> tuple[str, ...]:
    """Return the deployments whose workers asked for work lately, those that get what is new
    without any, and those that hold pools and nodes. Raises RPCError."""
    now = await poll_time(temporal)
    queue = await _control_queue(temporal)
    routing = queue.versioning_info
    named = {name for name, _ in _pollers(queue, now)}
    named.add(routing.current_deployment_version.deployment_name)
    named.add(routing.ramping_deployment_version.deployment_name)
    others = await _deployments_there(temporal) - named
    named |= {name for name in others if await _holds_any(temporal, name)}
    return tuple(sorted(named - {""}))


def trouble_with(view: DeploymentView) -> Trouble | None:
    """Return the first thing that keeps work waiting or a version from ending, if any."""
    serving = [version.build_id for version in view.versions if version.workers]
    if view.current is None and serving and not view.unversioned_workers:
        return Trouble(
            says="no version is current, so the workers that there are get no work",
            mend=f"Run `{_set_current(view, serving[0])}`.",
        )
    if view.current is not None and view.current not in serving:
        return Trouble(
            says=f"version {view.current} is current, and no worker of it asks for work",
            mend=_start_again(view, view.current, serving),
        )
    if view.ramping is not None and view.ramp_percent and view.ramping not in serving:
        return Trouble(
            says=f"version {view.ramping} gets {view.ramp_percent:g} % of new work, and no worker "
            "of it asks for any",
            mend=f"{_start_one(view, view.ramping)}; or give it no more work: "
            f"`{_command(view, 'ramp', view.ramping)} --percent 0`.",
        )
    for version in view.versions:
        if version.build_id in (view.current, view.ramping) or not version.long_lived:
            continue
        if view.current is not None:
            return _left_behind(view, version, view.current)
        if not version.workers:
            return _left_without_current(view, version, serving)
    return None


def _start_again(view: DeploymentView, current: str, serving: Sequence[str]) -> str:
    """Return how the version that is current, and has no worker, stops keeping work waiting."""
    mend = _start_one(view, current)
    if serving:
        return f"{mend}; or make one current that has: `{_set_current(view, serving[0])}`."
    if view.unversioned_workers:
        # What the version holds goes over with its next run alone, for which it needs a worker.
        return (
            f"{mend}. To go back to workers without a version, run `temporal worker deployment "
            f"set-current-version --deployment-name {shlex.quote(view.name)} --unversioned` while "
            "it runs, and stop it once no pools and nodes are on it."
        )
    return f"{mend}."


def _start_one(view: DeploymentView, build_id: str) -> str:
    """Return the command that starts a worker of a version, as the beginning of a sentence."""
    version = WorkerVersion(deployment=view.name, build_id=build_id)
    settings = " ".join(f"{name}={shlex.quote(word)}" for name, word in version.environment)
    return f"Start one: `{settings} longshore worker`"


def _set_current(view: DeploymentView, build_id: str) -> str:
    return _command(view, "set-current", build_id)


def _command(view: DeploymentView, what: str, build_id: str) -> str:
    name = "" if view.name == DEFAULT_DEPLOYMENT else f" --name {shlex.quote(view.name)}"
    return f"longshore deployment {what} {shlex.quote(build_id)}{name}"


def _left_behind(view: DeploymentView, version: VersionView, current: str) -> Trouble:
    if not version.workers:
        return Trouble(
            says=f"{version.long_lived} pools and nodes are on version {version.build_id}, which "
            "has no worker left",
            mend="Start one of it again, or move them as they are: "
            f"`{_set_current(view, current)} --force`.",
        )
    return Trouble(
        says=f"{version.long_lived} pools and nodes are still on version {version.build_id}",
        mend=f"`{_set_current(view, current)}` wakes them.",
        holds_up_work=False,
    )


def _left_without_current(
    view: DeploymentView, version: VersionView, serving: Sequence[str]
) -> Trouble:
    held = [
        count(version.pools, "pool") if version.pools else "",
        count(version.nodes, "node") if version.nodes else "",
    ]
    verb = "is" if version.long_lived == 1 else "are"
    mend = (
        f"{_start_one(view, version.build_id)}, and stop it once `longshore deployment status` "
        "shows no pools and nodes on it: they go over with their next run"
    )
    if serving:
        mend += (
            "; or move them as they are to a version that has workers: "
            f"`{_set_current(view, serving[0])} --force`"
        )
    return Trouble(
        says=f"{' and '.join(filter(None, held))} {verb} on version {version.build_id}, which has "
        "no worker left, and no version is current",
        mend=f"{mend}.",
    )


async def _deployments_there(temporal: Client) -> set[str]:
    """Return the names of all deployments of the namespace, also of other applications."""
    names: set[str] = set()
    page = b""
    while True:
        reply = await temporal.workflow_service.list_worker_deployments(
            ListWorkerDeploymentsRequest(namespace=temporal.namespace, next_page_token=page),
            retry=True,
            timeout=_PATIENCE,
        )
        names.update(each.name for each in reply.worker_deployments)
        page = reply.next_page_token
        if not page:
            return names


async def _holds_any(temporal: Client, name: str) -> bool:
    """Return whether pools or nodes are on a version of a deployment."""
    found = await temporal.count_workflows(
        f"ExecutionStatus = 'Running' AND TaskQueue = '{CONTROL_TASK_QUEUE}' "
        f"AND WorkflowType IN ('{POOL_WORKFLOW}', '{NODE_WORKFLOW}') "
        f"AND TemporalWorkerDeployment = '{name}'"
    )
    return found.count > 0


async def _control_queue(temporal: Client) -> DescribeTaskQueueResponse:
    """Return who asks for workflows, and which version gets what is new."""
    return await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=CONTROL_TASK_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        timeout=_PATIENCE,
    )


def _pollers(queue: DescribeTaskQueueResponse, now: datetime) -> Counter[tuple[str, str]]:
    """Count those that asked for workflows lately, by deployment and build; two empty words for
    unversioned ones. `now` is by the server's clock."""
    workers: Counter[tuple[str, str]] = Counter()
    for poller in queue.pollers:
        options = poller.deployment_options
        if now - poller.last_access_time.ToDatetime(tzinfo=UTC) < ASKED_WITHIN:
            key = (options.deployment_name, options.build_id)
            workers[key if options.worker_versioning_mode == _VERSIONED else ("", "")] += 1
    return workers


def _state(summary: _Summary) -> VersionState:
    name = WorkerDeploymentVersionStatus.Name(summary.status).removeprefix(_STATUS).lower()
    if name == "created":
        return VersionState.INACTIVE
    known = {state.value for state in VersionState}
    return VersionState(name) if name in known else VersionState.UNKNOWN
