"""What an agent makes of the links of its GPUs and of how its machine is set up."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.node.gpu_links import (
    Conformance,
    Ends,
    cards_beside,
    conformance_of,
    host_firmware,
    kernel_parameters,
    link_rows,
    read_conformance,
    read_topology,
)
from longshore.models.node import HostFirmware
from longshore.models.topology import LinkClass, NodeTopology
from longshore.workers.local import machine_has_gpus

NVLINK, NVSWITCH, PCIE4, PCIE5 = (
    LinkClass.NVLINK, LinkClass.NVSWITCH, LinkClass.PCIE4, LinkClass.PCIE5,
)  # fmt: skip


def gpu(
    bus_id: str, generation: int = 5, *, switched: bool = False, peers: str = "", far: str = ""
) -> Ends:
    return Ends(bus_id, generation, switched, frozenset(peers.split()), frozenset(far.split()))


def test_links_of_a_switch_of_nvlinks_and_of_pcie():
    switched = [gpu("a", switched=True), gpu("b", switched=True)]
    assert link_rows(switched) == ((None, NVSWITCH), (NVSWITCH, None))
    # One says so, the other does not: the link is there.
    linked = [gpu("a", peers="b"), gpu("b"), gpu("c")]
    rows = link_rows(linked)
    assert rows == ((None, NVLINK, PCIE5), (NVLINK, None, PCIE5), (PCIE5, PCIE5, None))
    assert NodeTopology(gpus=(0, 1, 2), links=rows)


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        (gpu("a", 4), gpu("b", 5), PCIE4),
        (gpu("a", 0), gpu("b", 5), PCIE4),
        (gpu("a", 5, far="b"), gpu("b", 5, far="a"), PCIE4),
        (gpu("a", 5, peers="b", far="b"), gpu("b", 5, far="a"), NVLINK),
        (gpu("a", 5, switched=True), gpu("b", 5), PCIE5),
    ],
)
def test_the_slower_end_and_the_way_between_processors_decide(
    one: Ends, other: Ends, link: LinkClass
):
    assert link_rows([one, other])[0][1] is link


def test_parameters_that_name_a_machine_do_not_count():
    line = "BOOT_IMAGE=/vmlinuz-6.8 root=UUID=1f ro iommu=pt hugepages=16 quiet ip=10.0.0.7\n"
    assert kernel_parameters(line) == {"ro": "", "iommu": "pt", "hugepages": "16", "quiet": ""}


def test_the_nearest_card_on_pcie_is_beside_a_gpu(tmp_path: Path):
    def device(way: str) -> Path:
        path = tmp_path / "devices" / way
        path.mkdir(parents=True)
        return path

    gpus, cards = tmp_path / "pci", tmp_path / "infiniband"
    gpus.mkdir()
    for name, way in {
        "0000:17:00.0": "pci0000:15/15:01.0/16:00.0/0000:17:00.0",
        "0000:2a:00.0": "pci0000:15/15:01.0/16:01.0/0000:2a:00.0",
        "0000:9b:00.0": "pci0000:97/97:01.0/0000:9b:00.0",
    }.items():
        (gpus / name).symlink_to(device(way))
    for name, way in {
        "mlx5_0": "pci0000:15/15:01.0/16:00.0/18:00.0",
        "mlx5_1": "pci0000:15/15:01.0/16:01.0/2b:00.0",
    }.items():
        (cards / name).mkdir(parents=True)
        (cards / name / "device").symlink_to(device(way))
    found = cards_beside(["0000:17:00.0", "0000:2a:00.0", "0000:9b:00.0"], gpus, cards)
    assert found == ("mlx5_0", "mlx5_1", None)
    assert cards_beside(["0000:17:00.0"], gpus, tmp_path / "none") == ()


@pytest.mark.skipif(machine_has_gpus(), reason="this machine has a GPU")
def test_without_a_driver_nothing_is_said():
    assert read_topology(8) is None
    assert read_conformance(8) == Conformance()


def test_one_gpu_has_no_links():
    assert read_topology(1) is None


def test_the_firmware_of_board_and_bmc_is_told_and_no_serial_number(tmp_path: Path):
    board, devices = tmp_path / "dmi", tmp_path / "devices"
    board.mkdir()
    for name, text in (
        ("bios_vendor", "American Megatrends\n"), ("bios_version", "3.2b\n"),
        ("board_serial", "S123\n"), ("product_uuid", "u-u-i-d\n"),
    ):  # fmt: skip
        (board / name).write_text(text)
    (devices / "ipmi_bmc.0").mkdir(parents=True)
    (devices / "ipmi_bmc.0" / "firmware_revision").write_text("1.71\n")
    assert host_firmware(board, devices) == (
        HostFirmware(part="BIOS", facts=("bios_vendor American Megatrends", "bios_version 3.2b")),
        HostFirmware(part="BMC", facts=("bmc 1.71",)),
    )


@pytest.mark.parametrize("part", ["BIOS", "BMC"])
def test_another_firmware_of_the_host_is_another_fingerprint(part: str):
    def of(*facts: str) -> str | None:
        firmware = (HostFirmware(part=part, facts=facts),)
        return conformance_of("570.86", ["96.00"], firmware, {"iommu": "pt"}).fingerprint

    assert of("version 3.2b") == of("version 3.2b")
    assert len({of("version 3.2b"), of("version 3.3"), of()}) == 3


def test_firmware_that_is_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    nowhere = tmp_path / "none"
    bios = f"{nowhere}/bios_vendor: No such file or directory"
    bmc = f"{nowhere}: No such file or directory"
    assert host_firmware(nowhere, nowhere) == (
        HostFirmware(part="BIOS", missing=bios), HostFirmware(part="BMC", missing=bmc)
    )  # fmt: skip
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"a fingerprint has nothing of the firmware of the {part}: {why}"
        for part, why in (("BIOS", bios), ("BMC", bmc))
    ]
    (part,) = (each for each in host_firmware(nowhere, tmp_path) if each.part == "BMC")
    assert part.missing == f"there is no {tmp_path}/ipmi_bmc.*"


def test_a_part_of_the_firmware_that_cannot_be_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    (tmp_path / "bios_vendor").write_text("American Megatrends\n")
    (tmp_path / "bios_release").write_text("\n")
    (bios,) = (part for part in host_firmware(tmp_path, tmp_path) if part.part == "BIOS")
    assert bios == HostFirmware(
        part="BIOS", facts=("bios_vendor American Megatrends",),
        missing=f"{tmp_path}/bios_version: No such file or directory; "
                f"{tmp_path}/bios_release is empty",
    )  # fmt: skip
    said = caplog.records[0].getMessage()
    assert said == f"a fingerprint has not all of the firmware of the BIOS: {bios.missing}"


def test_firmware_that_the_agent_may_not_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    board, bmc = tmp_path / "dmi", tmp_path / "devices" / "ipmi_bmc.0"
    board.mkdir()
    (board / "ec_firmware_release").write_text("1.2\n")
    bmc.mkdir(parents=True)
    (bmc / "firmware_revision").write_text("\n")
    read_text = Path.read_text

    def for_its_owner(path: Path, *args: Any, **options: Any) -> str:
        if path.name.startswith("bios_"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", for_its_owner)
    assert host_firmware(board, bmc.parent) == (
        HostFirmware(
            part="BIOS", facts=("ec_firmware_release 1.2",),
            missing=f"{board}/bios_vendor: Permission denied",
        ),
        HostFirmware(part="BMC", missing=f"{bmc}/firmware_revision is empty"),
    )  # fmt: skip
