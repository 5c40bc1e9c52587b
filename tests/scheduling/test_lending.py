"""Spares that gangs lend: to whom, in which order, and never more than a spare has."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.funding import Payer, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node, NodeState
from longshore.models.placement import CyclePlan, PackingPolicy, RunningJob
from longshore.models.resources import NOTHING, UNLIMITED, HostAmounts
from longshore.models.topology import Gang
from longshore.scheduling import cycle
from longshore.scheduling.lending import (
    LendableSpare,
    may_borrow,
    why_on_no_spare,
    with_lent_spares,
)
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

NOBODY = Payer(frozenset({"red"}), funded=False)
PAID = Payer(frozenset({"blue"}))
HOST = HostAmounts(cpus=32.0, ram=256.0, storage=UNLIMITED, power=UNLIMITED)


def policy_of(*unfunded: str, held: tuple[str, ...] = (), **others: Payer) -> PackingPolicy:
    payers = dict.fromkeys(unfunded, NOBODY) | others
    why = {name: "no budget has room" for name, payer in payers.items() if not payer.funded}
    return POLICY.model_copy(update={"funding": PoolFunding(payers, why, frozenset(held))})


def a_spare(
    node: str = "node-a", gang: str = "wide", gpus: int = 8, lent: int = 0
) -> LendableSpare:
    return LendableSpare(gang, node, tuple(range(gpus)), HOST, tuple(range(lent)))


def held_by(name: str = "node-a", gang: str = "wide", gpus: int = 8, **fields: object) -> Node:
    """A node of eight GPUs of which a gang holds so many, and all that is beside them."""
    node = a_node(name, **fields)  # pyright: ignore[reportArgumentType]
    held = tuple(
        gpu.model_copy(update={"job_id": gang}) if gpu.index < gpus else gpu for gpu in node.gpus
    )
    return node.model_copy(update={"gpus": held, "cpus_used": node.cpus, "ram_used": node.ram})


def lend(
    queue: list[JobRequest],
    policy: PackingPolicy,
    nodes: list[Node],
    spares: list[LendableSpare],
    running: tuple[RunningJob, ...] = (),
) -> tuple[CyclePlan, CyclePlan]:
    """Return a plan without what is lent, and with it."""
    made = cycle.plan(queue, nodes, running, policy, NOW)
    by_id = {node.id: node for node in nodes}
    return made, with_lent_spares(made, queue, by_id, spares, policy, NOW)


def borrowed(plan: CyclePlan) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    return {
        each.job_id: (each.borrowed_from, each.gpu_indices)
        for each in plan.placements
        if each.borrowed_from is not None
    }


def test_a_job_that_nobody_pays_for_starts_on_a_lent_spare():
    made, plan = lend([a_job("idle", 4)], policy_of("idle"), [held_by()], [a_spare()])
    assert made.placements == ()
    (decision,) = plan.placements
    assert (decision.node_id, decision.borrowed_from) == ("node-a", "wide")
    assert decision.reason.startswith("on a spare that wide lends: node-a, ")


def test_what_others_borrowed_before_it_stays_theirs():
    _, plan = lend(
        [a_job("idle", 4), a_job("next", 4)], policy_of("idle", "next"), [held_by()],
        [a_spare(lent=4)],
    )  # fmt: skip
    assert borrowed(plan) == {"idle": ("wide", (4, 5, 6, 7))}


@pytest.mark.parametrize(
    "fields",
    [
        {"gang": Gang()},
        {"gpus": 1, "milli": 500, "vram_per_gpu": 10.0},
        {"sensitive": True},
        {"gpus": 9},
        {"cpus": 33.0},
        {"ram": 300.0},
        {"gpu_type": "A100"},
    ],
)
def test_some_jobs_do_not_fit_a_spare(fields: dict[str, object]):
    job = a_job("idle", **{"gpus": 2, **fields})  # pyright: ignore[reportArgumentType]
    made, plan = lend([job], policy_of("idle"), [held_by()], [a_spare()])
    assert plan == made


def test_it_is_for_whom_nobody_pays_and_who_may_start_all_the_same():
    queue = [a_job("paid"), a_job("other"), a_job("held")]
    policy = policy_of("held", held=("held",), paid=PAID)
    made, plan = lend(queue, policy, [held_by()], [a_spare()])
    assert plan == made
    assert not any(may_borrow(job, policy.funding) for job in queue)
    assert not may_borrow(a_job("idle"), None)


@pytest.mark.parametrize(
    ("job", "spares", "says"),
    [
        (a_job("idle", 4), [a_spare()], ""),
        (a_job("idle", 4), [], ""),
        (a_job("idle", 4), [a_spare(gang="unpaid")], ""),
        (a_job("paid", 4), [a_spare(lent=8)], ""),
        (a_job("held", 4), [a_spare(lent=8)], ""),
        (
            a_job("idle", 4), [a_spare(lent=8)],
            "the spare that wide lends on node-a has its 8 GPUs lent already",
        ),
        (
            a_job("idle", 1), [a_spare(gpus=1, lent=1)],
            "the spare that wide lends on node-a has its 1 GPU lent already",
        ),
        (
            a_job("idle", 4), [a_spare(lent=6)],
            "the spare that wide lends on node-a has 2 of 8 GPUs with 40GB free, job wants 4",
        ),
        (
            a_job("idle", 4), [a_spare(gpus=2), a_spare(gang="other", gpus=1)],
            "the spare that wide lends on node-a has 2 GPUs, job wants 4; "
            "1 other spare has no room either",
        ),
        (a_job("idle", 4), [a_spare(lent=8), a_spare(gang="other")], ""),
        (
            a_job("idle", 4, cpus=64), [a_spare()],
            "the spare that wide lends on node-a has 32 of 32 cores free, job wants 64",
        ),
        (
            a_job("idle", 8, gang=Gang(unlabelled_nodes=True)), [a_spare()],
            "it may not run on a spare that wide lends: it is a gang",
        ),
        (
            a_job("idle", 1, sensitive=True), [a_spare()],
            "it may not run on a spare that wide lends: it holds its node alone",
        ),
    ],
)  # fmt: skip
def test_what_keeps_a_job_off_a_spare_is_said(
    job: JobRequest, spares: list[LendableSpare], says: str
):
    policy = policy_of("idle", "held", "unpaid", held=("held",), wide=PAID, other=PAID, paid=PAID)
    assert why_on_no_spare(job, {"node-a": held_by()}, spares, policy, NOW) == says
    started = lend([job], policy, [held_by()], spares)[1].placements
    assert not (says and started), "it starts all the same"


def test_a_gang_for_which_nobody_pays_lends_nothing():
    policy = policy_of("idle", wide=NOBODY)
    made, plan = lend([a_job("idle")], policy, [held_by()], [a_spare()])
    assert plan == made


def test_a_node_that_takes_no_work_lends_nothing():
    node = held_by(state=NodeState.DRAINING)
    made, plan = lend([a_job("idle")], policy_of("idle"), [node], [a_spare()])
    assert plan == made


def test_free_gpus_come_first_and_a_start_that_was_kept_is_given_up():
    node = held_by(gpus=6).model_copy(update={"cpus_used": 0.0, "ram_used": 0.0})
    running = (
        RunningJob(
            job_id="wide", node_id="node-a", gpu_indices=tuple(range(6)), spare=True,
            expected_end=NOW + HOUR,
        ),
    )  # fmt: skip
    queue = [a_job("first", 2), a_job("second", 4), a_job("third", 4)]
    policy = policy_of("first", "second", "third")
    made, plan = lend(queue, policy, [node], [a_spare(gpus=6)], running)
    assert {each.job_id for each in made.reservations} == {"second", "third"}
    assert borrowed(plan).keys() == {"second"}
    assert plan.placements[0] == made.placements[0]
    assert plan.placements[0].job_id == "first"
    assert {each.job_id for each in plan.reservations} == {"third"}


@given(st.data())
def test_whatever_is_lent_is_within_one_spare_and_changes_nothing_else(data: st.DataObject):
    draw = data.draw
    nodes = [
        held_by(f"node-{at}", gpus=draw(st.integers(0, 8)))
        for at in range(draw(st.integers(1, 3)))
    ]
    spares: list[LendableSpare] = []
    for at, node in enumerate(nodes):
        gpus = tuple(gpu.index for gpu in node.gpus if gpu.job_id)
        lent = tuple(index for index in gpus if draw(st.booleans()))
        host = HostAmounts(draw(st.sampled_from([2.0, 8.0])), 64.0, UNLIMITED, UNLIMITED)
        gang = draw(st.sampled_from(["wide", "broke"]))
        used = NOTHING._replace(cpus=draw(st.sampled_from([0.0, 1.0])))
        if gpus:
            spares.append(LendableSpare(gang, f"node-{at}", gpus, host, lent, used))
    queue = [
        a_job(
            f"job-{at}", draw(st.integers(1, 6)), cpus=draw(st.sampled_from([1.0, 2.0, 4.0])),
            priority=draw(st.integers(0, 9)),
        )
        for at in range(draw(st.integers(0, 6)))
    ]  # fmt: skip
    payers = {job.id: draw(st.sampled_from([PAID, NOBODY])) for job in queue}
    held = tuple(job.id for job in queue if not payers[job.id].funded and draw(st.booleans()))
    policy = policy_of(held=held, broke=NOBODY, **payers)
    made, plan = lend(queue, policy, nodes, spares)

    loans = [each for each in plan.placements if each.borrowed_from is not None]
    ids = {each.job_id for each in loans}
    jobs = {job.id: job for job in queue}
    assert all(may_borrow(jobs[job_id], policy.funding) for job_id in ids)
    assert [each for each in plan.decisions if each.job_id not in ids] == [
        each for each in made.decisions if each.job_id not in ids
    ]
    assert ids.isdisjoint(each.job_id for each in (*made.placements, *plan.reservations))
    left = tuple(each for each in made.reservations if each.job_id not in ids)
    assert left == plan.reservations
    for spare in spares:
        on_it = [each for each in loans if each.node_id == spare.node_id]
        gpus = [index for each in on_it for index in each.gpu_indices]
        assert len(gpus) == len(set(gpus))
        assert {*gpus} <= {*spare.gpu_indices} - {*spare.lent}
        assert all(each.borrowed_from == spare.job_id != "broke" for each in on_it)
        cpus = math.fsum(jobs[each.job_id].cpus for each in on_it)
        assert cpus + spare.used.cpus <= spare.host.cpus or not on_it
    # The same again: no choice depends on the order of what is given.
    again = with_lent_spares(
        made, queue[::-1], {node.id: node for node in nodes}, spares[::-1], policy, NOW
    )
    assert again == plan
