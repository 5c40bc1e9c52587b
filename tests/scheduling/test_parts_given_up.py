"""A malleable job that is paid for in part is shrunk to that part, and never stopped whole."""

from typing import Any

import pytest

from longshore.models.elastic import Malleable
from longshore.models.funding import Payer, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.preemption import PreemptionPlan, RunningWork
from longshore.models.topology import Gang
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Facts, Share, Use, Where
from longshore.scheduling.funding.pool import pool_funding
from longshore.scheduling.preemption.parts import parts_of
from longshore.scheduling.preemption.plan import plan_preemption, plan_preemptions
from tests.support.funding_scenes import NOW as THEN
from tests.support.funding_scenes import applied, facts_of, owned, tree, use
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved

SIZES = Malleable(min=2, max=8, step=2)
OTHER = Payer(frozenset({"blue"}), owner="blue")


def partly(keeps: int, *ranks: tuple[str, tuple[int, ...]]) -> Payer:
    return Payer(frozenset({"red"}), False, "red", keeps=keeps, ranks=ranks)


def funding(**payers: Payer) -> PoolFunding:
    return PoolFunding(payers, {}, frozenset())


def elastic(gpus: dict[str, Any], sizes: Malleable = SIZES) -> RunningWork:
    work = a_work("elastic", gpus, priority=9, malleable=sizes, checkpoint=saved(5 * MINUTE))
    small = work.request.model_copy(update={"malleable": sizes}).smallest
    return work.model_copy(update={"request": small})


def planned(
    job: JobRequest, work: RunningWork, paid: PoolFunding, nodes: list[str] | None = None
) -> PreemptionPlan:
    policy = POLICY.model_copy(update={"funding": paid})
    there = nodes_with([work], [a_node(name) for name in nodes or ["node-a"]])
    return plan_preemption(job, there, [work], RULES, policy, NOW)


def left(plan: PreemptionPlan) -> list[int | None]:
    return [victim.gpus_left for victim in plan.victims]


ON_A = ("node-a", (2, 3, 7))


@pytest.mark.parametrize(
    ("wants", "stays", "gets"),
    [(1, 4, {7}), (2, 4, {3, 7}), (3, 4, {2, 3, 7}), (4, 4, {2, 3, 6, 7}), (5, None, set[int]())],
)
def test_it_keeps_the_largest_size_that_is_paid_for(wants: int, stays: int | None, gets: set[int]):
    """Of eight GPUs five are paid for: it starts again on four, whatever is asked."""
    work = elastic({"node-a": range(8)})
    plan = planned(a_job("owner", wants), work, funding(elastic=partly(5, ON_A), owner=OTHER))
    assert left(plan) == ([stays] if stays else [])
    got = {gpu for gain in plan.gains for gpu in gain.gpu_indices}
    assert got <= {2, 3, 6, 7}
    assert len(got) == len(gets)


def test_what_is_paid_for_below_its_fewest_gpus_keeps_nothing():
    work = elastic({"node-a": range(8)})
    for keeps in (0, 1):
        paid = funding(elastic=partly(keeps, ON_A), owner=OTHER)
        plan = planned(a_job("owner", 8), work, paid)
        assert [victim.job_id for victim in plan.victims] == ["elastic"]
        assert left(plan) == [None]


def test_a_job_of_one_size_is_stopped_whole():
    work = elastic({"node-a": range(8)}).model_copy(update={"malleable": None})
    plan = planned(a_job("owner", 8), work, funding(elastic=partly(5, ON_A), owner=OTHER))
    assert [victim.job_id for victim in plan.victims] == ["elastic"]


def test_in_place_the_highest_ranks_leave():
    sizes = SIZES.model_copy(update={"in_place": True, "max": 12})
    work = elastic({"node-a": range(4), "node-b": range(4), "node-c": range(4)}, sizes)
    ranks = [("node-c", ()), ("node-a", (3,)), ("node-b", (0, 1, 2, 3))]
    parts = parts_of(work, funding(elastic=partly(7, *ranks)))
    assert parts is not None
    assert [share.node_id for share in parts.taken] == ["node-a", "node-b"]
    assert parts.most == 8, "of 4 GPUs a node it goes on with 4"
    assert [share.node_id for share in parts.kept] == ["node-c"]
    parts = parts_of(work, funding(elastic=partly(9, *ranks)))
    assert parts is not None
    assert [share.node_id for share in parts.taken] == ["node-b"]


def test_what_a_node_has_beside_gpus_is_divided_with_them():
    work = elastic({"node-a": range(8)})
    parts = parts_of(work, funding(elastic=partly(4, ON_A)))
    assert parts is not None
    assert (parts.taken[0].cpus, parts.kept[0].cpus, parts.taken[0].ram) == (4, 4, 32)
    assert {share.job_id for share in parts.shares} == {"elastic", "elastic\0kept"}
    assert parts_of(work, None) is None
    assert parts_of(work, funding()) is None


