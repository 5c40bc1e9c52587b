"""One node: admits its agent, watches it, drains it, and declares it lost."""

import asyncio
import contextlib
from datetime import timedelta
from typing import cast

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.job_starts import as_summary
    from longshore.activities.node.process import NodeActivities
    from longshore.activities.registry import RegistryActivities
    from longshore.models.data import HeldReport
    from longshore.models.departures import (
        CORDONED_BY_HAND,
        DISK_REFUSES,
        DRAINED_BY_HAND,
        ExpiryChange,
        NodeDrain,
        SpotNotice,
    )
    from longshore.models.errors import NodeTakenError, StaleError, TokenError
    from longshore.models.messages import NODE_WORKFLOW, CommandReason, node_task_queue
    from longshore.models.node import NodeState
    from longshore.models.node_messages import (
        DrainRequest,
        NodeEnd,
        NodeInput,
        NodeStatus,
        Registered,
        Registration,
        WatchReport,
        WatchRequest,
    )
    from longshore.models.protocol import COUNTS_HEARTBEATS
    from longshore.workflows import versions
    from longshore.workflows.arguments import Started
    from longshore.workflows.described import described_update
    from longshore.workflows.drain import DrainLoop
    from longshore.workflows.holdings import HeldReports
    from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT

_FIRST_REGISTRATION = timedelta(minutes=5)
_ONE_WATCH = timedelta(hours=12)
_COMES_BACK = timedelta(seconds=20)
"""An agent that was cut off tries to register every ten seconds at least."""


