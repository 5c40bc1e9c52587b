"""What nodes hold: data sets, images and environments, in tables."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.models.addresses import without_secrets
from longshore.models.data import HeldData, python_of_name
from longshore.models.text import ago
from longshore.models.units import format_bytes

HEADINGS = ("holds", "of", "from", "size", "there", "used")


class HeldOnNodes(NamedTuple):
    """One data set, image or environment, and how much of it each node has."""

    what: HeldData
    """As the node has it that has most."""
    nodes: tuple[str, ...]
    """Those that have all of it by name, the others with their part: ``node-3 (40 %)``."""


def held_on_nodes(holdings: Mapping[str, Sequence[HeldData]]) -> tuple[HeldOnNodes, ...]:
    """Return what the nodes hold, the largest first: who names the same source means the same.
    The Python of a node, which is no data, is a fact of that node."""
    found: dict[tuple[str, str], dict[str, HeldData]] = {}
    for node_id, held in sorted(holdings.items()):
        for each in held:
            if python_of_name(each.name):
                continue
            on = found.setdefault((each.tenant, each.source or each.name), {})
            if node_id not in on or on[node_id].bytes < each.bytes:
                on[node_id] = each
    all_of_it = [
        HeldOnNodes(
            max(on.values(), key=lambda each: each.bytes),
            tuple(node if is_whole(each) else f"{node} ({part_of(each)})"
                  for node, each in on.items()),
        )
        for on in found.values()
    ]  # fmt: skip
    return tuple(sorted(all_of_it, key=lambda each: (-each.what.total, each.what.name)))


def is_whole(held: HeldData) -> bool:
    return held.bytes >= held.total


def part_of(held: HeldData) -> str:
    """Return ``40 %`` of what is there in part."""
    return "all" if is_whole(held) else f"{100 * held.bytes // held.total} %"


def holds_table(holds: Sequence[HeldData], now: datetime) -> Table:
    table = a_table(HEADINGS, fold=("holds", "from"))
    for each in holds:
        source = without_secrets(each.source)
        if not each.total:  # an image, or the Python: nobody knows more than that it is there
            table.add_row(each.name, each.tenant, source, "", "", "")
            continue
        used = "" if each.used_at is None else ago(each.used_at, now)
        size, part = format_bytes(each.total), part_of(each)
        table.add_row(each.name, each.tenant, source, size, part, used)
    return table
