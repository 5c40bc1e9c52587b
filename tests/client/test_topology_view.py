"""How `longshore topology` looks: what no node says takes no room."""

import io

from rich.console import Console

from longshore.client.topology_view import render_topology
from longshore.models.domains import PoolTopology
from longshore.models.node import Node
from longshore.models.topology import FLAVOR_LABEL, LinkClass
from longshore.scheduling.topology import topology_of
from tests.support.gangs import in_domain, islands
from tests.support.packing import a_node


def shown(*nodes: Node) -> list[str]:
    pool: PoolTopology = topology_of("p", nodes, simulated=["local-1"])
    console = Console(file=io.StringIO(), width=80)
    console.print(render_topology([pool]))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_nodes_that_say_little_fit_a_narrow_terminal_whole() -> None:
    assert shown(a_node("local-1", gpu_type="H100"), a_node("local-2", gpu_type="H100")) == [
        "pool p: 0 domains",
        "domain  node     state            GPUs  used  free  flavor",
        "(none)  local-1  READY simulated     8     0     8  h100",
        "        local-2  READY               8     0     8  h100",
        "2 nodes of no domain: without cluster, fabric.domain, region",
    ]


def test_what_one_node_says_has_its_column() -> None:
    links = islands(tuple(range(8)), within=LinkClass.NVLINK, between=LinkClass.PCIE5)
    spoken = in_domain(
        "A", "n1", busy={0}, topology=links, conformance="550", labels={FLAVOR_LABEL: "H100-80GB"}
    )
    assert shown(spoken, in_domain("A", "n2")) == [
        "pool p: 1 domain",
        "domain  node     state  GPUs  used  free  flavor     link    conformance",
        "r/c/A   2 nodes           16     1    15",
        "        n1       READY     8     1     7  h100-80gb  nvlink  550",
        "        n2       READY     8     0     8",
    ]
