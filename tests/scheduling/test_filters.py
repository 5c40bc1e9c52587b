"""The one list of filters: whoever asks about a node gets the answer of the same constraint."""

from typing import Any

import pytest

from longshore.models.constraints import Constraint, OnNodes
from longshore.models.job import JobSpec, Tier
from longshore.models.job_request import JobRequest, fetched_name
from longshore.models.placement import RejectionCode
from longshore.models.topology import Conformance
from longshore.scheduling.cycle import plan
from longshore.scheduling.packer import check, could_ever_place, place
from longshore.scheduling.placement.feasibility import could_ever_hold
from longshore.scheduling.placement.filters import FILTERS, labels_named
from longshore.scheduling.preemption.what_if import WhatIfCluster
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import NOW, POLICY, a_job

ON_M = Constraint(OnNodes({"m"}, "its quota of nodes is used up"))
FAILS: dict[RejectionCode, tuple[dict[str, Any], dict[str, Any]]] = {
    RejectionCode.TIER: ({"tier": Tier.FLEX}, {}),
    RejectionCode.GPU_TYPE: ({"gpu_type": "A100"}, {"gpu_type": "H100"}),
    RejectionCode.CONTAINER_RUNTIME: ({}, {"needs_container": True}),
    RejectionCode.FETCHING: (
        {"fetches": False}, {"data": {fetched_name("s3://sets/set/", "default"): 1}},
    ),
    RejectionCode.CONSTRAINT: ({"labels": {"zone": "b"}}, {"constraints": ["zone=a"]}),
    RejectionCode.QUOTA: ({}, {"constraints": [ON_M]}),
    RejectionCode.CONFORMANCE: ({}, {"conformance": Conformance(known=True)}),
    RejectionCode.NOT_ALLOWED: (
        {"conformance": "old"}, {"conformance": Conformance(allowed=("new",))},
    ),
    RejectionCode.CHANGED: ({"conformance": "new", "changed": True}, {"sensitive": True}),
}  # fmt: skip
"""What the node is, and what the job wants, so that this constraint alone fails."""


@pytest.mark.parametrize("code", FAILS)
def test_whoever_asks_is_told_the_same_constraint(code: RejectionCode) -> None:
    is_, wants = FAILS[code]
    node, job, gang = in_domain("d", "n", **is_), a_job(**wants), a_gang(2, **wants)
    found = check(node, job, POLICY, NOW)
    assert found is not None
    assert (found.code, found.permanent) == (code, True)
    for compiled in (False, True):
        for each in (job, gang):
            (decision,) = plan([each], [node], [], POLICY, NOW, compiled=compiled).decisions
            assert decision.rejected == {code: 1}
    assert not could_ever_hold(node, job)
    cluster = WhatIfCluster([node], [], POLICY, NOW)
    assert cluster.nodes_for(job) == cluster.nodes_for(gang) == ()


def test_a_node_on_which_none_fails_is_taken_and_every_filter_has_a_case() -> None:
    assert [each.code for each in FILTERS] == list(FAILS)
    node = in_domain("d", "n")
    assert check(node, a_job(), POLICY, NOW) is None
    assert WhatIfCluster([node], [], POLICY, NOW).nodes_for(a_job()) == ("n",)


def test_on_one_of_its_nodes_a_job_is_taken_whoever_asks() -> None:
    nodes = [in_domain("d", name) for name in ("m", "n")]
    job, gang = a_job(constraints=[ON_M]), a_gang(2, constraints=[ON_M])
    assert check(nodes[0], job, POLICY, NOW) is None
    assert could_ever_hold(nodes[0], job)
    for each in (job, gang):
        assert place(each, nodes, POLICY, NOW).node_id == "m"
        assert could_ever_place(each, nodes, NOW)
        assert not could_ever_place(each, nodes[1:], NOW)
    for compiled in (False, True):
        for each in (job, gang):
            (decision,) = plan([each], nodes, [], POLICY, NOW, compiled=compiled).decisions
            assert decision.node_id == "m"
    cluster = WhatIfCluster(nodes, [], POLICY, NOW, labels=labels_named([job]))
    assert cluster.nodes_for(job) == cluster.nodes_for(gang) == ("m",)


def test_an_agent_that_knows_no_conda_gets_no_job_that_needs_it() -> None:
    spec = JobSpec.model_validate(
        {"name": "a", "command": "true", "code": ".", "environment": "environment.yml"}
    )
    job = JobRequest.of("a", spec, NOW, 1)
    assert job.needs_conda
    node = in_domain("d", "n", fetches=False)
    (decision,) = plan([job], [node], [], POLICY, NOW).decisions
    assert decision.rejected == {RejectionCode.FETCHING: 1}


def test_an_agent_that_runs_no_engine_gets_none() -> None:
    node = in_domain("d", "n", serves=False)
    (decision,) = plan([a_job(serves=True)], [node], [], POLICY, NOW).decisions
    assert decision.rejected == {RejectionCode.FETCHING: 1}
    (free,) = plan([a_job()], [node], [], POLICY, NOW).decisions
    assert free.rejected == {}


def test_reasons_name_the_first_that_fails() -> None:
    codes = [each.code for each in FILTERS]
    for first, code in enumerate(codes):
        fail = [FAILS[each] for each in codes[first:]]
        is_ = {name: value for node, _ in fail for name, value in node.items()}
        if code is RejectionCode.NOT_ALLOWED:  # which needs that the one before does not fail
            is_["conformance"] = "old"
        elif code is not RejectionCode.CHANGED:
            is_.pop("conformance")
        wants = {name: value for _, job in fail for name, value in job.items()}
        wants["constraints"] = [each for _, job in fail for each in job.get("constraints", ())]
        found = check(in_domain("d", "n", **is_), a_job(**wants), POLICY, NOW)
        assert found is not None
        assert found.code == code