def test_spares_are_kept_with_the_size_that_they_are_for():
    """Of four GPUs with a spare for each two, three are paid for: two and a spare."""
    sizes = Malleable(min=2, max=4, step=2)
    gang = Gang(group_gpus=2, spares_per_group=1, unlabelled_nodes=True)
    work = elastic({"node-a": range(4), "node-b": range(2)}, sizes)
    shares = (work.shares[0], work.shares[1].model_copy(update={"spare": True}))
    request = work.request.model_copy(update={"gang": gang})
    work = work.model_copy(update={"shares": shares, "request": request})
    paid = funding(elastic=partly(3, ("node-a", (2, 3)), ("node-b", (1,))), owner=OTHER)
    wide = fill("node-a", 4), fill("node-b", 2)
    policy = POLICY.model_copy(update={"funding": paid})
    works = [work, *wide]
    there = nodes_with(works, [a_node("node-a"), a_node("node-b")])
    for wants, stays in ((1, [2]), (2, [2]), (3, [])):
        plan = plan_preemption(a_job("owner", wants), there, works, RULES, policy, NOW)
        assert left(plan) == stays, wants


def fill(node: str, first: int) -> RunningWork:
    """A job that has the rest of a node, of a tenant that pays for it."""
    return a_work(f"rest-{node}", {node: range(first, 8)}, priority=9)


def test_two_jobs_of_a_round_get_no_more_than_one_part():
    work = elastic({"node-a": range(8)})
    queue = [a_job("first", 2), a_job("second", 2), a_job("third", 2)]
    payers = {"elastic": partly(5, ON_A), **{job.id: OTHER for job in queue}}
    policy = POLICY.model_copy(update={"funding": funding(**payers)})
    there = nodes_with([work], [a_node()])
    plans = plan_preemptions(queue, there, [work], RULES, policy, NOW)
    assert [plan.job_id for plan in plans if plan.preempts] == ["first"]


# --- J4, on 160 GPUs of a budget that is cut

J4 = Malleable(min=96, max=160, step=32)


def j4(budget: int) -> tuple[Facts, RunningWork, list[str]]:
    """The run on five nodes of 32 GPUs, once its budget has been cut to this."""
    nodes = [f"n{number}" for number in range(5)]
    shares = tuple(
        Share(rank, Where("pool", "H100", frozenset()), tuple(range(32)), 1000, node)
        for rank, node in enumerate(nodes)
    )
    run = Use("elastic", 1, "a", THEN, shares)
    facts = facts_of(tree(a=None, b=None), [owned(1, "a", 256), owned(2, "b", 160)], (), [run])
    facts = applied(facts, evaluate(facts, THEN))
    facts = facts._replace(envelopes={**facts.envelopes, 1: owned(1, "a", budget)})
    return facts, elastic({node: range(32) for node in nodes}, J4), nodes


@pytest.mark.parametrize(
    ("budget", "wants", "in_place", "restarts"),
    [(100, 32, [128], [96]), (100, 64, [96], [96]), (100, 65, [], []), (130, 32, [128], [128]),
     (130, 33, [], []), (95, 160, [None], [None]), (256, 32, [], [])],
)  # fmt: skip
@pytest.mark.parametrize("stops", [False, True])
def test_j4_cut_below_its_size_it_goes_back_group_by_group(
    budget: int, wants: int, in_place: list[int | None], restarts: list[int | None], stops: bool
):
    """In place as far as others need; by another start to the size that is paid for."""
    facts, work, nodes = j4(budget)
    stays = restarts if stops else in_place
    if not stops:
        sizes = J4.model_copy(update={"in_place": True})
        saves = saved(5 * MINUTE, saves_while_running=True)
        work = work.model_copy(update={"malleable": sizes, "checkpoint": saves})
    owner = a_job(
        "owner", wants, tenant="b", cpus=0, ram=0, gang={"unlabelled_nodes": True}, gpu_type=None
    )
    paid = pool_funding(facts, "pool", [owner], {}, THEN)
    payer = paid.of("elastic")
    assert payer.keeps == (min(budget, 160) if budget < 160 else 0)
    policy = POLICY.model_copy(update={"funding": paid})
    there = nodes_with([work], [a_node(name, gpus=32) for name in nodes])
    plan = plan_preemption(owner, there, [work], RULES, policy, NOW)
    assert left(plan) == stays
    assert {gain.node_id for gain in plan.gains} <= {"n2", "n3", "n4"} or stays == [None]


def test_what_relatives_may_take_back_is_what_it_gives_up():
    tenants = tree(root=None, red="root", blue="root")
    facts = facts_of(
        tenants, [owned(1, "red", 4), owned(2, "blue", 8)], (), [use("elastic", "red", 8)]
    )
    facts = applied(facts, evaluate(facts, THEN))
    payer = pool_funding(facts, "pool", (), {}, THEN).of("elastic")
    assert (payer.funded, payer.keeps, payer.shared) == (True, 4, {"blue"})
    assert payer.ranks == (("", (4, 5, 6, 7)),)
