"""Turns Prime Intellect's rows and pods into ours."""

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any

from pydantic import ValidationError

from longshore.activities.providers.prime_shapes import Pod, Row
from longshore.models.market import (
    Fill,
    InstanceType,
    Machine,
    MachineState,
    Offer,
    Order,
    OrderState,
)
from longshore.models.money import MICRO

NAME = "prime"
PLAIN_IMAGE = "ubuntu_22_cuda_12"
TEMPLATE_IMAGE = "custom_template"
_WITHOUT_VARIABLES = ("runpod",)
"""Sellers that the market's own client leaves out where an order has environment variables."""
_log = logging.getLogger(__name__)
_GPU_TYPE = re.compile(r"^(?P<gpu>[A-Za-z].*?)(_(?P<vram>\d+)GB)?$")
_OVER = ("DELETING", "TERMINATED")
CLUSTER_NODE_GPUS = 8
"""Of each machine of a cluster: the rows count the GPUs of all, and do not say it."""
_OTHER_NODES = ("GB200", "GB300")
"""Machines of these have another number."""
_FABRICS = ("infiniband", "roce", "nvlink")
"""What counts as fast fabric between machines."""
_OUR_NAME = re.compile(r"(?P<purchase>p-.+)-(?P<number>\d+)")


def gpu_of(gpu_type: str, count: int, memory: int | None = None) -> InstanceType | None:
    """Return the type of a row: ``H100_80GB`` and 8 are 8xH100-80GB. None for one without GPUs,
    and for one that nobody could write: types are kept and shown as text.

    `memory` is the row's GB of one GPU, for those whose name says none, such as ``GB200``.
    """
    match = _GPU_TYPE.match(gpu_type)
    if match is None or gpu_type == "CPU_NODE" or not 1 <= count <= 9999:
        return None
    vram = float(match["vram"] or memory or 0) or None
    try:
        kind = InstanceType(gpus=count, gpu_type=match["gpu"].upper(), vram=vram)
        InstanceType.parse(str(kind))
    except ValueError:
        return None
    return kind


def name_of(key: str) -> str:
    """Return what a pod is called that an order's key makes: letters, digits and dashes alone, as
    the market's own client has it."""
    return key.replace(".", "-")


def key_of(name: str | None) -> str:
    """Return the key that a pod has its name of; any other name as it is."""
    match = _OUR_NAME.fullmatch(name or "")
    return f"{match['purchase']}.{match['number']}" if match else name or ""


def offers(rows: Sequence[Row], template: str | None, *, simulated: bool) -> list[Offer]:
    """Return what can be bought, cheapest first; what is left out is logged with its reason.

    With `template` each starts from it. One where no agent would come up says so: `unusable`.
    """
    found: list[Offer] = []
    for row in rows:
        try:
            if not (reason := _why_not(row)):
                found.append(_offer(row, template, simulated))
        except (ValueError, ArithmeticError) as error:  # an odd row spoils no other
            mistake = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            reason = f"it is not as documented: {mistake}"
        if reason:
            _log.info("%s: left out an offer of %s: %s", NAME, row.gpuType[:80], reason)
    return sorted(found, key=lambda offer: (offer.price, offer.gpus, offer.id))


def ended(pod: Pod) -> Pod:
    """Return a pod of the history, where none has a status, and not each a time of its end."""
    return pod.model_copy(update={"status": "TERMINATED"}) if pod.status == "UNKNOWN" else pod


def is_over(pod: Pod) -> bool:
    """Return whether a pod has ended: nothing more is billed for it."""
    return pod.status == "TERMINATED" or pod.terminatedAt is not None


