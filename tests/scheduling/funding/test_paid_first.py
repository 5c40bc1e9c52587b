"""A job that may start unfunded starts where somebody pays for it, if it can."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.constraints import parse_constraint
from longshore.models.elastic import Malleable
from longshore.models.funding import PaidOn, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.packing import PackingRule
from longshore.models.placement import PackingPolicy, PlacementKind
from longshore.models.topology import Gang
from longshore.scheduling.cycle import foresee, plan
from longshore.scheduling.packer import place
from tests.support.gangs import in_domain
from tests.support.packing import NOW, a_job

IN_X = PaidOn((), (parse_constraint("zone=x"),))
H100 = PaidOn(("H100",), ())


def policy(only_on: Mapping[str, PaidOn], **fields: Any) -> PackingPolicy:
    funding = PoolFunding({}, {}, frozenset(), only_on=only_on)
    return PackingPolicy(**fields).model_copy(update={"funding": funding})


def zone(name: str, **fields: Any) -> Node:
    return in_domain(name, f"node-{name}", labels={"zone": name}, **fields)


# Half of `node-a` is in use: packed without budgets, small jobs go there.
NODES = (zone("x", gpu_type="H100"), zone("a", gpu_type="A100", busy=range(4)))


def node_of(job: JobRequest, nodes: tuple[Node, ...], asks: PackingPolicy) -> list[str]:
    """Return where a job starts, as all who ask say it."""
    plans = [plan([job], nodes, (), asks, NOW, compiled=compiled) for compiled in (False, True)]
    told = [each.decisions[0] for each in plans]
    told += [foresee(job, [], nodes, (), asks, NOW).decision, place(job, nodes, asks, NOW)]
    found = [sorted({node for node, _ in each.held}) for each in told]
    assert all(each == found[0] for each in found), found
    return found[0]


GANG = Gang.model_validate({"group_gpus": 2})
JOBS = [
    a_job("a", 4),
    a_job("a", 4, gang=GANG),
    a_job("a", 4, malleable=Malleable(min=2, max=4, step=2), gang=GANG),
]


@pytest.mark.parametrize("job", JOBS, ids=["one", "gang", "malleable"])
@pytest.mark.parametrize("on", [IN_X, H100], ids=["labels", "type"])
def test_it_starts_where_somebody_pays_and_where_it_can_otherwise(job: JobRequest, on: PaidOn):
    assert node_of(job, NODES, policy({})) == ["node-a"]
    assert node_of(job, NODES, policy({"a": on})) == ["node-x"]
    full = (NODES[0].model_copy(update={"gpus": zone("x", busy=range(7)).gpus}), NODES[1])
    assert node_of(job, full, policy({"a": on})) == ["node-a"]


def test_who_is_held_to_its_nodes_is_asked_for_them_already():
    must = IN_X._replace(must=True)
    assert node_of(a_job("a", 4), NODES, policy({"a": must})) == ["node-a"], "by `where_paid`"


def test_nothing_is_kept_for_it_on_nodes_on_which_somebody_pays():
    """It starts there, or wherever it can first."""
    full = (zone("x", busy=range(8)), zone("a", busy=range(8)))
    (decision,) = plan([a_job("a", 4)], full, (), policy({"a": IN_X}), NOW).decisions
    assert decision.kind is PlacementKind.REQUEST_MORE_CAPACITY


_JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from([None, IN_X, H100])), min_size=1, max_size=12
)


@given(
    jobs=_JOBS, rule=st.sampled_from(PackingRule),
    busy=st.lists(st.integers(0, 8), min_size=2, max_size=4),
)  # fmt: skip
def test_of_many_each_that_starts_unpaid_found_no_paid_room(
    jobs: list[tuple[int, PaidOn | None]], rule: PackingRule, busy: list[int]
):
    nodes: list[Node] = []
    for number, used in enumerate(busy):
        here, gpu_type = ("x", "H100") if number % 2 else ("a", "A100")
        node = zone(here, busy=range(used), gpu_type=gpu_type)
        nodes.append(node.model_copy(update={"id": f"node-{number}"}))
    queue = [a_job(f"job-{n:02}", gpus, cpus=0, ram=0) for n, (gpus, _) in enumerate(jobs)]
    only_on = {job.id: on for job, (_, on) in zip(queue, jobs, strict=True) if on}
    asks = policy(only_on, rule=rule)
    found = plan(queue, nodes, (), asks, NOW, compiled=False, as_a_set=False)
    free = {node.id: 8 - used for node, used in zip(nodes, busy, strict=True)}
    paid = {node.id for node in nodes if node.gpu_type == "H100"}
    wants = {job.id: job for job in queue}
    for decision in found.decisions:
        for node, indices in decision.held:
            if decision.job_id in only_on and node not in paid:
                gpus = wants[decision.job_id].gpus
                assert all(free[each] < gpus for each in paid)
            free[node] -= len(indices)
    compiled = plan(queue, nodes, (), asks, NOW, compiled=True, as_a_set=False)
    assert [each.held for each in compiled.decisions] == [each.held for each in found.decisions]