@workflow.defn(name=NODE_WORKFLOW)
class NodeWorkflow(Started):
    """A node from its registration until its agent is lost or leaves; one run of the workflow
    chain may see several registrations (epochs) of the same agent. It continues as new after
    `max_watches_per_run` watches, and on the newer version of its worker once there is one."""

    @workflow.init
    def __init__(self, node: NodeInput) -> None:
        self._node_id = node.node_id
        self._registered = node.registered
        self._identity = node.identity
        self._drain_reason = node.drain_reason
        self._watches = node.watches
        self._counts_heartbeats = node.counts_heartbeats
        self._fell_silent = False
        """The last watch ended for want of a heartbeat: this is the second call."""
        self._clearing = DrainLoop(node, self._live_epoch)
        self._lock = asyncio.Lock()
        self._held = HeldReports(node.node_id, self._live_epoch)
        self._state = NodeState.READY if node.registered else NodeState.GONE
        self._reason = "" if node.registered else "not registered yet"
        self._since = workflow.now()

    @workflow.run
    async def run(self, node: NodeInput) -> NodeStatus:
        self._show()
        clearing = asyncio.create_task(self._clearing.keep())
        try:
            return await self._live(node)
        finally:
            clearing.cancel()

    async def _live(self, node: NodeInput) -> NodeStatus:
        while await self._has_registration():
            await self._watch_until_over()
            if self._should_continue_as_new(node) and self._state is NodeState.READY:
                # A look that is under way is made again by the next run: nothing to wait for.
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(
                    self._carried(node), initial_versioning_behavior=versions.NEWEST
                )
        return self.status()

    @workflow.signal(description="Look whether there is a newer version of the worker")
    def wake(self) -> None:
        """Look whether there is a newer version of the worker: nobody else says so."""

    @described_update("An agent asks to be admitted, and gets an epoch")
    async def register(self, registration: Registration) -> Registered:
        """Admit an agent and give it an epoch. Fails with TokenError or NodeTakenError."""
        identity = registration.identity
        if identity.node_id != self._node_id and workflow.patched("node-of-another-id"):
            raise ApplicationError(
                f"an agent of node {identity.node_id} cannot register as {self._node_id}",
                type=TokenError.__name__,
                non_retryable=True,
            )
        async with self._lock:
            if self._live_agent_is_another(registration):
                assert self._identity is not None
                raise ApplicationError(
                    f"node {self._node_id} already has a live agent (started as "
                    f"{self._identity.boot_id[:8]}, registered {self._since:%Y-%m-%d %H:%M:%S} "
                    "UTC). Stop that one, or give this one another --node-id.",
                    type=NodeTakenError.__name__,
                    non_retryable=True,
                )
            registered = await self._register(registration)
            has = registration.inventory.gpus_in_words
            self._identity = identity
            self._registered = registered.model_copy(update={"gpus": has, "adopted": ()})
            self._counts_heartbeats = registration.speaks >= COUNTS_HEARTBEATS
            self._drain_reason = registered.drain_reason
            self._enter(NodeState.READY)
            self._clearing.registered(registered.expires_at)
        return registered

    @described_update("Take no new job; what runs there goes on")
    async def cordon(self, command: CommandReason) -> NodeStatus:
        """Take no new job; what runs there goes on. Where that is so already, an agent whose disk
        refuses leaves it as it was."""
        its_disk = command.reason.startswith(DISK_REFUSES)
        if its_disk and self._drain_reason and workflow.patched("keep-earlier-drain"):
            return self.status()
        return await self._close(NodeDrain(reason=command.reason or CORDONED_BY_HAND))

    @described_update("Take jobs again")
    async def uncordon(self, command: CommandReason) -> NodeStatus:
        """Take jobs again; whom a drain has asked to leave leaves all the same."""
        return await self._open()

    @described_update("Take jobs again where this is still why it takes none")
    async def lift(self, command: CommandReason) -> NodeStatus:
        """Take jobs again where the given reason is still why the node takes none."""
        return await self._open(command.reason)

    @described_update("Take no new job, and move those that run there if it says so")
    async def drain(self, drain: NodeDrain) -> NodeStatus:
        """Take no new job, and move those that run there where the command says `move`."""
        return await self._close(drain)

    @described_update("The older name of `uncordon`")
    async def undrain(self, command: CommandReason) -> NodeStatus:
        """Do what `uncordon` does, by its older name."""
        return await self._open()

    @described_update("The node ends at another time than was known, or never")
    async def expiry_changed(self, change: ExpiryChange) -> NodeStatus:
        """The node ends at another time than was known, or never."""
        async with self._lock:
            if change.expires_at != self._clearing.expires_at:
                await self._clearing.change_expiry(change.expires_at)
        return self.status()

    @workflow.signal(
        description="A job has come that may have to leave soon: look at what runs there"
    )
    def look(self) -> None:
        """A job has come that may have to leave before the next look was planned."""
        self._clearing.look_again()

    @workflow.signal(
        description="The machine is about to be taken away: its jobs leave at once, if they can"
    )
    def spot_notice(self, notice: SpotNotice) -> None:
        """The machine is about to be taken away: its jobs leave at once, if they can."""
        self._clearing.heard(notice)

    @workflow.signal(description="The agent says which data sets, images and environments it has")
    async def holds(self, report: HeldReport) -> None:
        """The agent says what its node holds, in place of what it said before."""
        await self._held.take(report)

    @cordon.validator
    def _cordon_needs_a_node(self, command: CommandReason) -> None:
        self._needs_a_node()

    @uncordon.validator
    def _uncordon_needs_a_node(self, command: CommandReason) -> None:
        self._needs_a_node()

    @lift.validator
    def _lift_needs_a_node(self, command: CommandReason) -> None:
        self._needs_a_node()

    @drain.validator
    def _drain_needs_a_node(self, drain: NodeDrain) -> None:
        self._needs_a_node()

    @undrain.validator
    def _undrain_needs_a_node(self, command: CommandReason) -> None:
        self._needs_a_node()

    @expiry_changed.validator
    def _expiry_needs_a_node(self, change: ExpiryChange) -> None:
        self._needs_a_node()

    @workflow.query(description="Whether the node takes work, and since when")
    def status(self) -> NodeStatus:
        why = self._drain_reason or self._clearing.cordon
        draining = bool(why) and self._state is NodeState.READY
        return NodeStatus(
            node_id=self._node_id,
            state=NodeState.DRAINING.value if draining else self._state.value,
            epoch=self._registered.epoch if self._registered else 0,
            draining=draining,
            clearing=draining and bool(self._clearing.drain or self._clearing.cordon),
            expires_at=self._clearing.expires_at,
            reason=why if draining else self._reason,
            since=self._since,
        )

    async def _has_registration(self) -> bool:
        """Return whether a registered agent is to be watched, waiting for one that is coming."""
        if self._state is NodeState.READY:
            return True
        if self._registered is None:
            try:
                await workflow.wait_condition(self._is_ready, timeout=_FIRST_REGISTRATION)
            except TimeoutError:
                self._reason = "no agent was admitted"
        # Over; but an agent may be registering at this very moment, perhaps for long.
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._is_ready()

    async def _watch_until_over(self) -> None:
        """Watch one registration until it ends, a newer one takes its place, or the watch is to
        go on under a newer version of the worker."""
        registered = self._registered
        assert registered is not None
        self._watches += 1
        watch = workflow.start_activity_method(
            NodeActivities.watch_agent,
            WatchRequest(
                node_id=self._node_id, epoch=registered.epoch, liveness=registered.liveness
            ),
            task_queue=node_task_queue(self._node_id),
            # Not answering within this, it is lost: also how a second call after silence ends.
            schedule_to_start_timeout=registered.liveness.recall_timeout,
            heartbeat_timeout=registered.liveness.heartbeat_timeout,
            start_to_close_timeout=_ONE_WATCH,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"watch epoch {registered.epoch}",
        )
        await workflow.wait_condition(
            lambda: watch.done() or self._epoch() != registered.epoch or self._can_move()
        )
        if not watch.done():
            watch.cancel()
            with contextlib.suppress(ActivityError):
                await watch
            return
        second = self._fell_silent and self._counts_heartbeats
        over = await _how_it_ended(watch, second_call=second)
        self._fell_silent = over is None
        if over is not None and over[0] is NodeState.LOST and _refused(watch):
            await self._wait_for_registration(registered)
        if over is not None:
            async with self._lock:
                if self._epoch() == registered.epoch:
                    await self._end(registered, *over)

    async def _wait_for_registration(self, registered: Registered) -> None:
        """Let an agent that was cut off register again, as it will: it is not lost, and then tells
        how its processes have ended."""
        if workflow.patched("wait-after-cut"):
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._epoch() != registered.epoch, timeout=_COMES_BACK
                )

    async def _end(self, registered: Registered, state: NodeState, reason: str) -> None:
        end = await workflow.execute_activity_method(
            RegistryActivities.end_node,
            NodeEnd(node_id=self._node_id, epoch=registered.epoch, state=state, reason=reason),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary=as_summary(f"{state.value}: {reason}"),
        )
        # Earlier workers returned nothing: then it ended as was said.
        ended = cast(NodeEnd | None, end)
        self._enter(ended.state if ended else state, ended.reason if ended else reason)

    async def _register(self, registration: Registration) -> Registered:
        try:
            return await workflow.execute_activity_method(
                RegistryActivities.register_node,
                registration,
                start_to_close_timeout=DATABASE_TIMEOUT,
                retry_policy=DATABASE_RETRY,
                summary=f"register boot {registration.identity.boot_id[:8]}",
            )
        except ActivityError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError):
                raise ApplicationError(cause.message, type=cause.type) from error
            raise

    async def _close(self, drain: NodeDrain) -> NodeStatus:
        async with self._lock:
            self._drain_reason = drain.reason or DRAINED_BY_HAND
            await self._set_draining(True, clearing=drain.move)
            self._clearing.set_drain(drain, self._drain_reason)
        self._show()
        return self.status()

    async def _open(self, reason: str | None = None) -> NodeStatus:
        async with self._lock:
            if reason not in (None, self._drain_reason):
                return self.status()
            self._drain_reason = None
            await self._set_draining(False)
            self._clearing.forget()  # afterwards: the next look may close it again
        self._show()
        return self.status()

    async def _set_draining(self, draining: bool, *, clearing: bool = False) -> None:
        assert self._registered is not None
        await workflow.execute_activity_method(
            RegistryActivities.drain_node,
            DrainRequest(
                node_id=self._node_id, epoch=self._registered.epoch, draining=draining,
                reason=self._drain_reason or "", clearing=clearing,
            ),
            start_to_close_timeout=DATABASE_TIMEOUT, retry_policy=DATABASE_RETRY,
            summary="drain" if draining else "undrain",
        )  # fmt: skip

    def _live_agent_is_another(self, registration: Registration) -> bool:
        # The same agent id means the same work folder, whose lock lets only one agent run.
        return (
            self._state is NodeState.READY
            and self._identity is not None
            and self._identity.agent_id != registration.identity.agent_id
        )

    def _needs_a_node(self) -> None:
        if self._state is not NodeState.READY:
            raise ApplicationError(f"node {self._node_id} has no live agent: {self._reason}")

    def _is_ready(self) -> bool:
        return self._state is NodeState.READY

    def _epoch(self) -> int:
        return self._registered.epoch if self._registered else 0

    def _live_epoch(self) -> int | None:
        return self._epoch() if self._state is NodeState.READY else None

    def _can_move(self) -> bool:
        # Not while a handler waits for its database: nobody would watch the agent meanwhile.
        return versions.is_outdated() and workflow.all_handlers_finished()

    def _should_continue_as_new(self, node: NodeInput) -> bool:
        done = self._watches - node.watches
        return (
            done >= node.max_watches_per_run
            or workflow.info().is_continue_as_new_suggested()
            or versions.is_outdated()
        )

    def _carried(self, node: NodeInput) -> NodeInput:
        return node.model_copy(
            update={
                "registered": self._registered,
                "identity": self._identity,
                "drain_reason": self._drain_reason,
                "watches": self._watches,
                "counts_heartbeats": self._counts_heartbeats,
                **self._clearing.carried(),
            }
        )

    def _enter(self, state: NodeState, reason: str = "") -> None:
        self._state, self._reason, self._since = state, reason, workflow.now()
        self._show()

    def _show(self) -> None:
        """Say what the node does, on the card that the Temporal UI shows."""
        registered = self._registered
        lines = [f"**{self._state.value}** since {self._since:%Y-%m-%d %H:%M:%S} UTC"]
        lines += [self._reason] if self._reason else []
        lines += [f"Takes no new job: {self._drain_reason}"] if self._drain_reason else []
        if registered:
            has = [registered.gpus] if registered.gpus else []
            lines += [*has, f"Registration {registered.epoch}"]
            lines += [f"Who holds them: `longshore nodes {self._node_id}`"]
        workflow.set_current_details("\n\n".join(lines))


