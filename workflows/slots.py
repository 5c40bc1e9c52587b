"""A slot of an array at work: it takes elements from the database, batch after batch, and has the
node run them, until none is left or the slot is to stop."""

from collections.abc import Callable

from temporalio import workflow

from longshore.models.array_messages import ClaimRequest, StopElements
from longshore.models.elements import Batch, BatchReport, Slot
from longshore.models.job import JobSpec
from longshore.models.messages import LeaseEnd, NodeLost
from longshore.models.node_messages import ProcessReport
from longshore.models.placement import Placement
from longshore.models.retry import FailureClass
from longshore.models.text import count
from longshore.workflows import steps
from longshore.workflows.attempt import Attempt


class SlotAttempt:
    """One attempt of a slot's job. `run` it once."""

    def __init__(
        self,
        slot: Slot,
        placement: Placement,
        spec: JobSpec,
        stop_reason: Callable[[], str | None],
        loss_of: Callable[[Placement], NodeLost | None],
        stopped_as: Callable[[], LeaseEnd],
    ) -> None:
        """`stopped_as` says, of a slot that is to stop, how its leases will end."""
        self._slot = slot
        self._placement = placement
        self._spec = spec
        self._stop_reason = stop_reason
        self._loss_of = loss_of
        self._stopped_as = stopped_as
        self._batch: Batch | None = None
        self._ran = 0

    async def run(self, stopping: Callable[[str], None]) -> ProcessReport:
        """Return how it ended: a success once no element is left."""
        report: ProcessReport | None = None
        number = 0
        while True:
            number += 1
            goes_on = report is None or (report.failure is None and report.stopped_for is None)
            reply = await steps.claim(self._request(number, report, want=goes_on and self._wanted))
            self._batch = reply.batch
            if report is not None and not goes_on:
                return report
            if reply.batch is None:
                return self._nothing_left(reply.reason)
            attempt = Attempt(
                self._placement, self._spec, self._stop_reason, self._loss_of, batch=reply.batch
            )
            report = await attempt.run(stopping)
            self._ran += len(report.batch.results) if report.batch else 0

    def stop_elements(self, request: StopElements) -> StopElements | None:
        """Return what to tell the node; None where the batch is another by now."""
        same = request.key == self._placement.key and self._batch is not None
        if not same or self._batch is None or request.batch != self._batch.number:
            return None
        return request

    def _nothing_left(self, why: str) -> ProcessReport:
        if loss := self._loss_of(self._placement):
            return ProcessReport(
                failure=FailureClass.NETWORK if loss.cut_off else FailureClass.NODE,
                message=f"node {loss.node_id} was lost: {loss.reason}",
            )
        if self._is_long:
            why = "its history is long, and another slot goes on"
        said = f"ran {count(self._ran, 'element')}; {why}"
        return ProcessReport(exit_code=0, message=said, stopped_for=self._stop_reason())

    @property
    def _wanted(self) -> bool:
        lost = self._loss_of(self._placement) is not None
        return self._stop_reason() is None and not lost and not self._is_long

    @property
    def _is_long(self) -> bool:
        # It takes no more elements, and ends: the array opens another in its place.
        return workflow.info().is_continue_as_new_suggested()

    def _request(self, number: int, report: ProcessReport | None, *, want: bool) -> ClaimRequest:
        end = self._stopped_as() if report is not None and report.stopped_for else None
        stopped_as = report.failure if report else None
        if end is LeaseEnd.PREEMPTED and stopped_as is None:
            stopped_as = FailureClass.PREEMPTED
        return ClaimRequest(
            array_id=self._slot.array_id, key=self._placement.key, batch=number,
            report=_known(report), stopped_as=stopped_as,
            message=report.message if report else "", cancelled=end is LeaseEnd.CANCELLED,
            want=want,
        )  # fmt: skip


def _known(report: ProcessReport | None) -> BatchReport | None:
    """Return what is known of a batch; of a node that said nothing of it, that nobody knows."""
    if report is None:
        return None
    if report.batch is not None:
        return report.batch
    never_came = report.failure in (FailureClass.START, FailureClass.UNSATISFIABLE)
    return BatchReport(complete=never_came or report.stopped_for is not None)


async def tell_node(placement: Placement, request: StopElements) -> None:
    """Have the node stop elements; one that does not answer lets them run to their end."""
    try:
        await steps.stop_elements(placement, request)
    except Exception as error:
        workflow.logger.warning("elements are not stopped: %s", error)
