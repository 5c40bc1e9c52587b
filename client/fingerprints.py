"""Fingerprints of nodes: who has which, what firmware of the host is in it, and what is not."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table

from client.terminal import a_table
from models.node import HostFirmware
from models.views import NodeView
from scheduling.words import listed

HEADINGS = ("fingerprint", "nodes", "host firmware in it", "not in it")
_NODES = 3
"""Nodes of a fingerprint that are named."""
_NOT_SAID = "not said by the agent: it is older, or has not registered since the upgrade"


class Alike(NamedTuple):
    """Nodes with one fingerprint, whose agents say the same of their hosts' firmware."""

    fingerprint: str
    firmware: tuple[HostFirmware, ...]
    nodes: tuple[str, ...]
    """By id."""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """A row below `HEADINGS`."""
        found = [f"{each.part}: {', '.join(each.facts)}" for each in self.firmware if each.facts]
        missing = [f"{each.part}: {each.missing}" for each in self.firmware if each.missing]
        return (
            self.fingerprint,
            listed(self.nodes, _NODES),
            "; ".join(found) if self.firmware else _NOT_SAID,
            "; ".join(missing),
        )


def fingerprints_of(nodes: Iterable[NodeView]) -> tuple[Alike, ...]:
    """Return the fingerprints of these nodes; none of those that have none, as simulated ones."""
    found: dict[tuple[str, tuple[HostFirmware, ...]], list[str]] = {}
    for node in nodes:
        if node.conformance:
            found.setdefault((node.conformance, node.firmware), []).append(node.id)
    return tuple(Alike(*key, tuple(sorted(ids))) for key, ids in found.items())


def fingerprints_table(fingerprints: Sequence[Alike]) -> Table:
    table = a_table(HEADINGS, fold=HEADINGS[1:])
    for each in fingerprints:
        table.add_row(*each.cells)
    return table
