"""How the plan of a gang looks: its groups on their nodes, and what each domain has left."""

from collections.abc import Mapping, Sequence

from longshore.client.words import tenths
from longshore.models.gang import GangPlan, NodeShare
from longshore.models.node import Node
from longshore.scheduling.placement.links import slowest_link

GROUP_HEADINGS = ("group", "domain", "node", "GPUs", "slowest link")
DOMAIN_HEADINGS = ("domain", "nodes", "GPUs", "free", "for it", "left")


def group_rows(plan: GangPlan, nodes: Mapping[str, Node]) -> list[tuple[str, ...]]:
    """Return a line for each share of a group, and for each node where its spares would be."""
    held: dict[str, set[int]] = {}
    for group in plan.groups:
        for share in (*group.nodes, *group.spares):
            held.setdefault(share.node_id, set()).update(share.gpu_indices)
    rows: list[tuple[str, ...]] = []
    for group in plan.groups:
        for number, share in enumerate(group.nodes):
            first = (str(group.number), group.domain) if number == 0 else ("", "")
            rows.append((*first, *_share(share, nodes.get(share.node_id), held[share.node_id])))
        rows += [
            ("", "spares", *_share(share, nodes.get(share.node_id), held[share.node_id]))
            for share in group.spares
        ]
    return rows


def domain_rows(plan: GangPlan) -> list[tuple[str, ...]]:
    """Return a line for each domain: its nodes and GPUs, and how many are free and stay so."""
    return [
        (room.domain, *map(str, (room.nodes, room.gpus, room.free, room.usable, room.residual)))
        for room in plan.domains
    ]


def slots(gpu_indices: Sequence[int], node: Node | None, others: Sequence[int] = ()) -> str:
    """Return one character for each GPU: `#` for the job, `x` in use, `·` free, a digit for one
    in parts (tenths in use), and `+` for `others`, which go to other groups of the job."""
    chosen, also = set(gpu_indices), set(others) - set(gpu_indices)
    if node is None:
        return "".join("#" if i in chosen else "·" for i in range(max(chosen, default=-1) + 1))
    return "".join(
        "#" if gpu.index in chosen
        else "+" if gpu.index in also
        else tenths(gpu.milli_used, gpu.slices_used) if gpu.parts
        else "x" if gpu.job_id or gpu.vram_used
        else "·"
        for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)
    )  # fmt: skip


def _share(share: NodeShare, node: Node | None, held: set[int]) -> tuple[str, str, str]:
    link = slowest_link(node.topology, share.gpu_indices) if node else None
    speed = f"{link} {link.gb_per_second} GB/s" if link else ""
    return share.node_id, f"[{slots(share.gpu_indices, node, sorted(held))}]", speed
