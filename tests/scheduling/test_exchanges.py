"""Two jobs on one node, for days: one is stopped for the other, and that again for the first."""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.models.job_request import JobRequest, checkpoint_name
from longshore.models.packing import QueueOrder
from longshore.models.preemption import PreemptionPolicy, RunningWork
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.scheduling.cycle import plan as cycle_plan
from longshore.scheduling.preemption.plan import plan_preemptions
from longshore.scheduling.rank import AHEAD, GUARANTEED_AFTER, KEEPS_FOR, rank
from longshore.scheduling.rank import running as rank_of_running
from longshore.scheduling.rank import waiting as rank_of_waiting
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.preemption import a_work, nodes_with, saved

BY_RANK = POLICY.model_copy(update={"order": QueueOrder.ATTAINED_SERVICE})
RULES = PreemptionPolicy()
STEP = timedelta(minutes=30)
NONE = timedelta(0)
DAY, DAYS = timedelta(days=1), 6


@dataclass
class Endless:
    """A job that saves all the time and never ends."""

    name: str
    gpus: int
    ran: timedelta
    waited: timedelta
    since: datetime = NOW
    """When it began to run, or to wait."""
    stopped: list[datetime] = field(default_factory=list[datetime])
    data: dict[str, float] = field(default_factory=dict[str, float])

    def running(self, now: datetime) -> RunningWork:
        work = a_work(
            self.name, {"node-a": range(self.gpus)}, priority=5, ran=NONE, checkpoint=saved(NONE)
        )
        own = {
            "attained": self.ran, "duration_known": False, "can_stop": True, "data": self.data,
        }  # fmt: skip
        seen = work.checkpoint and work.checkpoint.model_copy(update={"saved_at": now})
        return work.model_copy(
            update={
                "request": work.request.model_copy(update=own), "started_at": self.since,
                "waited": self.waited, "checkpoint": seen, "preempted_at": tuple(self.stopped),
            }
        )  # fmt: skip

    def waiting(self) -> JobRequest:
        left = {checkpoint_name(self.name): 50.0} if self.stopped else {}
        return a_job(
            self.name, self.gpus, attained=self.ran, duration_known=False, can_stop=True,
            submitted_at=None, waits_since=self.since - self.waited, data=self.data | left,
        )  # fmt: skip


times = st.integers(0, 150).map(lambda steps: steps * STEP)


@settings(max_examples=10)
@given(st.sampled_from([1, 4, 8]), st.sampled_from([5, 8]), times, times, times, times)
def test_for_each_exchange_the_ranks_have_moved_fourfold(
    narrow: int, wide: int, ran: timedelta, before: timedelta, waited: timedelta, had: timedelta
):
    """Or one comes first for its long wait: by six hours where the other has waited long, too."""
    runs, waits = Endless("a", narrow, ran, waited), Endless("b", wide, before, had)
    by_rank, by_age = 0, 0
    for step in range(1, DAYS * 48):
        now = NOW + step * STEP
        work, request = runs.running(now), waits.waiting()
        nodes = nodes_with([work], [a_node()])
        plans = plan_preemptions([request], nodes, [work], RULES, BY_RANK, now, stops_only=True)
        if not plans:
            continue
        old, new = rank_of_running(work, now), rank_of_waiting(request, now)
        assert old.ran - runs.ran >= RULES.yields_after
        if rank(new, BY_RANK) >= AHEAD * rank(old, BY_RANK):
            by_rank += 1
        else:
            by_age += 1
            assert new.waited >= GUARANTEED_AFTER
            assert old.waited < GUARANTEED_AFTER or new.waited - old.waited >= KEEPS_FOR
        runs.ran, runs.stopped, runs.since = old.ran, [*runs.stopped, now], now
        waits.waited, waits.since = new.waited, now
        runs, waits = waits, runs
    # Each doubles what one of them has run, or is for the first 36 hours, or takes six hours.
    assert by_rank <= 2 + math.log2(DAYS * DAY / RULES.yields_after) + by_age
    assert by_age <= 2 + DAYS * DAY / KEEPS_FOR


datas = st.dictionaries(
    st.sampled_from(["set", "other", "image trainer:1", "environment 1"]),
    st.sampled_from([0.0, 1.0, 100.0]), max_size=3,
)  # fmt: skip


@settings(max_examples=15)
@given(
    st.sampled_from([each for each in ScoreProfile if each.stops]), st.sampled_from([1, 4, 8]),
    datas, datas, times, times, times, times,
)  # fmt: skip
def test_no_two_jobs_stop_each_other_in_turn_whatever_the_profile_and_their_data(
    profile: ScoreProfile, narrow: int, mine: dict[str, float], theirs: dict[str, float],
    ran: timedelta, before: timedelta, waited: timedelta, had: timedelta,
):  # fmt: skip
    """Nodes keep the data of who has run there, and the checkpoints of who left. Whoever another
    is stopped for starts then."""
    runs = Endless("a", narrow, ran, waited, data=mine)
    waits = Endless("b", 8, before, had, data=theirs)
    packing = BY_RANK.model_copy(update={"score": ScorePolicy(profile=profile)})
    held = {*mine}
    stops = 0  # of those that are not for a long wait
    for step in range(1, DAYS * 48):
        now = NOW + step * STEP
        work, request = runs.running(now), waits.waiting()
        node = a_node(data=tuple(sorted(held)))
        nodes = nodes_with([work], [node])
        plans = plan_preemptions([request], nodes, [work], RULES, packing, now, stops_only=True)
        if not plans:
            continue
        stops += rank_of_waiting(request, now).waited < GUARANTEED_AFTER
        runs.ran, runs.stopped = rank_of_running(work, now).ran, [*runs.stopped, now]
        waits.waited, runs.since = rank_of_waiting(request, now).waited, now
        held.add(checkpoint_name(runs.name))
        node = a_node(data=tuple(sorted(held)))
        first, *_ = cycle_plan([request, runs.waiting()], [node], [], packing, now).placements
        assert first.job_id == waits.name
        waits.since = now
        held |= set(waits.data)
        runs, waits = waits, runs
    # As above, and once more for data that came to the node: it is there for good.
    assert stops <= 3 + math.log2(DAYS * DAY / RULES.yields_after)
