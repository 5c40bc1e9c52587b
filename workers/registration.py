"""Admitting a node: the agent's first call, and its call after it was cut off."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from temporalio.client import (
    Client,
    RPCError,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime

from longshore.activities.failpoints import wall_clock
from longshore.activities.node.fence import Fence
from longshore.activities.node.system import boot_clock
from longshore.client.connection import connect
from longshore.models import proof
from longshore.models.errors import (
    ClockError,
    LongshoreError,
    NodeTakenError,
    NotFoundError,
    RefusedError,
    TokenError,
    UnavailableError,
)
from longshore.models.messages import CONTROL_TASK_QUEUE, NODE_WORKFLOW, node_workflow_id
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.node_messages import NodeInput, Registered, Registration
from longshore.models.placement import PlacementKey
from longshore.models.protocol import PROTOCOL
from longshore.models.settings import Settings

ANSWER_WITHIN = 15.0
"""Seconds after which a registration without an answer is sent again, under the same id."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0
ANSWER_SOON, WAIT_SOON = 3.0, 1.0
"""The same where engines go on: once the server is back, the agent has to be heard before its node
counts as lost (half of `node_lost_after`), and within a try the SDK waits ever longer."""

Sign = Callable[[str, Registration], Registration]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_REFUSALS: dict[str, type[LongshoreError]] = {
    **{
        error.__name__: error
        for error in (TokenError, ClockError, NodeTakenError, RefusedError, NotFoundError)
    },
    "DataError": RefusedError,
    "SpecError": RefusedError,
}
"""By the type of a failure. What the database did not take as data, it will not take later; nor
can what cannot be read be read later."""


class Survivors(Protocol):
    """What runs on a node and may go on under another registration."""

    def outliving(self) -> Sequence[PlacementKey]:
        """Return what runs."""
        ...

    async def keep_only(self, adopted: Collection[PlacementKey]) -> None:
        """End what does not go on; returns when nothing of that is left."""
        ...


async def connect_patiently(
    settings: Settings, runtime: Runtime | None = None, survivors: Survivors | None = None
) -> Client:
    """Return a client as soon as the server answers, however long that takes."""
    return await _patiently(
        lambda: connect(settings, runtime=runtime, service="longshore-agent"), survivors
    )


class Registrar:
    """Registers one node under its identity, as often as it is cut off."""

    def __init__(
        self, client: Client, identity: NodeIdentity, inventory: Inventory, token: str
    ) -> None:
        self._client = client
        self.identity = identity
        self._inventory = inventory
        self._token = token
        self._survivors: Survivors | None = None
        self.drain_reason: str | None = None
        """Why the node takes no jobs, as it was told at its last registration."""

    @property
    def node_id(self) -> str:
        return self.identity.node_id

    async def register(
        self, fence: Fence, *, cut_off: bool = False, survivors: Survivors | None = None
    ) -> Registered:
        """Register until it is answered, and open the fence for the new epoch: once of the
        `survivors` those are left alone that the server has go on.

        `cut_off` tells why there is another registration: the server had been silent. A node that
        was admitted before and whose clock has jumped since waits until it is set right.
        Raises TokenError or NodeTakenError when the node is refused.
        """
        self._survivors = survivors
        sign = proof.sign
        while True:
            # A registration after a cut is one of a new life: it must get a new epoch. And one
            # that was refused stays so: the server remembers its answer to a boot id.
            identity = self.identity.model_copy(update={"boot_id": uuid.uuid4().hex})
            # Counted from the first call, as that may be the one that the server answers.
            sent_at = boot_clock()
            try:
                call = partial(self._call, identity, sign, cut_off=cut_off)
                registered = await _patiently(call, survivors)
                break
            except ClockError as error:
                if not cut_off:
                    raise
                _log.warning("%s Trying again in %g s.", error, LONGEST_WAIT)
                await asyncio.sleep(LONGEST_WAIT)
            except TokenError:
                if sign is proof.sign_as_before:
                    raise
                # A control worker of the version before takes the new proof for a wrong token.
                sign = proof.sign_as_before
        self.drain_reason = registered.drain_reason
        if survivors:
            await survivors.keep_only(registered.adopted)
        fence.open(registered.epoch, registered.liveness.fence_after.total_seconds(), sent_at)
        _log.info("registered as node %s, epoch %d", registered.node_id, registered.epoch)
        return registered

    async def _call(self, identity: NodeIdentity, sign: Sign, *, cut_off: bool) -> Registered:
        start = WithStartWorkflowOperation(
            NODE_WORKFLOW,
            NodeInput(node_id=identity.node_id),
            id=node_workflow_id(identity.node_id),
            task_queue=CONTROL_TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"node {identity.node_id}",
        )
        engines = tuple(self._survivors.outliving()) if self._survivors else ()
        within = ANSWER_SOON if engines else ANSWER_WITHIN
        claim = Registration(
            identity=identity,
            inventory=self._inventory,
            issued_at=wall_clock(),
            cut_off=cut_off,
            counts_heartbeats=True,
            protocol=PROTOCOL,
            engines=engines,
        )
        registration = sign(self._token, claim)
        try:
            async with asyncio.timeout(within):
                return await self._client.execute_update_with_start_workflow(
                    "register",
                    registration,
                    start_workflow_operation=start,
                    id=identity.boot_id,
                    result_type=Registered,
                )
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            raise UnavailableError(
                f"no control worker answered within {within:g} s. Start one with `longshore up`."
            ) from None
        except RPCError as error:
            raise UnavailableError(f"Temporal does not answer ({error.message}).") from error
        except WorkflowUpdateFailedError as error:
            raise _refusal(error) from error


def _refusal(error: WorkflowUpdateFailedError) -> LongshoreError:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type in _REFUSALS:
        return _REFUSALS[cause.type](cause.message)
    return UnavailableError(f"the registration failed: {cause}")


async def _patiently(call: Callable[[], Awaitable[T]], survivors: Survivors | None = None) -> T:
    """Repeat a call while a server is away, less and less often; other errors are raised."""
    wait = FIRST_WAIT
    while True:
        try:
            return await call()
        except UnavailableError as error:
            _log.warning("%s Trying again in %g s.", error, wait)
        await asyncio.sleep(wait)
        engines = survivors is not None and survivors.outliving()
        wait = min(wait * 2, WAIT_SOON if engines else LONGEST_WAIT)