def order(pod: Pod, *, simulated: bool) -> Order:
    """Return a pod as the order that it is: filled once it runs."""
    kind = _kind(pod)
    state = _order_state(pod)
    return Order(
        provider=NAME,
        id=pod.id,
        key=key_of(pod.name) or None,
        state=state,
        instance_type=str(kind) if kind else "",
        gpus_per_node=max(pod.gpuCount // _nodes_of(pod), 1),
        nodes=_nodes_of(pod),
        fills=_fills(pod, state),
        created_at=pod.createdAt,
        reason=pod.installationFailure or "",
        simulated=simulated,
        native_state=pod.status,
    )


def machine(pod: Pod, *, simulated: bool) -> Machine:
    kind = _kind(pod)
    return Machine(
        provider=NAME,
        id=pod.id,
        name=key_of(pod.name),
        state=_machine_state(pod),
        instance_type=str(kind) if kind else "",
        gpus=pod.gpuCount,
        nodes=_nodes_of(pod),
        order_id=pod.id,
        price=_per_gpu(pod.priceHr, pod.gpuCount),
        billed=_micro(pod.totalBilledPrice),
        address=_host(pod) or (pod.ip[0] if pod.ip else None),
        created_at=pod.createdAt,
        ended_at=pod.terminatedAt,
        reason=pod.installationFailure or "",
        simulated=simulated,
        native_state=f"{pod.status}/{pod.installationStatus or '-'}",
    )


def _why_not(row: Row) -> str:
    if gpu_of(row.gpuType, row.gpuCount, row.gpuMemory) is None:
        return "it has no GPUs, or a type that is not as documented"
    if (row.stockStatus or "Available").casefold() == "unavailable":
        return "there is no stock"
    if _row_price(row) is None:
        return "it has no price"
    if row.prices.currency != "USD":
        return f"its price is in {row.prices.currency}"
    return _why_no_cluster(row) if row.several else ""


def _why_no_cluster(row: Row) -> str:
    """Return why a row of several machines is left out: what it does not say is not guessed."""
    if row.gpuType in _OTHER_NODES or row.gpuCount % CLUSTER_NODE_GPUS:
        return f"it does not say how its {row.gpuCount} GPUs are spread over machines"
    fabric = row.interconnectType or "nothing"
    if row.gpuCount > CLUSTER_NODE_GPUS and not any(f in fabric.casefold() for f in _FABRICS):
        return f"no fast fabric connects its machines: it names {fabric}"
    return ""


def _row_price(row: Row) -> Decimal | None:
    """Return dollars an hour for the whole row."""
    community = row.prices.communityPrice
    return community if community is not None else row.prices.onDemand


def _unusable(row: Row, template: str | None) -> str:
    """Return why no agent would come up on a row."""
    if template is None:
        return "whose image runs no start-up script (LONGSHORE_PRIME_TEMPLATE is not set)"
    if row.provider in _WITHOUT_VARIABLES:
        return (
            f"of {row.provider}, which the market's own client leaves out where there are "
            "environment variables"
        )
    if TEMPLATE_IMAGE not in row.images:
        return f"whose `images` lack {TEMPLATE_IMAGE}, for the template"
    return ""


def _offer(row: Row, template: str | None, simulated: bool) -> Offer:
    price = _row_price(row) or Decimal(0)
    nodes = row.gpuCount // CLUSTER_NODE_GPUS if row.several else 1
    gpus = row.gpuCount // nodes
    kind = gpu_of(row.gpuType, gpus, row.gpuMemory)
    parts = (
        row.provider, row.cloudId, row.dataCenter or "-", row.country or "-", row.gpuType,
        row.socket, str(row.gpuCount), row.security, "spot" if row.isSpot else "kept",
    )  # fmt: skip
    return Offer(
        provider=NAME,
        id="/".join(parts),
        instance_type=str(kind),
        gpus=gpus,
        nodes=nodes,
        fabric=(row.interconnectType or "").casefold() if nodes > 1 else "",
        # Up: a limit at this price must not fall below that of the row.
        price=int((price * MICRO / row.gpuCount).to_integral_value(ROUND_CEILING)),
        spot=bool(row.isSpot),
        variable=bool(row.prices.isVariable),
        stock=row.stockStatus or "Available",
        seller=row.provider,
        region=row.region,
        country=row.country,
        community=row.security == "community_cloud",
        image=template or _image(row),
        unusable=_unusable(row, template),
        prepaid=timedelta(hours=float(row.prepaidTime or 0)),
        startup=None if row.provisioningTime is None else timedelta(minutes=row.provisioningTime),
        cpus=_share(row.vcpu, nodes),
        ram=_share(row.memory, nodes),
        simulated=simulated,
        native=_native(row, template),
    )


def _native(row: Row, template: str | None) -> dict[str, Any]:
    """Return what the order has to repeat of the row, in the words of the order."""
    from_template = {"image": TEMPLATE_IMAGE, "customTemplateId": template}
    echoed: dict[str, Any] = {
        "cloudId": row.cloudId,
        "gpuType": row.gpuType,
        "socket": row.socket,
        "gpuCount": row.gpuCount,
        "security": row.security,
        "dataCenterId": row.dataCenter,
        "country": row.country,
        "diskSize": _default(row.disk),
        "vcpus": _default(row.vcpu),
        "memory": _default(row.memory),
        **(from_template if template else {"image": _image(row)}),
    }
    pod = {name: value for name, value in echoed.items() if value is not None}
    return {"pod": pod, "provider": {"type": row.provider}}


def _image(row: Row) -> str:
    return row.images[0] if row.images and PLAIN_IMAGE not in row.images else PLAIN_IMAGE


def _default(spec: Any) -> int | None:
    return spec.defaultCount if spec and spec.defaultCount else None


def _share(spec: Any, nodes: int) -> float | None:
    """Return what each machine has: of a cluster, as if the row counted all of them together."""
    whole = _default(spec)
    return None if whole is None else whole / nodes


def _nodes_of(pod: Pod) -> int:
    """Return how many machines a pod is: one, unless it is a cluster."""
    return max(pod.gpuCount // CLUSTER_NODE_GPUS, 1) if pod.clusterId else 1


def _kind(pod: Pod) -> InstanceType | None:
    return gpu_of(pod.gpuName, pod.gpuCount // _nodes_of(pod)) if pod.gpuName else None


def _order_state(pod: Pod) -> OrderState:
    if pod.status == "ERROR":
        return OrderState.REJECTED
    if pod.status in _OVER or pod.terminatedAt is not None:
        return OrderState.CANCELLED
    if pod.status in ("ACTIVE", "STOPPED"):
        return OrderState.FILLED
    return OrderState.PENDING


def _fills(pod: Pod, state: OrderState) -> tuple[Fill, ...]:
    """Return the one fill of a pod that ran, may have, or was billed for whatever became of it;
    its cost is known when it has ended."""
    billed = _micro(pod.totalBilledPrice)
    may_have = state is OrderState.CANCELLED and billed is None
    if not (state is OrderState.FILLED or may_have or billed):
        return ()
    price = _per_gpu(pod.priceHr, pod.gpuCount) or 0
    at = pod.createdAt or datetime.fromtimestamp(0, UTC)
    cost = billed if is_over(pod) else None
    return (Fill(at=at, nodes=_nodes_of(pod), price=price, cost=cost),)


def _machine_state(pod: Pod) -> MachineState:
    """Return READY only for a pod that can be used: ACTIVE alone has been seen to lie."""
    if is_over(pod):
        return MachineState.ENDED
    if pod.status == "DELETING":
        return MachineState.ENDING
    if pod.status in ("ERROR", "STOPPED") or pod.installationStatus in ("ERROR", "TERMINATED"):
        return MachineState.FAILED
    up = pod.status == "ACTIVE" and pod.installationStatus == "FINISHED"
    usable = up and len(_hosts(pod)) >= _nodes_of(pod)
    return MachineState.READY if usable else MachineState.STARTING


def _host(pod: Pod) -> str | None:
    return next(iter(_hosts(pod)), None)


def _hosts(pod: Pod) -> list[str]:
    """Return the hosts of the SSH connections, such as ``user@host -p port``: one a machine."""
    found: list[str] = []
    for connection in pod.sshConnection:
        words = [word for word in connection.split() if "@" in word]
        host = words[0].partition("@")[2] if words else ""
        if host and host.lower() not in ("null", "none"):
            found.append(host)
    return found


def _per_gpu(dollars: Decimal | None, gpus: int) -> int | None:
    if dollars is None or gpus < 1 or dollars < 0:
        return None
    return int((dollars * MICRO / gpus).to_integral_value(ROUND_HALF_EVEN))


def _micro(dollars: Decimal | None) -> int | None:
    if dollars is None or dollars < 0:
        return None
    return int((dollars * MICRO).to_integral_value(ROUND_HALF_EVEN))
