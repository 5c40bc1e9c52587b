"""How long a node has to last for a job: no placement that has to end as soon as it has begun."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.buying import BuyingPolicy
from longshore.models.departures import Cause, Leaving, Margins, Occupant
from longshore.models.job import JobSpec, Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, PackingPolicy, PlacementKey, RejectionCode
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import ServiceSpec
from longshore.models.serving import EngineSpec, ModelSpec
from longshore.models.settings import Settings
from longshore.scheduling.cycle import plan
from longshore.scheduling.departures import lead_of, plan_departures
from longshore.scheduling.node_lifetime import must_last, to_finish
from longshore.scheduling.packer import check
from longshore.scheduling.serving.replica_job import replica_spec
from tests.support.packing import HOUR, NOW, a_job, a_node
from tests.support.packing_scenes import gang_requests

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SHORT = PackingPolicy(safety_margin=5 * SECOND)
"""A pool that asks for little: so it shows that jobs need time to leave."""
SAVES = {"saves": True, "grace": 10 * SECOND}


def needs(policy: PackingPolicy = SHORT, **fields: Any) -> timedelta:
    return must_last(a_job(**fields), policy)


def why(left: timedelta, policy: PackingPolicy = SHORT, node: Any = None, **fields: Any) -> str:
    """Return why a node that lasts so long is no place for a job."""
    found = check(a_node(expires_in=left, **(node or {})), a_job(**fields), policy, NOW)
    assert found is not None
    assert (found.code, found.permanent) == (RejectionCode.EXPIRY, False)
    return found.reason


def test_the_defaults_are_those_of_the_settings():
    assert Settings.model_construct().margins == Margins() == PackingPolicy().margins
    assert BuyingPolicy().margins == Margins()


def test_what_a_job_needs_to_leave_comes_from_its_job_file():
    spec = JobSpec(name="a", command="x", stop_grace=timedelta(seconds=7))
    job = JobRequest.of("a", spec, NOW, 1)
    assert (job.grace, job.saves) == (7 * SECOND, False)
    saving = JobSpec.model_validate(
        {"name": "a", "command": "x", "checkpoint": {"folder": "c", "grace": "2m"}}
    )
    job = JobRequest.of("a", saving, NOW, 1)
    assert (job.grace, job.saves) == (2 * MINUTE, True)


def test_usual_jobs_need_their_time_and_the_safety_margin():
    """40 s to leave, or 2 min with checkpoints, lie within the 5 minutes."""
    assert needs(PackingPolicy()) == HOUR + 5 * MINUTE
    assert needs(PackingPolicy(), saves=True, grace=30 * SECOND) == HOUR + 5 * MINUTE


def test_a_replica_needs_to_load_and_to_be_ready_as_long_before_it_is_replaced():
    """15 minutes before the end of its node, and its load time, it is replaced."""
    usual = PackingPolicy()
    assert needs(usual, loads_within=10 * MINUTE) == 35 * MINUTE
    assert needs(usual, loads_within=30 * SECOND) == 16 * MINUTE
    assert needs(usual, loads_within=3 * HOUR) == HOUR + 5 * MINUTE, "no longer than any job"
    assert needs(usual, loads_within=0 * MINUTE, grace=HOUR) >= 30 * MINUTE, "asked before that"
    assert to_finish(a_job(loads_within=10 * MINUTE), usual) == HOUR + 5 * MINUTE


def test_a_replica_starts_on_a_node_that_ends_within_the_hour_and_says_why_not_on_another():
    replica = a_job(loads_within=10 * MINUTE)
    usual = PackingPolicy()
    for left in (64 * MINUTE, 35 * MINUTE):
        assert check(a_node(expires_in=left), replica, usual, NOW) is None
    assert why(34 * MINUTE, usual, loads_within=10 * MINUTE) == (
        "has 34m left, an engine wants 35m, to load and to be replaced"
    )


def test_a_replica_of_a_service_says_how_long_it_may_load():
    model = ModelSpec(name="m", source="/m.gguf", start_limit=2 * MINUTE)
    engine = EngineSpec(model=model, runtime=BUILT_IN["llama.cpp"], memory=1000)
    spec = replica_spec(ServiceSpec(name="s", model="m"), engine, 80.0)
    asked = JobRequest.of("a", spec, NOW, 1)
    assert asked.loads_within == 2 * MINUTE
    assert JobRequest.model_validate_json(asked.model_dump_json()).loads_within == 2 * MINUTE
    assert JobRequest.of("a", JobSpec(name="a", command="x"), NOW, 1).loads_within is None


def test_a_short_job_that_saves_needs_its_time_before_it_is_asked_to_leave():
    """The training of `make survive`: 10 s + 1 min + 30 s before the end, and its 40 s before."""
    assert needs(expected_duration=40 * SECOND, **SAVES) == 140 * SECOND


def test_a_long_job_that_saves_needs_as_much_work_as_a_start_and_a_move_cost():
    """Grace 30 min: asked 31.5 min before the end; 1 min to come, 30 to save, 1 to publish."""
    fields: dict[str, Any] = {"saves": True, "grace": 30 * MINUTE}
    assert needs(expected_duration=35 * MINUTE, **fields) == 31.5 * MINUTE + 32 * MINUTE
    assert needs(expected_duration=31 * MINUTE, **fields) == 31.5 * MINUTE + 31 * MINUTE
    # A long one is asked some time before its end, and has earned more than that costs.
    assert needs(expected_duration=3 * HOUR, **fields) == 3 * HOUR + 30 * SECOND


def test_one_that_cannot_save_needs_all_of_its_time():
    assert needs(expected_duration=3 * HOUR, grace=20 * MINUTE) == 3 * HOUR + 20.5 * MINUTE
    assert needs() == HOUR + 40 * SECOND


def test_what_is_bought_lets_a_job_end_unasked():
    policy = BuyingPolicy().beside(SHORT)
    assert to_finish(a_job(), policy) == HOUR + 5 * MINUTE
    assert to_finish(a_job(saves=True, grace=HOUR), policy) == HOUR + HOUR + 90 * SECOND


def test_margins_of_its_own_count():
    policy = SHORT.model_copy(
        update={"margins": Margins(end=timedelta(seconds=2), publish=timedelta(0))}
    )
    assert needs(policy, expected_duration=40 * SECOND, **SAVES) == 45 * SECOND


def test_the_reason_says_it_in_time_and_dollars():
    said = why(95 * SECOND, expected_duration=HOUR, saves=True, grace=30 * SECOND)
    assert said == "has 1m35s left, job wants 1h and a margin of 30s"
    long = {"expected_duration": 35 * MINUTE, "saves": True, "grace": 30 * MINUTE}
    # 8.5 min and 32 min of two GPUs at $2.
    assert why(40 * MINUTE, **long) == (
        "has 40m left; the job would be asked to leave after 8m30s (30m grace, 1m to publish, "
        "30s margin) and earn $0.57, a start and a move cost $2.13"
    )
    assert "earn $2.27, a start and a move cost $8.53" in why(
        40 * MINUTE, node={"price": 8_000_000}, **long
    )
    assert "earn $0.28, a start and a move cost $1.07" in why(40 * MINUTE, gpus=1, **long)
    assert why(20 * MINUTE, **long) == (
        "has 20m left; the job would be asked to leave at once (30m grace, 1m to publish, "
        "30s margin)"
    )
    assert why(timedelta(0), **long) == "has no time left, job wants 35m"


def test_the_reason_for_a_short_job_names_its_time():
    said = why(105 * SECOND, expected_duration=40 * SECOND, **SAVES)
    assert said == (
        "has 1m45s left; the job would be asked to leave after 5s (10s grace, 1m to publish, "
        "30s margin) and earn $0.01, a start and a move cost $0.14; to end there it wants 40s"
    )


def test_the_reason_for_one_that_cannot_save_names_what_would_be_lost():
    assert why(15 * MINUTE, expected_duration=6 * MINUTE, grace=10 * MINUTE) == (
        "has 15m left; the job would be asked to leave after 4m30s (10m grace, 30s margin) and "
        "cannot save: work worth $0.30 would be lost, to end there it wants 6m"
    )


def test_parts_of_a_gpu_cost_their_part():
    half = {"gpus": 1, "milli": 500, "expected_duration": 40 * MINUTE}
    said = why(40 * MINUTE, grace=10 * MINUTE, **half)  # 29.5 min of half a GPU
    assert "work worth $0.49 would be lost" in said


@pytest.mark.parametrize("gang", [None, {}])
def test_a_job_waits_for_another_node_where_it_would_have_to_leave_at_once(gang: Any):
    job = a_job(expected_duration=40 * SECOND, gang=gang, **SAVES)
    labels = {"region": "r", "cluster": "c", "fabric.domain": "d"}
    ending = a_node("ending", expires_in=100 * SECOND, labels=labels)
    (decision,) = plan([job], [ending], [], SHORT, NOW).decisions
    assert decision.node_id is None
    assert decision.rejected == {RejectionCode.EXPIRY: 1}
    lasting = a_node("lasting", expires_in=140 * SECOND, labels=labels)
    (decision,) = plan([job], [ending, lasting], [], SHORT, NOW).decisions
    assert decision.node_id == "lasting"


# --- no plan places a job where it would be asked to leave ---------------------------------

seconds = st.integers(0, 4000).map(lambda count: count * SECOND)
graces = st.one_of(st.integers(0, 60), st.integers(0, 4000)).map(lambda count: count * SECOND)
policies = st.builds(
    lambda safety, end, publish: PackingPolicy(
        safety_margin=safety, margins=Margins(end=end, publish=publish)
    ),
    st.sampled_from([0, 5, 60, 300]).map(lambda count: count * SECOND),
    st.integers(1, 120).map(lambda count: count * SECOND),
    st.integers(0, 300).map(lambda count: count * SECOND),
)


@st.composite
def jobs(draw: st.DrawFn, name: str) -> JobRequest:
    leaves: dict[str, Any] = {"grace": draw(graces), "saves": draw(st.booleans())}
    if draw(st.sampled_from([False, False, True])):
        gang = draw(gang_requests(name)).model_copy(update=leaves)
        lasts = max(draw(seconds), SECOND)
        return gang.model_copy(update={"expected_duration": lasts, "tier": Tier.FAST})
    gpus = draw(st.integers(1, 4))
    return a_job(name, gpus, expected_duration=draw(seconds), cpus=1, ram=1, **leaves)


def occupant(job: JobRequest, *, spare: bool) -> Occupant:
    return Occupant(
        key=PlacementKey(job_id=job.id, attempt=1),
        grace=timedelta(0) if spare else job.grace,
        saves=job.saves and not spare,
        expected_end=NOW + job.expected_duration,
        spare=spare,
    )


def there(made: CyclePlan, queue: list[JobRequest], node: Node) -> list[Occupant]:
    """Return who has been placed on a node."""
    requests = {job.id: job for job in queue}
    found: list[Occupant] = []
    for decision in made.placements:
        if node.id in {node_id for node_id, _ in decision.held}:
            runs = {node_id for node_id, _ in decision.by_node}
            found.append(occupant(requests[decision.job_id], spare=node.id not in runs))
    return found


def asked(occupants: list[Occupant], node: Node, margins: Margins, now: datetime) -> set[str]:
    """Return who is asked to leave a node then."""
    leaving = Leaving(cause=Cause.EXPIRY, reason="it ends", by=node.expires_at)
    made = plan_departures(occupants, [leaving], margins, now)
    assert not made.overdue
    return {each.key.job_id for each in made.departures if not each.spare}


@given(st.data(), policies, st.integers(1, 8), st.integers(1, 4))
def test_no_plan_places_a_job_where_it_must_leave_before_it_has_done_anything_useful(
    data: st.DataObject, policy: PackingPolicy, job_count: int, node_count: int
):
    queue = [data.draw(jobs(f"job-{number}")) for number in range(job_count)]
    nodes = [
        a_node(
            f"node-{number}", gpus=8, expires_in=data.draw(seconds) * 3, cpus=64,
            gpu_type="H100", container_runtime="docker", conformance="new",
            labels={"region": "r", "cluster": "c", "fabric.domain": "d"},
        )
        for number in range(node_count)
    ]  # fmt: skip
    made = plan(queue, nodes, [], policy, NOW)
    requests = {job.id: job for job in queue}
    margins = policy.margins
    for node in nodes:
        occupants = there(made, queue, node)
        assert asked(occupants, node, margins, NOW) <= {
            job.id for job in queue if not job.expected_duration
        }
        for each in occupants:
            if each.spare:
                continue
            # As long as it wants; and one that saves at least for what it costs to come and go.
            job = requests[each.key.job_id]
            useful = job.expected_duration
            if job.saves:
                useful = min(useful, job.grace + 2 * margins.publish)
            just_before = NOW + useful - timedelta(microseconds=1)
            assert job.id not in asked(occupants, node, margins, max(just_before, NOW)) or (
                not useful
            )


def test_nobody_has_to_leave_because_another_there_takes_long_to():
    """What ends within the margin leaves with the one who is asked first: so it is not placed."""
    policy = PackingPolicy(
        safety_margin=5 * SECOND, margins=Margins(end=100 * SECOND, publish=timedelta(0))
    )
    queue = [
        a_job("long", 1, expected_duration=1000 * SECOND, saves=True, grace=10 * SECOND),
        a_job("slow", 1, expected_duration=SECOND, saves=True, grace=890 * SECOND),
    ]
    node = a_node(expires_in=1005 * SECOND)
    made = plan(queue, [node], [], policy, NOW)
    assert [each.job_id for each in made.placements] == ["slow"]
    node = a_node(expires_in=1100 * SECOND)
    made = plan(queue, [node], [], policy, NOW)
    occupants = there(made, queue, node)
    assert asked(occupants, node, policy.margins, NOW + 900 * SECOND) == {"slow"}
    assert asked(occupants, node, policy.margins, NOW + 990 * SECOND) == {"long", "slow"}


@given(st.data(), policies)
def test_the_shortest_node_that_will_do_is_as_long_as_said(
    data: st.DataObject, policy: PackingPolicy
):
    job = data.draw(jobs("job").filter(lambda job: job.gang is None))
    lasts = must_last(job, policy)
    tick = timedelta(microseconds=1)
    assert check(a_node(expires_in=lasts), job, policy, NOW) is None
    found = check(a_node(expires_in=lasts - tick), job, policy, NOW)
    assert found is not None
    assert found.code is RejectionCode.EXPIRY
    assert lasts >= job.expected_duration + policy.safety_margin
    assert lasts >= lead_of(job.grace, job.saves, policy.margins)
    assert to_finish(job, policy) >= lasts
