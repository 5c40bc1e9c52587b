"""How long a node has to last for a job, to begin there and to end there.

A job is asked to leave a node that ends: early enough to save, publish and go
(`scheduling.departures`, `lead_of`). What a placement earns is the work until then. It costs a
start, in which the job's checkpoint comes back, and a move: the save, and its way to the store.
Both are time of the same GPUs, so their price decides nothing: it says in dollars why not.
"""

from datetime import timedelta
from typing import NamedTuple, Protocol

from longshore.models.job_request import JobRequest
from longshore.models.margins import Margins
from longshore.models.mig import SLICES, profile_slices
from longshore.models.text import dollars, format_duration
from longshore.scheduling.departures import lead_of
from longshore.scheduling.serving.replicas import LEAVE_BEFORE

_HOUR = timedelta(hours=1)
_SECOND = timedelta(seconds=1)


class EndRules(Protocol):
    """What a policy says of the ends of nodes: that of packing, and that of buying."""

    @property
    def safety_margin(self) -> timedelta: ...

    @property
    def margins(self) -> Margins: ...


class Stay(NamedTuple):
    """What a job would have of a node that ends, where that decides how long it has to last."""

    grace: timedelta
    publish: timedelta
    """For the last checkpoint; nothing where the job cannot save."""
    end: timedelta
    saves: bool
    start_and_move: timedelta
    """What it costs to begin there and to go on elsewhere, as time of its GPUs."""
    gpus: float
    owned_gpu_price: int
    """Micro-dollars per GPU-hour of a node that was not bought."""

    @property
    def lead(self) -> timedelta:
        """How long before the end of the node the job is asked to leave."""
        return self.grace + self.publish + self.end


def must_last(job: JobRequest, policy: EndRules) -> timedelta:
    """Return how long a node has to last from the start of a job, so that it may be placed there.

    Its expected duration and the margins; and until it is asked to leave there is time for it to
    end, or for as much work as a start and a move cost. A job that cannot save has to end there:
    it would take nothing along.

    A replica of a service never ends, and is replaced in time: it is to load, and to be ready for
    as long as that may take. It waits for no longer a time than other jobs do.
    """
    usual = _to_end(job, policy)
    if job.loads_within is None:
        return usual
    replaced = max(LEAVE_BEFORE, lead_of(job.grace, job.saves, policy.margins))
    return min(replaced + 2 * job.loads_within, usual)


def _to_end(job: JobRequest, policy: EndRules) -> timedelta:
    duration, margins = job.expected_duration, policy.margins
    lead, margin = lead_of(job.grace, job.saves, margins), _margin(policy, margins)
    if lead <= margin:
        return duration + margin
    useful = min(duration, start_and_move(job, margins)) if job.saves else duration
    return max(duration + margin, lead + useful)


def to_finish(job: JobRequest, policy: EndRules) -> timedelta:
    """Return how long a node has to last from the start of a job, so that it ends there unasked.

    Bought time is so long: never shorter than what `must_last` asks for.
    """
    margins = policy.margins
    lead = lead_of(job.grace, job.saves, margins)
    return job.expected_duration + max(_margin(policy, margins), lead)


def start_and_move(job: JobRequest, margins: Margins) -> timedelta:
    """Return what a placement costs beside its work, as time of its GPUs.

    By what is allowed for: a checkpoint comes back within the time in which it is published.
    """
    return margins.publish + lead_of(job.grace, job.saves, margins, hard=False)


def stay_of(
    job: JobRequest, policy: EndRules, needed: timedelta, owned_gpu_price: int
) -> Stay | None:
    """Return what a reason names; None where expected duration and margin decide what is
    `needed`."""
    margins, margin = policy.margins, needed - job.expected_duration
    if margin <= policy.safety_margin or margin <= margins.end:
        return None
    publish = margins.publish if job.saves else timedelta(0)
    return Stay(
        grace=lead_of(job.grace, False, margins, hard=False), publish=publish, end=margins.end,
        saves=job.saves, start_and_move=start_and_move(job, margins), gpus=_gpus_of(job),
        owned_gpu_price=owned_gpu_price,
    )  # fmt: skip


def why_too_short(stay: Stay, duration: timedelta, left: timedelta, price: int | None) -> str:
    """Return why a node that lasts for `left` is no place for a job of this duration.

    `price` is that of the node in micro-dollars per GPU-hour; None where it was not bought.
    """
    publish = f", {format_duration(stay.publish)} to publish" if stay.publish else ""
    notice = f"({format_duration(stay.grace)} grace{publish}, {format_duration(stay.end)} margin)"
    works = left - stay.lead
    had = f"has {format_duration(to_seconds(left))} left"
    if works < _SECOND:
        return f"{had}; the job would be asked to leave at once {notice}"
    hourly = stay.gpus * (stay.owned_gpu_price if price is None else price)
    asked = f"the job would be asked to leave after {format_duration(to_seconds(works))} {notice}"
    earned = dollars(round(works / _HOUR * hourly))
    wants = f"to end there it wants {format_duration(duration)}"
    if not stay.saves:
        return f"{had}; {asked} and cannot save: work worth {earned} would be lost, {wants}"
    cost = dollars(round(stay.start_and_move / _HOUR * hourly))
    both = f"{had}; {asked} and earn {earned}, a start and a move cost {cost}"
    return f"{both}; {wants}" if duration < stay.start_and_move else both


def _margin(policy: EndRules, margins: Margins) -> timedelta:
    # What is expected to end later than that is asked to leave with the others there.
    margin, end = policy.safety_margin, margins.end
    return margin if margin > end else end


def _gpus_of(job: JobRequest) -> float:
    if job.mig is not None:
        return profile_slices(job.mig) / SLICES
    return job.gpus * job.milli / 1000


def to_seconds(span: timedelta) -> timedelta:
    """Return a span without its fraction of a second."""
    return timedelta(seconds=int(span.total_seconds()))