def _refused(watch: "workflow.ActivityHandle[WatchReport]") -> bool:
    """Return whether the agent lives and says that this registration is over."""
    error = watch.exception()
    cause = error.cause if isinstance(error, ActivityError) else None
    return isinstance(cause, ApplicationError) and cause.type == StaleError.__name__


async def _how_it_ended(
    watch: "workflow.ActivityHandle[WatchReport]", *, second_call: bool
) -> tuple[NodeState, str] | None:
    """Return how the registration ended, or None when the agent is to be called again.

    A call is taken by the SDK of an agent, also where the agent itself hangs. So a `second_call`
    that ends without a single heartbeat was not answered.
    """
    try:
        report = await watch
    except ActivityError as error:
        cause = error.cause
        if not isinstance(cause, ActivityTimeoutError):
            return NodeState.LOST, f"its agent refused to be watched: {cause}"
        if cause.type == TimeoutType.SCHEDULE_TO_START:
            return NodeState.LOST, "its agent is silent"
        heard = bool(cause.last_heartbeat_details)
        unheard = cause.type == TimeoutType.HEARTBEAT and second_call and not heard
        if unheard and workflow.patched("hung-agents"):
            return NodeState.LOST, "its agent hangs: it takes calls and answers none"
        return None  # silent for a moment, or watched for long enough: call again
    return NodeState.GONE, report.reason
