"""Which firmware of a host is in a fingerprint, and which is not and why, on the command line."""

from typing import Any

import pytest

from longshore.client.fingerprints import fingerprints_of, fingerprints_table
from longshore.client.node_view import nodes_table
from longshore.models.node import HostFirmware
from longshore.models.views import NodeView
from tests.support.screens import NOW, a_node, drawn

BIOS = HostFirmware(part="BIOS", facts=("bios_vendor A", "bios_version 3.2b"))
NO_BMC = HostFirmware(part="BMC", missing="/sys/x: Permission denied")
BMC = HostFirmware(part="BMC", facts=("bmc 1.71",))


def of(name: str, fingerprint: str | None, *firmware: HostFirmware, **fields: Any) -> NodeView:
    return a_node(None, id=name, conformance=fingerprint, firmware=firmware, **fields)


NODES = (
    *(of(f"node-{n}", "1f0e", BIOS, NO_BMC) for n in range(5)),
    of("node-5", "2a2a", BIOS, BMC), of("older", "3b3b"), of("simulated", None),
)  # fmt: skip


def test_nodes_that_are_set_up_alike_are_one_row() -> None:
    found = fingerprints_of(NODES)
    assert [(each.fingerprint, each.named) for each in found] == [
        ("1f0e", "node-0, node-1, node-2 and 2 more"), ("2a2a", "node-5"), ("3b3b", "older")
    ]  # fmt: skip
    assert [each.lines for each in found] == [
        ("BIOS: A, version 3.2b", "BMC not read: /sys/x: Permission denied"),
        ("BIOS: A, version 3.2b", "BMC: version 1.71"),
        ("not known: the agent is older, or has not registered since the upgrade",),
    ]


def test_a_part_that_is_read_in_part_says_both_and_a_fact_of_a_newer_agent_is_shown() -> None:
    firmware = HostFirmware(
        part="BIOS", facts=("ec_firmware_release 1.4", "boot_block 7"), missing="not there"
    )
    (found,) = fingerprints_of([of("a", "1f", firmware)])
    assert found.lines == (
        "BIOS: embedded controller 1.4, boot_block 7", "BIOS not read: not there"
    )  # fmt: skip


def test_one_fingerprint_with_other_reasons_is_another_row() -> None:
    other = HostFirmware(part="BMC", missing="there is no BMC")
    found = fingerprints_of((of("a", "1f0e", BIOS, NO_BMC), of("b", "1f0e", BIOS, other)))
    assert [each.nodes for each in found] == [("a",), ("b",)]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_a_line_for_each_part(width: int) -> None:
    facts = ("bios_vendor American Megatrends", "bios_version 3.2b", "bios_release 5.32")
    lines = drawn(
        fingerprints_table(
            fingerprints_of(
                of(f"machine-of-rack-{n}", "1f0e6b2c9d4a7e35",
                   HostFirmware(part="BIOS", facts=facts), NO_BMC)
                for n in range(9)
            )
        ),
        width,
    )  # fmt: skip
    assert len(lines) <= 5, lines
    text = " ".join(lines)
    for said in (
        "1f0e6b2c9d4a7e35",
        "BIOS: American",
        "BMC not read: /sys/x:",
        "machine-of-rack-2 and 6",
    ):
        assert said in text


def test_a_long_type_of_gpu_leaves_the_names_of_nodes_in_the_table() -> None:
    text = "\n".join(drawn(nodes_table([of("node-7", None, gpu_type="\u202e" * 33)], NOW, 80)))
    assert "node-7" in text
    assert "READY" in text
