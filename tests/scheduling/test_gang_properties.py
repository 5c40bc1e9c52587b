"""What must hold for every gang on every set of nodes, checked without the planner's own code."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.gang import GangPacking
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, Node, NodeState
from longshore.models.placement import Decision, PlacementKind, RejectionCode
from longshore.models.topology import (
    FABRIC_LABELS,
    FLAVOR_LABEL,
    Conformance,
    Gang,
    LinkClass,
    SameConformance,
)
from longshore.scheduling.placement.state import with_job, without_jobs
from tests.support.gangs import a_gang, decide, in_domain, islands, taken
from tests.support.packing import NOW, POLICY
from tests.support.reference_machine import ends_too_soon

MARGIN = timedelta(hours=1, minutes=5)
EPSILON = 1e-6
TOPOLOGY = islands((0, 1), (2, 3), within=LinkClass.NVLINK, between=LinkClass.PCIE4)


@st.composite
def gang_nodes(draw: st.DrawFn, name: str) -> Node:
    """A node that would do for most gangs, or one of four with something about it."""
    gpus = draw(st.sampled_from([8, 4, 2]))
    home = draw(st.sampled_from("ABC"))
    plain = in_domain(
        home,
        name,
        gpus,
        busy=draw(st.sets(st.integers(0, gpus - 1), max_size=2)),
        gpu_type="H100",
        container_runtime="docker",
        conformance=draw(st.sampled_from(["new", "new", "old", None])),
        epoch=draw(st.integers(0, 3)),
        topology=TOPOLOGY if gpus == 4 else None,
    )
    return plain.model_copy(update=draw(oddities) if draw(st.integers(0, 3)) == 3 else {})


def labelled(**labels: str) -> dict[str, object]:
    home = {"region": "r", "cluster": "c", "fabric.domain": "A"}
    return {"labels": home | {name.replace("_", "."): value for name, value in labels.items()}}


oddities: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [
        {"gpus": ()},
        {"gpus": tuple(GPU(index=i, vram=24) for i in range(8))},
        {"gpu_type": "A100"},
        labelled(gpu_flavor="H100-80GB"),
        *(labelled(**{name.replace(".", "_"): ""}) for name in FABRIC_LABELS),
        {"cpus": 4},
        {"cpus": 9, "cpus_used": 3},
        {"ram": 40, "ram_used": 30},
        {"storage_bandwidth": 8, "storage_used": 3},
        {"power": 2100, "gpu_power": 700},
        {"power": 1000, "power_used": 300, "gpu_power": 350},
        {"tier": Tier.FLEX},
        {"state": NodeState.DRAINING},
        {"state": NodeState.GONE},
        {"expires_at": NOW + MARGIN},
        {"expires_at": NOW + MARGIN / 2},
        {"container_runtime": None},
    ]
)


@st.composite
def gangs(draw: st.DrawFn) -> JobRequest:
    gpus = draw(st.sampled_from([12, 16, 5, 9, 20, 24, 30, 3, 1]))
    size = draw(st.sampled_from([None, 4, 5, 8, 3, 1, gpus]).map(lambda n: n and min(n, gpus)))
    return a_gang(
        gpus,
        size,
        allow_cross_group_spread=draw(st.sampled_from([True, True, True, False])),
        spares_per_group=draw(st.sampled_from([0, 1, 3])) if size else 0,
        spares_required=draw(st.sampled_from([False, False, True])),
        same_conformance=draw(st.sampled_from(SameConformance)),
        conformance=draw(
            st.sampled_from([None, None, Conformance(known=True), Conformance(allowed=("old",))])
        ),
        unlabelled_nodes=draw(st.booleans()),
        gpu_type=draw(st.sampled_from([None, "H100", "H100", "h100-80gb"])),
        cpus=draw(st.sampled_from([0, 2 * gpus, 1 / 3])),
        ram=draw(st.sampled_from([0, 5 * gpus])),
        storage_bandwidth=draw(st.sampled_from([0, gpus])),
        power_per_gpu=draw(st.sampled_from([None, None, 300])),
        needs_container=draw(st.booleans()),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [draw(gang_nodes(f"n{i}")) for i in range(draw(sizes))]


sizes = st.sampled_from([8, 6, 9, 7, 4, 2, 1, 0])
packings = st.sampled_from(GangPacking)


@given(gangs(), clusters(), packings)
def test_a_placement_is_whole_and_keeps_every_rule(
    job: JobRequest, nodes: list[Node], packing: GangPacking
):
    decision = decide(job, nodes, gang_packing=packing)
    if decision.kind is not PlacementKind.EXISTING_NODE:
        assert decision.members == ()
        assert decision.gang is not None
        assert (decision.gang.groups, bool(decision.gang.refusal)) == ((), True)
        return
    assert sum(len(m.gpu_indices) for m in decision.members) == job.gpus
    by_id = {node.id: node for node in nodes}
    assert_groups(job, decision, by_id)
    assert_nodes_suit(job, decision, by_id)
    assert_capacity(job, decision, by_id)
    assert_residuals(job, decision, nodes)
    assert_spares(job, decision, by_id)


@given(gangs(), clusters(), packings)
def test_a_gang_waits_only_where_it_cannot_fit(
    job: JobRequest, nodes: list[Node], packing: GangPacking
):
    placed = decide(job, nodes, gang_packing=packing).kind is PlacementKind.EXISTING_NODE
    fits = [fewest for room in rooms(job, nodes) if (fewest := fewest_domains(job, room))]
    if needs_spares(job):
        assert fits or not placed
    else:
        assert placed == bool(fits)


@given(gangs(), clusters())
def test_best_fit_uses_the_fewest_domains(job: JobRequest, nodes: list[Node]):
    decision = decide(job, nodes)
    if decision.gang and decision.gang.fits:
        fewest = [n for room in rooms(job, nodes) if (n := fewest_domains(job, room))]
        used = decision.gang.domains_used
        assert used >= min(fewest) if needs_spares(job) else used == min(fewest)


@given(gangs(), st.data(), packings)
def test_the_order_of_the_nodes_does_not_matter(
    job: JobRequest, data: st.DataObject, packing: GangPacking
):
    nodes = data.draw(clusters())
    turned = data.draw(st.permutations(nodes))
    one = decide(job, nodes, gang_packing=packing)
    other = decide(job, turned, gang_packing=packing)
    assert one == decide(job, nodes, gang_packing=packing)
    unordered = {"rejections": frozenset(one.rejections)}
    assert one.model_copy(update=unordered) == other.model_copy(
        update={"rejections": frozenset(other.rejections)}
    )


def at_its_best(node: Node) -> Node:
    """Ready, empty and with time left: what "could ever" means."""
    if node.state is NodeState.GONE:
        return node
    ready = {"state": NodeState.READY, "expires_at": None}
    return without_jobs(node).model_copy(update=ready)


@given(gangs(), clusters(), packings)
def test_every_node_is_chosen_or_could_be_or_has_a_reason(
    job: JobRequest, nodes: list[Node], packing: GangPacking
):
    decision = decide(job, nodes, gang_packing=packing)
    refused = {r.node_id: r.code for r in decision.rejections}
    assert not refused.keys() & {m.node_id for m in decision.members}
    assert decision.rejected == Counter(refused.values())
    never = "could ever hold it" in decision.reason
    assert not never or all(r.permanent for r in decision.rejections)
    for node in nodes:
        could = capacity(job, at_its_best(node) if never else node) > 0
        domain_too_small = refused.get(node.id) is RejectionCode.DOMAIN
        assert could == (node.id not in refused or domain_too_small)
        assert not (domain_too_small and decision.members)


@given(clusters(), st.integers(1, 24))
def test_dynamic_chunks_are_those_of_the_seed(nodes: list[Node], gpus: int):
    """Fill the domain with most free GPUs before the next, and its nodes alike, then by name."""
    job = a_gang(gpus, same_conformance=SameConformance.IGNORE, gpu_type="H100", cpus=0, ram=0)
    usable = [node for node in nodes if capacity(job, node)]
    if len({flavor(node) for node in usable}) > 1:
        return
    domains: dict[str, list[Node]] = defaultdict(list)
    for node in usable:
        domains[node.labels["fabric.domain"]].append(node)
    free = {name: sum(capacity(job, n) for n in members) for name, members in domains.items()}
    expected: list[tuple[str, dict[str, int]]] = []
    for name in sorted(domains, key=lambda name: (-free[name], name)):
        chunk: dict[str, int] = {}
        for node in sorted(domains[name], key=lambda n: (-capacity(job, n), n.id)):
            if gpus > 0:
                chunk[node.id] = min(capacity(job, node), gpus)
                gpus -= chunk[node.id]
        if chunk:
            expected.append((name, chunk))
    decision = decide(job, nodes, gang_packing=GangPacking.PACK_TO_EMPTY)
    assert taken(decision) == (expected if gpus == 0 else [])


@given(gangs(), clusters(), packings)
def test_what_is_placed_can_be_held_by_the_nodes_as_they_then_are(
    job: JobRequest, nodes: list[Node], packing: GangPacking
):
    decision = decide(job, nodes, gang_packing=packing)
    by_id = {node.id: node for node in nodes}
    for member in decision.members:
        node = by_id[member.node_id]
        by_id[node.id] = with_job(node, job, member.gpu_indices)
    for node in by_id.values():
        for used, size in zip(node.host_used, node.host, strict=True):
            assert used <= size + EPSILON


def assert_groups(job: JobRequest, decision: Decision, by_id: dict[str, Node]) -> None:
    assert job.gang is not None
    groups: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for member in decision.members:
        groups[member.group].append((member.node_id, member.gpu_indices))
    sizes = [sum(len(gpus) for _, gpus in groups[n]) for n in range(len(groups))]
    if job.gang.group_gpus:
        size = job.gang.group_gpus
        assert sizes[:-1] == [size] * (len(sizes) - 1)
        assert 0 < sizes[-1] <= size
    homes = [{domain(by_id[node_id], job.gang) for node_id, _ in groups[n]} for n in groups]
    assert all(len(home) == 1 for home in homes)
    assert decision.gang is not None
    assert decision.gang.domains_used == len(set.union(*homes))
    if not job.gang.allow_cross_group_spread:
        assert decision.gang.domains_used == 1


def assert_nodes_suit(job: JobRequest, decision: Decision, by_id: dict[str, Node]) -> None:
    assert job.gang is not None
    chosen = [by_id[m.node_id] for m in decision.members]
    assert all(suits(job, node) for node in chosen)
    assert len({flavor(node) for node in chosen}) == 1
    fingerprints = {node.conformance for node in chosen}
    if job.gang.same_conformance is SameConformance.REQUIRE:
        assert len(fingerprints) == 1
        assert None not in fingerprints
    for member in decision.members:
        assert member.epoch == by_id[member.node_id].epoch


def assert_capacity(job: JobRequest, decision: Decision, by_id: dict[str, Node]) -> None:
    assert decision.gang is not None
    held: dict[str, list[int]] = defaultdict(list)
    for group in decision.gang.groups:
        for share in (*group.nodes, *group.spares):
            assert list(share.gpu_indices) == sorted(share.gpu_indices)
            held[share.node_id] += share.gpu_indices
    for node_id, indices in held.items():
        node = by_id[node_id]
        usable = {g.index for g in node.gpus if g.job_id is None and g.vram - g.vram_used >= 40}
        assert len(set(indices)) == len(indices)
        assert set(indices) <= usable
        assert len(indices) <= capacity(job, node)


def assert_residuals(job: JobRequest, decision: Decision, nodes: Sequence[Node]) -> None:
    assert decision.gang is not None
    assert job.gang is not None
    free = sum(
        sum(g.job_id is None for g in node.gpus)
        for node in nodes
        if node.state is NodeState.READY and domain(node, job.gang)
    )
    spares = decision.gang.spares_found
    assert sum(room.free for room in decision.gang.domains) == free
    assert sum(room.residual for room in decision.gang.domains) == free - job.gpus - spares
    assert spares <= decision.gang.spares_wanted
    assert spares == decision.gang.spares_wanted or not needs_spares(job)


def assert_spares(job: JobRequest, decision: Decision, by_id: dict[str, Node]) -> None:
    """Spares are on nodes where no rank is, and of use: no group would cross domains by them."""
    assert decision.gang is not None
    assert job.gang is not None
    ranks = {member.node_id for member in decision.members}
    assert not ranks & {spare.node_id for spare in decision.spares}
    for group in decision.gang.groups:
        for share in group.spares:
            home = domain(by_id[share.node_id], job.gang)
            homes = {domain(by_id[node.node_id], job.gang) for node in group.nodes}
            if len(group.nodes) > 1 or not job.gang.allow_cross_group_spread:
                assert {home} == homes
    stand_by = [(s.node_id, s.gpu_indices) for g in decision.gang.groups for s in g.spares]
    assert [(s.node_id, s.gpu_indices) for s in decision.spares] == stand_by


def needs_spares(job: JobRequest) -> bool:
    return job.gang is not None and bool(job.gang.spares_per_group) and job.gang.spares_required


def suits(job: JobRequest, node: Node) -> bool:
    assert job.gang is not None
    wanted = (job.gpu_type or "").casefold()
    return (
        node.state is NodeState.READY
        and node.tier is job.tier
        and wanted in ("", node.gpu_type.casefold(), flavor(node))
        and not (job.needs_container and node.container_runtime is None)
        and domain(node, job.gang) is not None
        and not (job.gang.same_conformance is SameConformance.REQUIRE and node.conformance is None)
        and (
            job.conformance is None
            or node.conformance in (job.conformance.allowed or ("old", "new"))
        )
        and not ends_too_soon(node, job, POLICY, NOW)
    )


def capacity(job: JobRequest, node: Node) -> int:
    """Return the most GPUs that the node could give, by trying each number."""
    if not suits(job, node):
        return 0
    usable = sum(
        gpu.job_id is None and gpu.vram - gpu.vram_used >= job.vram_per_gpu for gpu in node.gpus
    )
    watts = node.gpu_power if job.power_per_gpu is None else job.power_per_gpu
    return max(
        n
        for n in range(usable + 1)
        if n == 0
        or (
            job.cpus * n / job.gpus <= node.cpus - node.cpus_used + EPSILON
            and job.ram * n / job.gpus <= node.ram - node.ram_used + EPSILON
            and job.storage_bandwidth * n / job.gpus <= left(node)[0] + EPSILON
            and n * watts <= left(node)[1] + EPSILON
        )
    )


def left(node: Node) -> tuple[float, float]:
    """Return the GB/s of storage bandwidth and the watts that are left, without limit infinite."""
    storage = math.inf if node.storage_bandwidth is None else node.storage_bandwidth
    power = math.inf if node.power is None else node.power
    return storage - node.storage_used, power - node.power_used


def rooms(job: JobRequest, nodes: Sequence[Node]) -> list[dict[object, int]]:
    """Return the room of each domain, for each set of nodes that a gang may be made on."""
    assert job.gang is not None
    by_kind: dict[object, Counter[object]] = defaultdict(Counter)
    for node in nodes:
        required = job.gang.same_conformance is SameConformance.REQUIRE
        kind = flavor(node), node.conformance if required else None
        if gpus := capacity(job, node):
            by_kind[kind][domain(node, job.gang)] += gpus
    return [dict(room) for room in by_kind.values()]


def fewest_domains(job: JobRequest, room: dict[object, int]) -> int | None:
    """Return how many domains the gang needs, by trying every set of them."""
    assert job.gang is not None
    most = len(room) if job.gang.allow_cross_group_spread else 1
    for size in range(1, most + 1):
        if any(holds(job, list(chosen)) for chosen in combinations(room.values(), size)):
            return size
    return None


def holds(job: JobRequest, room: list[int]) -> bool:
    assert job.gang is not None
    if job.gang.group_gpus is None or not job.gang.allow_cross_group_spread:
        return sum(room) >= job.gpus
    groups, last = divmod(job.gpus, job.gang.group_gpus)
    full = sum(gpus // job.gang.group_gpus for gpus in room)
    if full > groups or not last:
        return full >= groups
    return full == groups and any(gpus % job.gang.group_gpus >= last for gpus in room)


def domain(node: Node, gang: Gang) -> object:
    labels = tuple(node.labels.get(name) for name in FABRIC_LABELS)
    if all(labels):
        return labels
    return node.id if gang.unlabelled_nodes else None


def flavor(node: Node) -> str:
    return node.labels.get(FLAVOR_LABEL, node.gpu_type).casefold()
