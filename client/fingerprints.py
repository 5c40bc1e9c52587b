"""Fingerprints of nodes: who has which, what firmware of the host is in it, and what is not."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table

from longshore.client.terminal import SeveralLines, a_table
from longshore.models.node import HostFirmware
from longshore.models.text import listed
from longshore.models.views import NodeView

HEADINGS = ("fingerprint", "nodes", "host firmware")
_NODES = 3
"""Nodes of a fingerprint that are named."""
_WIDEST_NODES = 24
"""Columns of the table that nodes take at most: the firmware has the longer text."""
_WORDS = {
    "bios_vendor": "", "bios_version": "version", "bios_release": "release",
    "ec_firmware_release": "embedded controller", "bmc": "version",
}  # fmt: skip
"""What agents name the facts, as people do."""
_NOT_KNOWN = "not known: the agent is older, or has not registered since the upgrade"


class Alike(NamedTuple):
    """Nodes with one fingerprint, whose agents say the same of their hosts' firmware."""

    fingerprint: str
    firmware: tuple[HostFirmware, ...]
    nodes: tuple[str, ...]
    """By id."""

    @property
    def named(self) -> str:
        """The first nodes, and how many more."""
        return listed(self.nodes, _NODES)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is known of the firmware, and what could not be read and why: a line for each."""
        return tuple(line for each in self.firmware for line in _lines(each)) or (_NOT_KNOWN,)


def fingerprints_of(nodes: Iterable[NodeView]) -> tuple[Alike, ...]:
    """Return the fingerprints of these nodes; none of those that have none, as simulated ones."""
    found: dict[tuple[str, tuple[HostFirmware, ...]], list[str]] = {}
    for node in nodes:
        if node.conformance:
            found.setdefault((node.conformance, node.firmware), []).append(node.id)
    return tuple(Alike(*key, tuple(sorted(ids))) for key, ids in found.items())


def changed_words(nodes: Iterable[NodeView]) -> str:
    """Say which nodes have another fingerprint than was accepted; empty where none has."""
    changed = [node.id for node in nodes if node.changed]
    if not changed:
        return ""
    return (
        f"{listed(changed, _NODES)}: another fingerprint than was accepted, so no sensitive job "
        f"is placed there. Where that is as it should be: longshore accept {changed[0]}"
    )


def fingerprints_table(fingerprints: Sequence[Alike]) -> Table:
    table = a_table(HEADINGS, fold=HEADINGS[2:], widest={HEADINGS[1]: _WIDEST_NODES})
    for each in fingerprints:
        table.add_row(each.fingerprint, each.named, SeveralLines(each.lines))
    return table


def _lines(firmware: HostFirmware) -> list[str]:
    facts = ", ".join(_fact(each) for each in firmware.facts)
    found = [f"{firmware.part}: {facts}"] if facts else []
    if firmware.missing:
        found.append(f"{firmware.part} not read: {firmware.missing}")
    return found


def _fact(fact: str) -> str:
    name, _, value = fact.partition(" ")
    return f"{_WORDS.get(name, name)} {value}".strip()
