"""What `why` says of nodes that are not ready: what would be in the way if they were."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from longshore.client.explain import explain
from longshore.models.block import FOR_SALE, mend_of_sale
from longshore.models.departures import CORDONED_BY_HAND, DISK_REFUSES, DRAINED_BY_HAND
from longshore.models.explanation import Explanation
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.job_status import JobState
from longshore.models.node import GPU, GPUParts, Node, NodeState
from longshore.models.placement import Decision, PlacementKind, RejectionCode
from longshore.models.views import JobView
from longshore.scheduling.advice import advice, kind_of_node
from longshore.scheduling.packer import place
from longshore.scheduling.unready_nodes import look_past_states
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

SEEN = JobView(
    id="job", name="job", tenant="default", pool="default", tier=Tier.FAST, priority=5, gpus=1,
    state=JobState.QUEUED, submitted_at=NOW,
)  # fmt: skip
UNCORDON = "let {0} take jobs again: `longshore uncordon {0}`"


def cordoned(name: str, **fields: Any) -> Node:
    return a_node(name, state=NodeState.DRAINING, cordoned=True, **{"gpu_type": "H100", **fields})


def why(
    job: JobRequest,
    *nodes: Node,
    may_stop: bool = False,
    closed: Collection[str] = (),
    ends: Mapping[str, datetime] | None = None,
) -> Explanation:
    """Explain as the client does, right after a cycle."""
    alone = place(job, nodes, POLICY, NOW)
    cycle = place(job, nodes, POLICY, NOW, explain=False)
    alone, last = look_past_states(alone, cycle, job, nodes, POLICY, NOW, ends or {})
    helps = advice(
        job, alone.rejections, nodes, NOW, pool="default", may_stop=may_stop, closed=closed
    )
    never = alone.rejections and all(each.permanent for each in alone.rejections)
    kind = kind_of_node(job, alone.rejections, nodes, NOW) if never else ""
    return explain(
        SEEN, alone=alone, last=last, position=1, nodes=len(nodes), kind=kind, helps=helps
    )


def rejected(explanation: Explanation) -> list[tuple[RejectionCode, str]]:
    assert explanation.decision is not None
    return [(each.code, each.reason) for each in explanation.decision.rejections]


@pytest.mark.parametrize(
    ("job", "code", "reason", "hints"),
    [
        (a_job(gpus=16), RejectionCode.GPU_COUNT, "has 8 GPUs, job wants 16",
         "ask for fewer GPUs: a job's GPUs are all on one node, unless `gang` lets it span "
         "several|add a node with 16 GPUs or more: run `longshore agent --pool default` on it"),
        (a_job(gpu_type="B999"), RejectionCode.GPU_TYPE, "has H100 GPUs, job wants B999",
         "name another gpu_type, or leave it out|add a node with B999 GPUs"),
        (a_job(cpus=99), RejectionCode.CPU, "has 64 of 64 cores free, job wants 99",
         "ask for fewer cpus|add a node with 99 cores or more: run `longshore agent --pool "
         "default` on it"),
        (a_job(tier="FLEX"), RejectionCode.TIER, "is a FAST node, job is FLEX",
         "give the job the tier FAST (`--set tier=FAST`)"
         "|add a FLEX node: `longshore agent --pool default --tier flex`"),
    ],
)  # fmt: skip
def test_what_no_uncordon_mends_is_the_reason(
    job: JobRequest, code: RejectionCode, reason: str, hints: str
) -> None:
    found = why(job, cordoned("a"), cordoned("b", busy={0}, cpus_used=60))
    assert rejected(found) == [(code, f"{reason}, and is cordoned")] * 2
    assert found.headline == f"waits: no known node could ever hold it (2 nodes: 2 {code.value})"
    assert found.hints == tuple(hints.split("|"))


def test_a_node_that_would_take_it_some_time_is_worth_an_uncordon() -> None:
    small = cordoned("small", gpus=1)
    full = cordoned("full", busy=range(8), cpus_used=64, ram_used=512)
    lost = a_node("lost", state=NodeState.LOST)
    found = why(a_job(gpus=8), small, full, lost)
    assert rejected(found) == [
        (RejectionCode.GPU_COUNT, "has 1 GPU, job wants 8, and is cordoned"),
        (RejectionCode.STATE, "is cordoned"),
        (RejectionCode.STATE, "is lost"),
    ]
    assert found.hints[:2] == (
        UNCORDON.format("full"), "look at the agent of lost, which is lost (`longshore nodes`)",
    )  # fmt: skip
    assert "(3 nodes: 2 node-not-ready, 1 not-enough-gpus)" in found.headline
    assert "2 nodes could hold it when empty" in found.headline


def test_of_the_nodes_that_somebody_shut_the_one_with_most_room_is_let_in_again() -> None:
    full = cordoned("full", busy=range(8))
    found = why(a_job(gpus=8), full, cordoned("some", busy=range(3)), cordoned("empty"))
    assert found.hints == (UNCORDON.format("empty"),)


def test_a_node_that_was_drained_by_hand_is_let_in_again() -> None:
    drained = a_node("own", gpu_type="H100", state=NodeState.DRAINING)
    assert why(a_job(gpus=8), drained).hints == (UNCORDON.format("own"),)
    bought = drained.model_copy(update={"id": "bought", "block_id": "block-1"})
    assert why(a_job(gpus=8), bought).hints == (UNCORDON.format("bought"),)
    leaves = why(a_job(gpus=8), bought, closed={"bought"}).hints
    assert leaves == ("add a node: bought is on its way out",)
    shut = bought.model_copy(update={"cordoned": True})
    assert why(a_job(gpus=8), shut).hints == (UNCORDON.format("bought"),)


def test_a_node_that_its_block_has_closed_is_not_let_in_again() -> None:
    """No placement is taken there, and a block that ends takes its nodes with it."""
    sold = cordoned("sold", block_id="block-1", state_reason=FOR_SALE)
    ends = cordoned("ends", block_id="block-2", state_reason="nobody needs it")
    found = why(a_job(gpus=8), sold, ends, closed={"sold", "ends"})
    assert found.hints == (mend_of_sale("sold", "block-1"),)
    assert rejected(found)[0] == (RejectionCode.STATE, f"is cordoned ({FOR_SALE})")
    assert why(a_job(gpus=8), ends, closed={"ends"}).hints == (
        "add a node: ends is on its way out",
    )
    # One that a person shut helps as well.
    shut = cordoned("shut", block_id="block-1", state_reason="fan")
    assert why(a_job(gpus=8), sold, shut, closed={"sold"}).hints[0] == UNCORDON.format("shut")


def test_a_node_whose_time_is_for_sale_lasts_until_its_block_ends_where_nobody_buys_it() -> None:
    sold = cordoned("sold", block_id="block-1", state_reason=FOR_SALE, expires_at=NOW + HOUR / 60)
    ends = {"sold": NOW + 4 * HOUR}
    for hours, code in ((1, RejectionCode.STATE), (5, RejectionCode.EXPIRY)):
        job = a_job(gpus=8, expected_duration=hours * HOUR)
        found = why(job, sold, closed={"sold"}, ends=ends)
        assert [each for each, _ in rejected(found)] == [code]
        assert (mend_of_sale("sold", "block-1") in found.hints) is (code is RejectionCode.STATE)


FULL = f"{DISK_REFUSES}: No space left on device"
BROKEN = f"{DISK_REFUSES}: Input/output error"


def test_a_node_whose_agent_has_cordoned_it_is_mended_and_not_let_in_again() -> None:
    full = cordoned("full", state_reason=FULL)
    found = why(a_job(gpus=8), full)
    assert rejected(found) == [(RejectionCode.STATE, f"is cordoned ({FULL})")]
    (hint,) = found.hints
    assert hint.startswith("make room on full (docs/operations.md, Disk space)")
    assert "uncordon" not in hint
    # One that somebody shut helps as well; of a disk that is broken a person decides.
    broken, shut = cordoned("broken", state_reason=BROKEN), cordoned("shut", state_reason="fan")
    assert why(a_job(gpus=8), broken, full, shut).hints == (UNCORDON.format("shut"), hint)
    assert why(a_job(gpus=8), broken).hints == (
        "mend the disk of broken, then run `longshore uncordon broken`",
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [("new disk", " (new disk)"), (CORDONED_BY_HAND, ""), (DRAINED_BY_HAND, ""), ("", "")],
)
def test_why_a_node_takes_no_jobs_is_told_where_somebody_said_it(reason: str, told: str) -> None:
    for is_cordoned, state in ((True, "is cordoned"), (False, "is draining")):
        node = cordoned("a", state_reason=reason).model_copy(update={"cordoned": is_cordoned})
        assert rejected(why(a_job(gpus=8), node)) == [(RejectionCode.STATE, f"{state}{told}")]


def test_a_node_whose_time_is_too_short_and_one_that_is_gone() -> None:
    short = cordoned("short", expires_in=timedelta(minutes=9))
    gone = a_node("gone", state=NodeState.GONE)
    found = why(a_job(expected_duration=HOUR), short, gone)
    assert [code for code, _ in rejected(found)] == [RejectionCode.EXPIRY, RejectionCode.STATE]


def test_parts_of_gpus_come_back_too() -> None:
    positions = {"1g.10gb": (1,)}
    mig = GPU(index=0, vram=80, parts=GPUParts(mig=positions, slices_used=1))
    shared = GPU(index=0, vram=80, vram_used=80, parts=GPUParts(milli_used=1000))
    nodes = (
        cordoned("mig", gpus=0).model_copy(update={"gpus": (mig,)}),
        cordoned("shared", gpus=0).model_copy(update={"gpus": (shared,)}),
    )
    part = why(a_job(gpus=1, milli=500), *nodes)
    assert [code for code, _ in rejected(part)] == [RejectionCode.GPU_COUNT, RejectionCode.STATE]
    slice_ = why(a_job(gpus=1, mig="1g.10gb", vram_per_gpu=0), *nodes)
    assert [c for c, _ in rejected(slice_)] == [RejectionCode.STATE, RejectionCode.MIG_PROFILE]


def test_a_gang_is_asked_for_as_a_whole() -> None:
    nodes = [in_domain("A", f"n{i}", state=NodeState.DRAINING, cordoned=True) for i in range(2)]
    fits = why(a_gang(16), *nodes)
    assert rejected(fits) == [(RejectionCode.STATE, "is cordoned")] * 2
    assert fits.hints == (UNCORDON.format("n0"),)
    large = why(a_gang(24), *nodes)
    assert {code for code, _ in rejected(large)} == {RejectionCode.DOMAIN}
    assert "(2 nodes: 2 domain-too-small)" in large.headline
    assert UNCORDON.format("n0") not in large.hints


def test_what_the_last_cycle_said_of_other_nodes_stays() -> None:
    job = a_job(gpus=16)
    last = Decision(
        job_id="job", kind=PlacementKind.REQUEST_MORE_CAPACITY, reason="(1 node: 1 gpus-busy)",
        rejected={RejectionCode.GPUS_BUSY: 1},
    )  # fmt: skip
    nodes = [cordoned("a")]
    alone = place(job, nodes, POLICY, NOW)
    _, after = look_past_states(alone, last, job, nodes, POLICY, NOW)
    assert after == last


def test_the_count_is_replaced_in_whatever_order_it_was_stored() -> None:
    """The database keeps no order of names."""
    job = a_job(gpu_type="H100")
    nodes = [cordoned("a", gpu_type="A100"), a_node("b", gpu_type="H100", busy=range(8))]
    alone = place(job, nodes, POLICY, NOW)
    assert list(alone.rejected) == [RejectionCode.STATE, RejectionCode.GPUS_BUSY]
    backwards = dict(reversed(alone.rejected.items()))
    last = alone.model_copy(update={"rejected": backwards})
    _, after = look_past_states(alone, last, job, nodes, POLICY, NOW)
    assert after is not None
    assert "1 node-not-ready" in last.reason
    assert "node-not-ready" not in after.reason
    assert set(after.rejected) == {RejectionCode.GPU_TYPE, RejectionCode.GPUS_BUSY}


def test_a_job_that_other_nodes_take_goes_there() -> None:
    found = why(a_job(gpu_type="H100"), cordoned("a", gpu_type="A100"), a_node(gpu_type="H100"))
    assert found.decision is not None
    assert found.decision.kind is PlacementKind.EXISTING_NODE
    assert [code for code, _ in rejected(found)] == [RejectionCode.GPU_TYPE]
