"""Links between the GPUs of this machine, and its fingerprint (driver, firmware, kernel).

Read from NVML, /proc and /sys. All of it is worth knowing and nothing depends on it: what cannot
be read is left out.
"""

import contextlib
import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pynvml

from longshore.models.node import HostFirmware
from longshore.models.topology import LinkClass, NodeTopology, fingerprint

_log = logging.getLogger(__name__)
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NETWORK_CARDS = Path("/sys/class/infiniband")
_KERNEL = Path("/proc/cmdline")
_BOARD = Path("/sys/class/dmi/id")
_BOARD_FACTS = ("bios_vendor", "bios_version", "bios_release", "ec_firmware_release")
"""Of DMI: what the firmware is, and nothing of the one machine, such as a serial number."""
_EVERY_BOARD_HAS = ("bios_vendor", "bios_version")
_PLATFORM = Path("/sys/bus/platform/devices")
_BMC = "ipmi_bmc."
"""What the names of BMCs there begin with."""
_OF_ONE_MACHINE = ("BOOT_IMAGE", "root", "resume", "initrd", "ip", "hostname", "cryptdevice")
"""Kernel parameters that name a disk or a machine: they say nothing of how it is set up."""
_MOST_NVLINKS = 18
_SWITCH = 2
"""What NVML calls the far end of an NVLink that is a switch."""


class Conformance(NamedTuple):
    """What marks machines that are set up alike."""

    fingerprint: str | None = None
    """Of driver, firmware and kernel; None where NVML does not tell."""
    firmware: tuple[HostFirmware, ...] = ()
    """What of the host is in it, and what could not be read; empty where there is none."""


class Ends(NamedTuple):
    """Where the links of one GPU lead."""

    bus_id: str
    """Of the GPU itself, as in /sys: 0000:17:00.0."""
    generation: int
    """Of its PCIe; 0 where it is not known."""
    switched: bool
    """Has an NVLink to a switch."""
    peers: frozenset[str]
    """Bus ids of the GPUs that an NVLink leads to."""
    far: frozenset[str]
    """Bus ids of the GPUs that only the link between processors leads to."""


def read_topology(count: int) -> NodeTopology | None:
    """Return what connects the first `count` GPUs; None for one GPU, or where NVML fails.

    NVML must have been started.
    """
    if count < 2:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        ends = [_ends(handle, handles) for handle in handles]
    except pynvml.NVMLError:
        return None
    nics = cards_beside([gpu.bus_id for gpu in ends])
    return NodeTopology(gpus=tuple(range(count)), links=link_rows(ends), nics=nics)


def read_conformance(count: int) -> Conformance:
    """Return the fingerprint of driver, firmware and kernel, where NVML tells, and what of the
    host's firmware is in it.

    NVML must have been started.
    """
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        vbios = {str(pynvml.nvmlDeviceGetVbiosVersion(handle)) for handle in handles}
    except pynvml.NVMLError:
        return Conformance()
    cards = [*sorted(vbios), *_card_firmware(_NETWORK_CARDS)]
    kernel = kernel_parameters(_read(_KERNEL)) | {"release": platform.release()}
    return conformance_of(driver, cards, host_firmware(), kernel)


def conformance_of(
    driver: str, cards: Sequence[str], host: tuple[HostFirmware, ...], kernel: Mapping[str, str]
) -> Conformance:
    """Return the fingerprint of a machine: of its driver, the firmware of its cards and of the
    host, and its kernel."""
    firmware = ",".join([*cards, *(fact for part in host for fact in part.facts)])
    return Conformance(fingerprint(driver, firmware, kernel), host)


def host_firmware(board: Path = _BOARD, devices: Path = _PLATFORM) -> tuple[HostFirmware, ...]:
    """Return what firmware the machine itself has, of its board and of its BMC. What cannot be
    read is no part of a fingerprint: it is returned, and logged, with the reason."""
    found = (_bios(board), _bmc(devices))
    for each in found:
        if each.missing:
            has = "not all of " if each.facts else "nothing of "
            _log.info(
                "a fingerprint has %sthe firmware of the %s: %s", has, each.part, each.missing
            )
    return found


def _bios(board: Path) -> HostFirmware:
    told = {name: _told(board / name) for name in _BOARD_FACTS}
    facts = tuple(f"{name} {text}" for name, (text, _) in told.items() if text)
    own = [each for name, each in told.items() if name.startswith("bios_")]
    if not any(text for text, _ in own):
        return HostFirmware(part="BIOS", facts=facts, missing=own[0][1])
    # Boards have not all of them: one that is not there is not missing, but for its version.
    lacks = [
        why
        for name, (text, why) in told.items()
        if not text and (name in _EVERY_BOARD_HAS or (board / name).exists())
    ]
    return HostFirmware(part="BIOS", facts=facts, missing="; ".join(lacks))


