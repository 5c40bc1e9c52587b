"""Which firmware of a host is in a fingerprint, and which is not and why, as people see it."""

from typing import Any

import pytest

from client.fingerprints import fingerprints_of, fingerprints_table
from console.fingerprints import fingerprints_html
from models.node import HostFirmware
from models.views import NodeView
from tests.client.test_screens import a_node, drawn

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
    assert [each.cells for each in fingerprints_of(NODES)] == [
        (
            "1f0e", "node-0, node-1, node-2 and 2 more", "BIOS: bios_vendor A, bios_version 3.2b",
            "BMC: /sys/x: Permission denied",
        ),
        ("2a2a", "node-5", "BIOS: bios_vendor A, bios_version 3.2b; BMC: bmc 1.71", ""),
        (
            "3b3b", "older",
            "not said by the agent: it is older, or has not registered since the upgrade", "",
        ),
    ]  # fmt: skip


def test_one_fingerprint_with_other_reasons_is_another_row() -> None:
    other = HostFirmware(part="BMC", missing="there is no BMC")
    found = fingerprints_of((of("a", "1f0e", BIOS, NO_BMC), of("b", "1f0e", BIOS, other)))
    assert [each.nodes for each in found] == [("a",), ("b",)]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_both(width: int) -> None:
    text = " ".join("\n".join(drawn(fingerprints_table(fingerprints_of(NODES)), width)).split())
    for said in ("1f0e", "bios_version", "Permission", "bmc 1.71"):
        assert said in text


def test_the_page_has_both_and_shows_text_of_agents_as_text() -> None:
    assert fingerprints_html([of("simulated", None)]) == ""
    html = fingerprints_html([*NODES, of("odd", "4c", HostFirmware(part="BIOS", facts=("<b>",)))])
    assert '<h2 id="fingerprints">Fingerprints</h2>' in html
    assert "BMC: /sys/x: Permission denied" in html
    assert "bios_vendor A, bios_version 3.2b" in html
    assert "BIOS: &lt;b&gt;" in html
    many = fingerprints_html(of(f"node-{n}", f"{n:x}") for n in range(150))
    assert many.count("<tr>") == 101
    assert "and 50 more" in many
