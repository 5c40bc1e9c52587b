"""Constraints on labels: whoever places, stops jobs, advises or buys keeps to them."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from longshore.models.buying import BuyingRule, OptionKind
from longshore.models.constraints import Constraint, parse_constraint
from longshore.models.funding import PaidOn, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PackingRule, RejectionCode
from longshore.scheduling.advice import kind_of_node
from longshore.scheduling.cycle import foresee, plan
from longshore.scheduling.long_queue import LongQueue
from longshore.scheduling.packer import place
from longshore.scheduling.preemption.plan import plan_preemption
from longshore.scheduling.preemption.what_if import WhatIfCluster
from longshore.scheduling.unready_nodes import in_the_way_for_good
from tests.scheduling.test_advice import advised
from tests.support import buying
from tests.support.buying import cloud, decided, exchange
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, running
from tests.support.preemption import MINUTE, RULES, a_work, nodes_with, saved


def asks(*texts: str) -> tuple[Constraint, ...]:
    return tuple(map(parse_constraint, texts))


def labelled(name: str, **labels: str) -> Node:
    return a_node(name, labels=labels)


POOL = [labelled("a", zone="a"), labelled("b", zone="b", ib="true"), labelled("bare")]


@pytest.mark.parametrize(
    ("texts", "nodes"),
    [
        (["zone=a"], {"a"}),
        (["zone!=a"], {"b", "bare"}),
        (["zone in (a, b)"], {"a", "b"}),
        (["zone notin (a, b)"], {"bare"}),
        (["zone"], {"a", "b"}),
        (["!zone"], {"bare"}),
        (["zone!=a", "ib=true"], {"b"}),
        (["ib!=true", "zone"], {"a"}),
        ([], {"a", "b", "bare"}),
    ],
)
def test_a_missing_label_is_as_in_kubernetes(texts: list[str], nodes: set[str]) -> None:
    found = place(a_job(constraints=texts), POOL, POLICY, NOW)
    assert {each.node_id for each in found.candidates} == nodes
    refused = {each.node_id for each in found.rejections}
    assert refused == {node.id for node in POOL} - nodes
    assert {each.code for each in found.rejections} <= {RejectionCode.CONSTRAINT}


def test_the_reason_names_the_label_of_the_node_and_what_the_job_wants() -> None:
    job = a_job(constraints=["zone in (c, d)", "ib"])
    assert [each.reason for each in place(job, POOL, POLICY, NOW).rejections] == [
        "has no label ib, zone=a, job wants ib; zone in (c, d)",
        "has zone=b, job wants zone in (c, d)",
        "has no label ib, no label zone, job wants ib; zone in (c, d)",
    ]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rule", list(PackingRule))
def test_jobs_go_where_their_labels_are_and_keep_starts_there(
    rule: PackingRule, compiled: bool
) -> None:
    policy = POLICY.model_copy(update={"rule": rule})
    queue = [
        a_job("first", 8, constraints=["zone=a"]),
        a_job("waits", 8, constraints=["zone=a"], submitted_at=NOW + timedelta(seconds=1)),
        a_job("any", 8, constraints=["zone!=a", "!ib"], submitted_at=NOW + timedelta(seconds=2)),
    ]
    found = plan(queue, POOL, [], policy, NOW, compiled=compiled)
    assert {each.job_id: each.node_id for each in found.decisions} == {
        "first": "a", "waits": None, "any": "bare",
    }  # fmt: skip
    (kept,) = found.reservations
    assert (kept.job_id, kept.node_id, kept.start) == ("waits", "a", NOW + HOUR)
    assert found.decisions[1].rejected[RejectionCode.CONSTRAINT] == 2
    alone = foresee(queue[1], queue[:1], POOL, [], policy, NOW).decision
    assert alone.node_id is None


def test_a_gang_takes_nodes_with_its_labels_alone_and_preemption_looks_at_no_other() -> None:
    nodes = [in_domain("d", f"n{i}", labels={"ib": str(i % 2)}) for i in range(4)]
    gang = a_gang(16, constraints=["ib=1"])
    (decision,) = plan([gang], nodes, [], POLICY, NOW).decisions
    assert {node for node, _ in decision.held} == {"n1", "n3"}
    (decision,) = plan([a_gang(24, constraints=["ib=1"])], nodes, [], POLICY, NOW).decisions
    assert decision.rejected == {RejectionCode.CONSTRAINT: 2, RejectionCode.DOMAIN: 2}
    busy = [running(f"on-{node.id}", node.id, range(8), HOUR) for node in nodes]
    cluster = WhatIfCluster(nodes, busy, POLICY, NOW)
    assert (
        cluster.nodes_for(gang) == cluster.nodes_for(a_job(constraints=["ib=1"])) == ("n1", "n3")
    )


def test_those_are_stopped_that_run_where_the_labels_are() -> None:
    cheap = a_work("cheap", {"b": range(8)}, priority=1, checkpoint=saved(MINUTE))
    dear = a_work("dear", {"a": range(8)}, priority=3, checkpoint=saved(HOUR))
    nodes = nodes_with([cheap, dear], POOL[:2])
    for texts, stops in (([], "cheap"), (["zone!=a"], "cheap"), (["zone=a"], "dear")):
        urgent = a_job("urgent", 8, priority=9, constraints=texts)
        found = plan_preemption(urgent, nodes, [cheap, dear], RULES, POLICY, NOW)
        assert [each.job_id for each in found.victims] == [stops]
    urgent = a_job("urgent", 8, priority=9, constraints=["zone=c"])
    assert not plan_preemption(urgent, nodes, [cheap, dear], RULES, POLICY, NOW).preempts


def test_what_the_labels_are_asked_for_does_not_depend_on_the_order() -> None:
    one, other = a_job(constraints=["zone=b", "ib=true"]), a_job(constraints=["ib=true", "zone=b"])
    assert place(one, POOL, POLICY, NOW) == place(other, POOL, POLICY, NOW)


def test_jobs_of_a_long_queue_that_ask_for_other_labels_do_not_ask_alike() -> None:
    queue = LongQueue()
    for number in range(30):
        zone = "ab"[number % 2]
        queue.put(a_job(f"j{number:02}", 8, constraints=[f"zone={zone}"]))
    found = queue.first_alike(16, POLICY.model_copy(update={"max_reservations": 0}))
    assert [job.id for job in found] == ["j00", "j02", "j04", "j01", "j03", "j05"]


def never(job: JobRequest, nodes: Sequence[Node]) -> str:
    return kind_of_node(job, in_the_way_for_good(job, nodes, POLICY, NOW), nodes, NOW)


def test_advice_says_which_label_is_missing_and_which_values_there_are() -> None:
    job = a_job(constraints=["zone=c", "ib=true"])
    assert advised(job, POOL) == (
        "zone=c holds on none of 3 nodes: zone=a (1), zone=b (1), no label zone (1); without it "
        "the job would fit",
        "ib=true holds on 1 of 3 nodes; the others have no label ib (2)",
        "add a node with them, or start the agent of one anew so: "
        "`longshore agent --pool p --label ib=true --label zone=c`",
    )
    assert never(job, POOL) == "a node with zone=c, ib=true"
    (only,) = advised(a_job(constraints=["!zone"]), POOL[:2])
    assert only == (
        "!zone holds on none of 2 nodes: zone=a (1), zone=b (1); without it the job would fit"
    )


BOOK = exchange(("2.00", 8), ("2.40", 8))
OFFERS = cloud(("2.40", 8))


@pytest.mark.parametrize("rule", list(BuyingRule))
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("zone=a", "machines that are bought have no label zone, and the job asks for zone=a"),
        ("zone", "machines that are bought have no label zone"),
        ("cluster=c", "which cluster a machine will be in is known when it is there"),
        ("fabric.domain!=d", "which fabric.domain a machine will be in is known when it is"),
        ("!region", "machines that are bought have a label region"),
    ],
)
def test_nothing_is_bought_where_the_labels_would_not_be_or_are_not_known(
    text: str, why: str, rule: BuyingRule
) -> None:
    job = buying.a_job(constraints=[text])
    alone = decided([job], BOOK, OFFERS, rule=rule)
    assert alone.plans == ()
    (option,) = alone.options
    assert (option.kind, option.title) == (OptionKind.UNPROMISED, "buy for a")
    assert why in option.lost
    assert alone.reason == f"wait: {option.lost}"
    beside = decided([job, buying.a_job("b")], BOOK, OFFERS, rule=rule)
    (bought,) = beside.plans
    assert bought.serves == ("b",)


@pytest.mark.parametrize("rule", list(BuyingRule))
def test_who_pays_only_on_nodes_with_a_label_is_named_and_not_the_job(rule: BuyingRule) -> None:
    (paid,) = asks("team=x")
    funding = PoolFunding({}, {}, frozenset(), only_on={"a": PaidOn((), (paid,))})
    packing = POLICY.model_copy(update={"funding": funding})
    job = buying.a_job(constraints=["team=x"])  # as `where_paid` has it
    found = decided([job], BOOK, OFFERS, rule=rule, packing=packing)
    assert found.plans == ()
    (option,) = found.options
    assert option.lost == (
        "machines that are bought have no label team, and the envelopes that pay for the job "
        "pay only on nodes with team=x"
    )