def _bmc(devices: Path) -> HostFirmware:
    try:
        found = [each for each in sorted(devices.iterdir()) if each.name.startswith(_BMC)]
    except OSError as error:
        return HostFirmware(part="BMC", missing=_why(devices, error))
    told = [_told(each / "firmware_revision") for each in found]
    facts = tuple(f"bmc {text}" for text in sorted({text for text, _ in told if text}))
    missing = [why for _, why in told] or [f"there is no {devices / _BMC}*"]
    return HostFirmware(part="BMC", facts=facts, missing="" if facts else missing[0])


def link_rows(ends: Sequence[Ends]) -> tuple[tuple[LinkClass | None, ...], ...]:
    """Return the links of a topology: a row for each GPU, in the order of `ends`."""
    return tuple(tuple(None if a is b else _link(a, b) for b in ends) for a in ends)


def kernel_parameters(line: str) -> dict[str, str]:
    """Return the kernel's parameters but for those that name this one machine."""
    pairs = (word.partition("=") for word in line.split())
    return {name: value for name, _, value in pairs if name not in _OF_ONE_MACHINE}


def cards_beside(
    bus_ids: Sequence[str], devices: Path = _PCI_DEVICES, cards: Path = _NETWORK_CARDS
) -> tuple[str | None, ...]:
    """Return the network card that is nearest to each GPU on PCIe; () where there is no card.

    None for a GPU whose root complex has no card.
    """
    paths = {card.name: _parents(card / "device") for card in _entries(cards)}
    if not paths:
        return ()
    return tuple(_nearest(_parents(devices / bus_id), paths) for bus_id in bus_ids)


def _link(a: Ends, b: Ends) -> LinkClass:
    if a.switched and b.switched:
        return LinkClass.NVSWITCH
    if b.bus_id in a.peers or a.bus_id in b.peers:
        return LinkClass.NVLINK
    # Between processors it is no faster than the slower PCIe.
    fast = min(a.generation, b.generation) >= 5 and b.bus_id not in a.far
    return LinkClass.PCIE5 if fast else LinkClass.PCIE4


def _ends(handle: object, all_handles: Sequence[object]) -> Ends:
    switched, peers = False, set[str]()
    for link in range(_MOST_NVLINKS):
        with contextlib.suppress(pynvml.NVMLError):  # this GPU has fewer
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH:
                switched = True
            else:
                info = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
                peers.add(_bus_id(info.busId))
    generation = 0
    with contextlib.suppress(pynvml.NVMLError):
        generation = int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    return Ends(
        _own_bus_id(handle), generation, switched, frozenset(peers), _far(handle, all_handles)
    )


def _far(handle: object, all_handles: Sequence[object]) -> frozenset[str]:
    far: set[str] = set()
    for other in all_handles:
        with contextlib.suppress(pynvml.NVMLError):
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
            if other is not handle and level >= pynvml.NVML_TOPOLOGY_SYSTEM:
                far.add(_own_bus_id(other))
    return frozenset(far)


def _own_bus_id(handle: object) -> str:
    return _bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _bus_id(text: str | bytes) -> str:
    """Return ``0000:17:00.0`` from NVML's ``00000000:17:00.0``."""
    name = text.decode() if isinstance(text, bytes) else text
    return name.lower()[-12:]


def _parents(device: Path) -> tuple[str, ...]:
    """Return the way to a device from its root complex: ``pci0000:15``, bridges, device."""
    parts = device.resolve().parts
    roots = [i for i, part in enumerate(parts) if part.startswith("pci")]
    return parts[roots[0] :] if roots else ()


def _nearest(gpu: tuple[str, ...], cards: dict[str, tuple[str, ...]]) -> str | None:
    common = {name: _common(gpu, path) for name, path in cards.items()}
    best = max(sorted(common), key=lambda name: common[name])
    return best if common[best] else None


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many steps from the root two ways have in common."""
    steps = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        steps += 1
    return steps


def _card_firmware(cards: Path) -> list[str]:
    return sorted({_read(card / "fw_ver").strip() for card in _entries(cards)})


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _told(path: Path) -> tuple[str, str]:
    """Return what a file says, and where that is nothing the reason."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        return "", _why(path, error)
    return text, "" if text else f"{path} is empty"


def _why(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror}"
