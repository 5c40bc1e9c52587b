"""What a job is told: by cycles, nodes, other jobs and people, at any moment of its life."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from longshore.models.array_messages import StopElements
    from longshore.models.base import as_reason
    from longshore.models.funding import PaidFor
    from longshore.models.growth import Growing
    from longshore.models.job_status import JobState
    from longshore.models.messages import (
        CommandReason,
        InterruptRequest,
        LeaseEnd,
        NodeLost,
        Waiting,
    )
    from longshore.models.node_messages import Prepare
    from longshore.models.placement import Placed
    from longshore.models.resize import Resize, ResizeReply, ResizeRequest
    from longshore.models.text import count
    from longshore.workflows import attributes, steps
    from longshore.workflows.described import described_update
    from longshore.workflows.elastic_attempt import Change
    from longshore.workflows.interruption import Interruption
    from longshore.workflows.job_record import JobRecord
    from longshore.workflows.resizing import with_size
    from longshore.workflows.slots import tell_node


class JobHandlers(JobRecord):
    """The signals and updates of a job. They note what was said; its life goes by that."""

    @workflow.signal(description="A cycle has given it GPUs")
    def placed(self, placement: Placed) -> None:
        """A cycle has given the job GPUs for this attempt."""
        if placement.attempt == self._attempt and self._placement is None:
            self._placement = placement
        elif (next_one := self._swaps) is not None and next_one.queued:
            # It may be placed before this workflow knows that it was queued.
            is_next = placement.attempt == self._attempt + 1
            next_one.placement = next_one.placement or (placement if is_next else None)

    @workflow.signal(description="A cycle could not place it, and says why")
    def waiting(self, waiting: Waiting) -> None:
        """A cycle could not place this attempt, and says why; sent now and then."""
        if waiting.attempt == self._attempt and self._state is JobState.QUEUED:
            self._reason = waiting.reason
            self._show()

    @workflow.signal(description="Others pay for its GPUs now, or nobody does any more")
    def paid(self, told: PaidFor) -> None:
        """Others pay for this attempt than before, or nobody does; of a tenant with a budget."""
        if told.attempt == self._attempt and self._state is JobState.RUNNING:
            self._paying.heard(told, workflow.now())
            self._show()
            attributes.tell_funding(self._paying)
        elif isinstance(here := self._placement, Placed) and told.attempt == here.attempt:
            self._placement = here.model_copy(update={"paid": told})  # it begins in a moment

    @workflow.signal(
        description="A cycle expects it to start there: bring what it needs while it waits"
    )
    def prepare(self, told: Prepare) -> None:
        """A cycle expects this attempt to start on these nodes."""
        self._preparing.heard(told)
        if self._placement is None and not self._holding.kept.held and self._cancel is None:
            self._preparing.begin(self._attempt, self._spec)

    @workflow.signal(description="A node where it ran is over")
    def node_lost(self, lost: NodeLost) -> None:
        """A node's registration is over, and so is what ran under it."""
        self._losses.heard(lost)

    @workflow.signal(
        description="Another job gets its GPUs: it is stopped with its grace and queued again"
    )
    def preempt(self, request: InterruptRequest) -> None:
        """Another job gets this attempt's GPUs: it is stopped with its grace and queued again.
        A malleable one that keeps a part of them has another size then."""
        shrinks = request.gpus_left is not None and self._spec.malleable is not None
        if shrinks and request.gpus_left is not None:
            change = Change(request.gpus_left, request.reason, request.for_job)
            if self._asks_in_place(request.attempt, change):
                return
        self._interrupt(LeaseEnd.RESIZED if shrinks else LeaseEnd.PREEMPTED, request)

    @workflow.signal(
        description="GPUs are idle: it has more, in place or by a stop with its grace and a start"
    )
    def grow(self, growing: Growing) -> None:
        """This attempt is to have more GPUs: it is stopped with its grace and queued again, or
        has further ranks where it changes its size in place."""
        sizes = self._spec.malleable
        has = self._attempts[-1].gpus if self._attempts else growing.gpus_before
        if sizes is None or growing.gpus not in sizes.up_to_target:
            return
        # The database knows of a lost rank before the attempt has gone on without it.
        early = has > growing.gpus_before and sizes.in_place
        if has == growing.gpus_before or (early and workflow.patched("grows-after-loss")):
            if sizes.in_place and workflow.patched("grow-in-place"):
                self._asks_in_place(
                    growing.attempt,
                    Change(growing.gpus, growing.reason, grows_from=growing.gpus_before),
                )
                return
            grown = InterruptRequest(attempt=growing.attempt, reason=growing.reason)
            self._interrupt(LeaseEnd.RESIZED, grown)

    @workflow.signal(
        description="It is to leave its node: it is stopped with its grace and queued again"
    )
    def move(self, request: InterruptRequest) -> None:
        """This attempt is to leave its node: it is stopped with its grace and queued again."""
        self._interrupt(LeaseEnd.MOVED, request)

    @workflow.signal(
        description="Keep the job out of placement; one that runs is stopped and queued again"
    )
    def hold(self, command: CommandReason) -> None:
        """Keep the job out of placement; a running one is stopped and queued again, held."""
        self._holding.by_user, self._holding.reason = True, command.reason or "held"

    @workflow.signal(description="End a hold")
    def release(self, command: CommandReason) -> None:
        """End a hold; the wait for a `begin` goes on."""
        self._holding.by_user, self._holding.reason = False, command.reason or "released"

    @workflow.signal(
        description="Of a slot of an array: these elements of its batch are cancelled"
    )
    async def stop_elements(self, request: StopElements) -> None:
        """Elements of the batch that it runs were cancelled."""
        told = self._slot.stop_elements(request) if self._slot else None
        if told is not None and self._placement is not None:
            await tell_node(self._placement, told)

    @described_update(
        "Have another number of GPUs; one that runs may be stopped and started again"
    )
    async def resize(self, resize: Resize) -> ResizeReply:
        """Have this size from now on, as far as GPUs are free. A job that runs is stopped with its
        grace, so that it saves, where that brings it nearer to the size."""
        self._spec = with_size(self._spec, resize, self._state)
        self._job = self._job.model_copy(update={"spec": self._spec})
        self._resizing += 1
        try:
            await workflow.wait_condition(lambda: not self._enqueuing)
            # A size that was asked for before is not to be written after this one.
            while self._telling_size and workflow.patched("sizes-in-turn"):
                await workflow.wait_condition(lambda: not (self._telling_size or self._enqueuing))
            here, self._telling_size = self._here, True
            try:
                reply = await steps.resize(
                    ResizeRequest(
                        key=here,
                        spec=self._spec,
                        submitted_at=self._submitted_at,
                        path_behind=self._job.path_behind,
                    ),
                )
            finally:
                self._telling_size = False
        finally:
            self._resizing -= 1
        if (size := reply.in_place or reply.restarts) is not None:
            by = resize.reason or "by its user"
            said = f"from {reply.gpus} to {count(size, 'GPU')}" if reply.in_place else reply.reason
            reason = as_reason(f"resized {by}: {said}")
            told = InterruptRequest(attempt=here.attempt, reason=reason, gpus_left=size)
            grows = reply.in_place is not None and size > (reply.gpus or 0)
            change = Change(
                size, reason, desired=resize.gpus, grows_from=reply.gpus if grows else None
            )
            if reply.in_place is None or not self._asks_in_place(here.attempt, change):
                self._interrupt(LeaseEnd.RESIZED, told)
        return reply

    def _interrupt(self, end: LeaseEnd, request: InterruptRequest) -> None:
        # One is enough: the first that came is what the attempt ends by.
        if request.attempt == self._attempt and self._interruption is None:
            self._interruption = Interruption(end, request)
        elif self._swaps is not None and request.attempt == self._attempt + 1:
            # The next attempt has its leases before this workflow knows of it.
            self._swaps.interruption = self._swaps.interruption or Interruption(end, request)

    def _asks_in_place(self, attempt: int, change: Change) -> bool:
        """Have the attempt that runs go on with another number of GPUs; return False where it
        cannot be asked for that."""
        may = attempt == self._attempt and self._interruption is None
        if self._elastic is None or not may:
            return False
        self._elastic.ask(change)
        return True
