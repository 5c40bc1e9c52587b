"""The rank of a job: attained service, waiting, and what its user states."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy, QueueOrder
from longshore.models.preemption import RunningWork
from longshore.models.topology import Gang
from longshore.scheduling.cycle import plan
from longshore.scheduling.order import queue_order
from longshore.scheduling.rank import (
    GUARANTEED_AFTER,
    KEEPS_FOR,
    Service,
    Standing,
    rank,
    terms,
)
from longshore.scheduling.rank import running as rank_of_running
from longshore.scheduling.rank import waiting as rank_of_waiting
from tests.support.packing import NOW, a_job, a_node, running
from tests.support.preemption import MINUTE, a_work, saved

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NONE = timedelta(0)
BY_RANK = PackingPolicy(order=QueueOrder.ATTAINED_SERVICE)
UNKNOWN: dict[str, Any] = {"can_stop": True, "duration_known": False}


def had(ran: timedelta = NONE, waited: timedelta = NONE, gpus: int = 1, **asked: Any) -> Service:
    job = a_job("j", gpus, **{**UNKNOWN, **asked})
    return Service(job, gpus, ran, waited, job.can_stop)


def ranked(**fields: Any) -> float:
    return rank(had(**fields), BY_RANK)


def test_the_formula_in_its_own_numbers():
    # sqrt(4) x (1 + 3 x 2) / (3600 + 600 / 4)
    assert ranked(ran=HOUR, waited=2 * DAY, gpus=4) == pytest.approx(2 * 7 / 3750)
    assert ranked() == pytest.approx(1 / 600)
    price = {Tier.FAST: 30_000_000}
    priced = BY_RANK.model_copy(update={"delay_price": price})
    assert rank(had(), priced) == pytest.approx(30_000_000 / 600)
    assert rank(had(tier=Tier.FLEX), priced) == 0, "a tier that is not named costs nothing"


def test_who_says_how_long_it_takes_never_loses_by_it():
    told: dict[str, Any] = {"duration_known": True, "expected_duration": 10 * HOUR}
    assert ranked(**told) == ranked()
    assert ranked(ran=HOUR, **told) == ranked(ran=HOUR)
    assert ranked(ran=9 * HOUR, **told) == ranked(ran=HOUR)
    # Who is overdue did not know.
    assert ranked(ran=11 * HOUR, **told) == ranked(ran=11 * HOUR)


def test_a_job_that_cannot_be_stopped_ranks_by_all_that_it_will_run():
    cannot: dict[str, Any] = {"can_stop": False}
    assert ranked(**cannot) == pytest.approx(1 / (9_400 + 600))
    told: dict[str, Any] = {"duration_known": True, "expected_duration": HOUR}
    assert ranked(**cannot, **told) == pytest.approx(1 / (3_600 + 600))


@given(st.floats(1, 1e6), st.floats(0, 11 * 3600), st.floats(0, 1e6))
def test_a_pool_may_price_that_a_job_cannot_be_stopped(told: float, ran: float, waited: float):
    priced = BY_RANK.model_copy(update={"unstoppable_least": 11 * HOUR})
    says: dict[str, Any] = {"duration_known": True, "expected_duration": timedelta(seconds=told)}
    wait = timedelta(seconds=waited)
    cannot = rank(had(waited=wait, can_stop=False, **says), priced)
    can = rank(had(ran=timedelta(seconds=ran), waited=wait), priced)
    assert cannot <= can, "nothing is gained by it, whatever is stated"
    assert rank(had(waited=wait), priced) == rank(had(waited=wait), BY_RANK)
    assert terms(had(can_stop=False, **says), priced).left >= 11 * HOUR


def test_a_job_of_which_a_save_was_seen_can_be_stopped_whatever_it_has_said():
    seen = a_work("j", {"node-a": [0]}, ran=HOUR, checkpoint=saved(MINUTE))
    for work, can_stop in (
        (seen, True),
        (seen.model_copy(update={"preemptible": False}), False),
        (a_work("j", {"node-a": [0]}, ran=HOUR, checkpoint=None), False),
    ):
        assert not work.request.can_stop
        assert rank_of_running(work, NOW).can_stop is can_stop


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from([1, 2, 8, 64]),
)  # fmt: skip
def test_running_lowers_a_rank_and_waiting_raises_it(
    ran: float, more: float, waited: float, gpus: int
):
    def of(ran: float, waited: float) -> float:
        return ranked(ran=timedelta(seconds=ran), waited=timedelta(seconds=waited), gpus=gpus)

    assert of(ran + more, waited) <= of(ran, waited) <= of(ran, waited + more)


def queue(*jobs: JobRequest) -> list[str]:
    return [job.id for job in queue_order(jobs, BY_RANK, NOW, [a_node(), a_node("node-b")])]


def waiting(name: str, waited: timedelta, gpus: int = 1, **asked: Any) -> JobRequest:
    asked = {**UNKNOWN, "submitted_at": NOW - waited, **asked}
    return a_job(name, gpus, **asked)


def test_the_queue_is_by_class_then_by_rank():
    jobs = (
        waiting("ran", HOUR, attained=DAY), waiting("new", NONE), waiting("older", HOUR),
        waiting("wide", NONE, 8), waiting("higher", NONE, priority=6, attained=DAY),
    )  # fmt: skip
    assert queue(*jobs) == ["higher", "wide", "older", "new", "ran"]
    by_age = [job.id for job in queue_order(jobs, PackingPolicy(), NOW)]
    assert by_age[0] == "higher"
    assert set(by_age[1:3]) == {"ran", "older"}


def test_who_has_waited_long_in_all_comes_first_for_half_of_the_gpus():
    long = [
        waiting(f"long-{days}", days * DAY, 4, attained=9 * DAY) for days in (5, 4, 3)
    ]  # 4 GPUs each, of 16
    new = waiting("new", NONE)
    assert queue(*long, new) == ["long-5", "long-4", "new", "long-3"]
    # The last may take more than that half: else nothing that wide would ever come first.
    wide = waiting("wide", 6 * DAY, 16, attained=9 * DAY, gang=Gang(unlabelled_nodes=True))
    assert queue(wide, *long, new)[:2] == ["wide", "new"]
    # What runs and had waited so long counts: else one after the other would come first.
    nodes = [a_node(), a_node("node-b")]
    held = [running("r", "node-b", range(8), HOUR, waited=9 * DAY)]
    ordered = queue_order([*long, new], BY_RANK, NOW, nodes, held)
    assert ordered[0].id == "new"


def test_36_hours_of_waiting_are_long():
    wide = waiting("wide", 36 * HOUR, 4, attained=9 * DAY)
    assert queue(wide, waiting("new", NONE)) == ["wide", "new"]
    almost = waiting("wide", 36 * HOUR - timedelta(seconds=1), 4, attained=9 * DAY)
    assert queue(almost, waiting("new", NONE)) == ["new", "wide"]


def test_a_pool_by_rank_keeps_twice_the_starts_unless_it_is_told_how_many():
    assert PackingPolicy().starts_kept == 8
    assert BY_RANK.starts_kept == 16
    for told in (0, 8, 20):
        assert BY_RANK.model_copy(update={"max_reservations": told}).starts_kept == told
    # Twenty wide jobs wait for one node: as many starts are kept as the order says.
    held = [running("r", "node-a", range(8), HOUR)]
    jobs = [waiting(f"wide-{n:02}", HOUR, 8, can_stop=False) for n in range(20)]
    for policy, kept in ((PackingPolicy(), 8), (BY_RANK, 16)):
        made = plan(jobs, [a_node(busy=range(8))], held, policy, NOW)
        assert len(made.reservations) == kept


def test_a_guaranteed_job_yields_only_to_one_that_has_waited_much_longer():
    mine = Standing(GUARANTEED_AFTER, 1.0)
    assert Standing(NONE, 1e9) < mine.yields_to()
    assert Standing(GUARANTEED_AFTER + KEEPS_FOR, 0.0) >= mine.yields_to()
    assert Standing(GUARANTEED_AFTER + KEEPS_FOR - HOUR, 9.0) < mine.yields_to()


@given(
    st.floats(0, 3e5), st.floats(600, 3e5), st.floats(0, 4e5),
    st.sampled_from([{"gpus": 1}, {"gpus": 8}, {"gpus": 1, "milli": 500, "vram_per_gpu": 9.0},
                     {"gpus": 1, "mig": "1g.10gb"}]),
)  # fmt: skip
def test_a_job_has_one_rank_whether_it_waits_or_runs(
    before: float, ran: float, waited: float, asked: dict[str, Any]
):
    """Else two equal jobs would stop each other in turn."""
    of_before, of_run, wait = (timedelta(seconds=each) for each in (before, ran, waited))
    job = a_job("j", **{"vram_per_gpu": 0.0, **UNKNOWN, **asked})
    slices = 1 if job.mig else 0
    share = running("j", "node-a", range(job.gpus), HOUR, milli=0 if job.mig else job.milli,
                    slices=slices)  # fmt: skip
    work = RunningWork(
        request=job.model_copy(update={"attained": of_before}), shares=(share,),
        started_at=NOW - of_run, expected_end=NOW + HOUR, waited=wait,
    )  # fmt: skip
    stopped = job.model_copy(
        update={"attained": of_before + of_run, "waits_since": NOW - wait, "submitted_at": None}
    )
    runs, waits = rank_of_running(work, NOW), rank_of_waiting(stopped, NOW)
    assert rank(runs, BY_RANK) == pytest.approx(rank(waits, BY_RANK))
