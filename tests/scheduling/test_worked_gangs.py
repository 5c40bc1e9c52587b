"""Worked cases of the documents for jobs on several nodes, in their own numbers of nodes."""

import pytest

from longshore.models.gang import GangPacking
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, Decision, RunningJob
from longshore.models.topology import FLAVOR_LABEL, Gang
from longshore.scheduling.cycle import plan
from tests.support.gangs import a_gang, decide, in_domain, taken
from tests.support.packing import HOUR, NOW, POLICY, a_job, running


def of_nodes(name: str, nodes: int, hours: float, **fields: object) -> JobRequest:
    """Return a job on so many whole nodes of 8 GPUs."""
    return a_job(
        name, 8 * nodes, gang=Gang(), cpus=nodes, ram=nodes, expected_duration=hours * HOUR,
        **fields,
    )  # fmt: skip


def cluster(nodes: int, busy: int, hours: float) -> tuple[list[Node], list[RunningJob]]:
    """Return nodes of one domain, the first of them busy for so many hours."""
    made = [in_domain("A", f"n{i:02}", busy=range(8) if i < busy else ()) for i in range(nodes)]
    held = [
        running(f"on-{node.id}", node.id, range(8), hours * HOUR, vram_per_gpu=80)
        for node in made[:busy]
    ]
    return made, held


def decided(nodes: int, busy: int, hours: float, *queue: JobRequest) -> dict[str, Decision]:
    made, held = cluster(nodes, busy, hours)
    cycle: CyclePlan = plan(queue, made, held, POLICY, NOW)
    return {decision.job_id: decision for decision in cycle.decisions}


def test_b1_a_job_that_is_over_before_the_reservation_runs() -> None:
    """10 nodes, 8 of them reserved in 2 hours: a job on 2 nodes for an hour runs now."""
    found = decided(10, 6, 2, of_nodes("head", 8, 1, priority=9), of_nodes("fill", 2, 1))
    assert found["head"].estimated_start == NOW + 2 * HOUR
    assert len(found["fill"].by_node) == 2


def test_b2_a_job_that_would_delay_the_reservation_waits() -> None:
    """8 nodes, 6 of them reserved in an hour: a job on 4 nodes for 2 hours waits."""
    found = decided(8, 4, 1, of_nodes("head", 6, 1, priority=9), of_nodes("long", 4, 2))
    assert found["head"].estimated_start == NOW + HOUR
    assert found["long"].members == ()


def test_b3_a_long_job_runs_on_nodes_that_the_reservation_does_not_need() -> None:
    """8 nodes, 6 of them reserved in an hour: a job on the 2 others runs for 2 hours."""
    found = decided(8, 4, 1, of_nodes("head", 6, 1, priority=9), of_nodes("long", 2, 2))
    assert found["head"].estimated_start == NOW + HOUR
    assert [node_id for node_id, _ in found["long"].by_node] == ["n06", "n07"]


def test_b4_a_reservation_is_at_the_earliest_release() -> None:
    made, held = cluster(4, 4, 3)
    held[0] = held[0].model_copy(update={"expected_end": NOW + HOUR})
    (one,) = plan([of_nodes("head", 4, 1)], made, held, POLICY, NOW).decisions
    assert one.estimated_start == NOW + 3 * HOUR
    (two,) = plan([of_nodes("head", 1, 1)], made, held, POLICY, NOW).decisions
    assert two.estimated_start == NOW + HOUR


@pytest.mark.parametrize("packing", GangPacking)
def test_b6_a_job_on_three_nodes_keeps_to_one_group_of_four(packing: GangPacking) -> None:
    nodes = [in_domain(domain, f"{domain}{i}") for domain in "AB" for i in range(4)]
    decision = decide(of_nodes("job", 3, 1), nodes, gang_packing=packing)
    assert [(domain, len(shares)) for domain, shares in taken(decision)] == [("A", 3)]


def test_j2b_64_gpus_where_4_are_free_lack_60() -> None:
    """Domain B has 72 GPUs: 16, 48 and 4 are in use, 4 are left of it."""
    nodes = [in_domain("B", f"b{i}", busy=range(8) if i < 8 else range(4)) for i in range(9)]
    decision = decide(a_gang(64, 64), nodes)
    assert decision.gang is not None
    assert (decision.gang.limiting_domain, decision.gang.missing) == ("r/c/B", 60)


@pytest.mark.parametrize("packing", GangPacking)
def test_128_gpus_of_a_flavor_in_groups_of_32_never_cut_a_group(packing: GangPacking) -> None:
    """The file of the document on runs: two domains with room for one and for three groups."""
    flavor = {FLAVOR_LABEL: "H100-80GB"}
    small = [in_domain("A", f"a{i}", gpu_type="H100", labels=flavor) for i in range(7)]
    large = [in_domain("B", f"b{i:02}", gpu_type="H100", labels=flavor) for i in range(12)]
    other = [in_domain("C", f"c{i:02}", gpu_type="H100") for i in range(20)]
    job = a_gang(128, 32, gpu_type="H100-80GB", cpus=128, ram=128)
    decision = decide(job, [*small, *large, *other], gang_packing=packing)
    assert [(domain, sum(n.values())) for domain, n in taken(decision)] == [
        ("B", 32), ("B", 32), ("B", 32), ("A", 32),
    ]  # fmt: skip
    assert decide(job, [*small[:3], *large, *other], gang_packing=packing).members == ()


def test_a_total_that_groups_do_not_divide_has_a_smaller_last_group() -> None:
    nodes = [in_domain("A", f"a{i}") for i in range(4)]
    decision = decide(a_gang(20, 8), nodes)
    assert decision.gang is not None
    assert [group.gpus for group in decision.gang.groups] == [8, 8, 4]


@pytest.mark.parametrize("packing", GangPacking)
def test_without_groups_one_domain_is_filled_before_the_next(packing: GangPacking) -> None:
    """Dynamic chunks: 30 GPUs of domains with 16, 12 and 8 are cut once more than they must."""
    nodes = [
        in_domain("A", "a1"), in_domain("A", "a2"), in_domain("B", "b1"),
        in_domain("B", "b2", 4), in_domain("C", "c1"),
    ]  # fmt: skip
    decision = decide(a_gang(30), nodes, gang_packing=packing)
    assert [(domain, sum(n.values())) for domain, n in taken(decision)] == [
        ("A", 16), ("B", 12), ("C", 2),
    ]  # fmt: skip
