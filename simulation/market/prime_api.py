"""The cloud's HTTP API as Prime Intellect's v1 has it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.routing import Mount

from longshore.models.money import MICRO
from longshore.simulation.market.faults import PRIME
from longshore.simulation.market.http import (
    Answer,
    Api,
    ApiError,
    Call,
    Handler,
    Problem,
    invalid,
    unlagged,
)
from longshore.simulation.market.instances import decode_script
from longshore.simulation.market.market import Market
from longshore.simulation.market.offers import IMAGES, KINDS, TEMPLATE, Row
from longshore.simulation.market.pods import EmptyWalletError, Pod

STARTUP = "LONGSHORE_STARTUP"
"""Environment variable of a pod that holds its start-up script, in base64."""
_USER = "user_simulated"
_WALLET = "wallet_simulated"
_SHOWN_ENDED = 60.0
"""Seconds that a pod which has ended is still shown by its id."""
_LATE_DELETE = 10.0
"""Seconds that a pod goes on for after an answer that it is deleted."""
_MISSING = {
    "dataCenterId": "Missing field: data_center_id",
    "maxPrice": "Missing field: max_price not specified",
}
"""What it says of an order without a field: the second by issue 141 of PrimeIntellect-ai/prime,
the first as a user of the API quotes it."""
Json = dict[str, Any]
Positive = Annotated[StrictInt, Field(gt=0)]


class EnvVar(BaseModel):
    key: StrictStr
    value: StrictStr


class PodWanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cloudId: StrictStr
    gpuType: StrictStr
    socket: StrictStr
    gpuCount: Positive
    name: StrictStr | None = None
    dataCenterId: StrictStr | None = None
    country: StrictStr | None = None
    security: Literal["secure_cloud", "community_cloud"] | None = None
    diskSize: Positive | None = None
    vcpus: Positive | None = None
    memory: Positive | None = None
    maxPrice: Annotated[float, Field(ge=0)] | None = None
    image: StrictStr = "ubuntu_22_cuda_12"
    customTemplateId: StrictStr | None = None
    envVars: list[EnvVar] | None = None
    jupyterPassword: StrictStr | None = None
    sshKeyId: StrictStr | None = None
    autoRestart: bool = False
    prepaidForHr: Annotated[float, Field(gt=0)] | None = None


class ProviderWanted(BaseModel):
    type: StrictStr


class Team(BaseModel):
    teamId: StrictStr


class PodBody(BaseModel):
    pod: PodWanted
    provider: ProviderWanted
    disks: list[str] | None = None
    team: Team | None = None


def routes(market: Market, token: str) -> Mount:
    api = Api(PRIME, market, token, error)
    return Mount("/api/v1", routes=[api.route(*each) for each in _ROUTES])


def error(problem: ApiError) -> Json:
    if problem.status == 422 and problem.kind == "fastapi":
        return {
            "detail": [
                {"loc": ["body", *where.split(".")], "msg": text, "type": code}
                for where, code, text in problem.problems
            ]
        }
    if problem.status in (401, 422):
        listed: tuple[Problem, ...] = problem.problems or (("authorization", "", problem.message),)
        return {"errors": [{"param": where, "details": text} for where, _, text in listed]}
    return {"detail": problem.message}


def _gpus(call: Call) -> Answer:
    return _listed(call, lambda row: row.nodes == 1)


def _clusters(call: Call) -> Answer:
    return _listed(call, lambda row: row.nodes > 1)


def _listed(call: Call, kept: Callable[[Row], bool]) -> Answer:
    number = call.whole_number("page", 1, 1, 10**6)
    size = call.whole_number("page_size", 100, 1, 100)
    if call.market.world.faults.take("empty_availability", PRIME):
        return Answer({"items": [], "totalCount": 0})
    rows = [row for row in call.market.cloud.offers.rows if kept(row) and _asked_for(call, row)]
    shown = rows[(number - 1) * size : number * size]
    return Answer({"items": [row.json() for row in shown], "totalCount": len(rows)})


def _asked_for(call: Call, row: Row) -> bool:
    regions = call.queries("regions")
    count = call.query("gpu_count")
    return (
        (not regions or row.place[2] in regions)
        and count in (None, str(row.count))
        and call.query("gpu_type") in (None, row.kind.gpu_type)
        and call.query("socket") in (None, row.kind.socket)
        and call.query("security") in (None, row.json()["security"])
        and call.query("data_center_id") in (None, row.place[0])
        and call.query("cloud_id") in (None, row.cloud_id)
    )


def _summary(call: Call) -> Answer:
    found: dict[str, dict[str, Json]] = {name: {} for name in KINDS}
    for row in call.market.cloud.offers.rows:
        if row.nodes > 1 or row.stock == "Unavailable":
            continue
        cell = found[row.kind.gpu_type].setdefault(str(row.count), {})
        prices = row.json()["prices"]
        for place in ("cheapest", row.place[2]):
            cheapest = cell.setdefault(
                place, {"onDemand": None, "communityPrice": None, "spotPrice": None}
            )
            key = "spotPrice" if row.spot else "onDemand"
            key = "communityPrice" if row.seller.community else key
            price = prices["communityPrice"] or prices["onDemand"]
            cheapest[key] = min(cheapest[key] or price, price)
    return Answer(found)


def _create(call: Call) -> Answer:
    body = call.body(PodBody)
    _refuse_by_fault(call)
    row = _row(call, body)
    pod, knobs = body.pod, call.market.world.knobs
    for name in row.seller.needs:
        if getattr(pod, name) is None:
            raise ApiError(400, _MISSING[name])
    refuses = call.market.world.faults.take(
        "seller_refuses", PRIME, "POST /pods/", seller=row.seller.name
    )
    if pod.image not in row.images or refuses:
        raise ApiError(400, f"image {pod.image} is not supported by the provider")
    if len(call.market.cloud.living()) >= knobs.pod_cap:
        raise ApiError(400, f"you may have at most {knobs.pod_cap} running instances")
    if is_over(row.price, pod.maxPrice):
        raise ApiError(400, "the price of this offer is over max_price")
    try:
        made = call.market.cloud.create(
            row, pod.model_dump(exclude_none=True), disk=pod.diskSize, script=_script(pod, row),
            team=body.team.teamId if body.team else None,
        )  # fmt: skip
    except EmptyWalletError:
        raise ApiError(402, "the balance of the wallet is too low") from None
    return Answer(_pod(made))


def _refuse_by_fault(call: Call) -> None:
    take = call.market.world.faults.take
    if take("fastapi_error", PRIME):
        where = ("pod.gpuType", "enum", "simulated: not a GPU type")
        raise ApiError(422, "the request is invalid", kind="fastapi", problems=[where])
    if take("funds", PRIME, "POST /pods/"):
        raise ApiError(402, "the balance of the wallet is too low")
    if take("stale_offer", PRIME):
        raise ApiError(400, "the selected offer is no longer available")
    if take("pod_cap", PRIME):
        raise ApiError(400, "you have reached the limit of running instances")


def _row(call: Call, body: PodBody) -> Row:
    pod = body.pod
    known = {seller.seller.name for seller in call.market.cloud.offers.rows}
    found = call.market.cloud.offers.find(
        lambda row: (
            (row.cloud_id, row.kind.gpu_type) == (pod.cloudId, pod.gpuType)
            and (row.kind.socket, row.count) == (pod.socket, pod.gpuCount)
            and row.seller.name == body.provider.type
            and pod.dataCenterId in (None, row.place[0])
        )
    )
    if found is None and pod.gpuType not in KINDS:
        raise invalid([("pod.gpuType", "enum", "is no known GPU type")])
    if found is None and known and body.provider.type not in known:
        raise ApiError(400, "no such provider, or it offers nothing now")
    if found is None:
        raise ApiError(400, "the selected offer is no longer available")
    return found


def _script(pod: PodWanted, row: Row) -> str | None:
    """Return what the pod runs when it starts: nothing, but from a template that is told to."""
    if pod.image != TEMPLATE or pod.customTemplateId is None or row.seller.drops_variables:
        return None
    for variable in pod.envVars or ():
        if variable.key == STARTUP:
            return decode_script(variable.value)
    return None


def _pods(call: Call) -> Answer:
    rows = unlagged(call, PRIME, call.market.cloud.living())
    return _cut(call, [_pod(pod) for pod in rows])


def _one(call: Call) -> Answer:
    return Answer(_odd(call, [_pod(_shown(call))])[0])


def _statuses(call: Call) -> Answer:
    wanted = call.queries("pod_ids")
    shown = (
        "providerType", "status", "sshConnection", "ip", "installationStatus",
        "installationFailure", "installationProgress", "priceHr", "primePortMapping",
    )  # fmt: skip
    rows = [
        {"podId": pod.id, **{key: _pod(pod)[key] for key in shown}}
        for pod in call.market.cloud.living()
        if pod.id in wanted
    ]
    return Answer({"data": _odd(call, rows)})


def _log(call: Call) -> Answer:
    pod = _living(call)
    return Answer(f"simulated pod {pod.id}: {pod.status}")


def _delete(call: Call) -> Answer:
    pod = _living(call)
    if call.market.world.faults.take("delete_error", PRIME):
        raise ApiError(500, "something went wrong")
    cloud, world = call.market.cloud, call.market.world
    if world.faults.take("delete_late", PRIME):
        world.clock.after(_LATE_DELETE, lambda: cloud.delete(pod))
    else:
        cloud.delete(pod)
    return Answer({"status": pod.status})


def _history(call: Call) -> Answer:
    sort = call.query("sort_by") or "terminatedAt"
    if sort not in ("terminatedAt", "createdAt"):
        raise invalid([("sort_by", "enum", "must be terminatedAt or createdAt")])
    ended = [pod for pod in call.market.cloud.pods.values() if pod.over]
    ended.sort(
        key=lambda pod: (pod.terminated_at or 0.0) if sort == "terminatedAt" else pod.created_at,
        reverse=call.query("sort_order") != "asc",
    )
    return _cut(call, [_ended(pod) for pod in ended])


def _wallet(call: Call) -> Answer:
    limit = call.whole_number("limit", 20, 1, 100)
    offset = call.whole_number("offset", 0, 0, 10**6)
    team = call.query("teamId")
    wallet = call.market.cloud.wallet_of(team)
    moves = [move for move in reversed(wallet.movements) if move.kind == "pod"]
    billings = [
        {
            "id": move.id, "created_at": _time(move.at), "updated_at": _time(move.at),
            "amount_usd": -move.amount / MICRO, "currency": "USD", "resource_type": "compute",
            "resource_id": move.reference, "last_billed_at": _time(move.at),
        }
        for move in moves[offset : offset + limit]
    ]  # fmt: skip
    return Answer(
        {
            "wallet_id": _wallet_id(team),
            "balance_usd": wallet.balance / MICRO,
            "currency": "USD",
            "total_billings": len(moves),
            "recent_billings": billings,
            "team_id": team,
        }
    )


def _wallet_id(team: str | None) -> str:
    return f"wallet_{team}" if team else _WALLET


def _whoami(call: Call) -> Answer:
    return Answer({"data": {"id": _USER, "email": "simulated@example.com", "name": "simulated"}})


def _cut(call: Call, rows: list[Json]) -> Answer:
    offset = call.whole_number("offset", 0, 0, 10**6)
    limit = call.whole_number("limit", 100, 1, 100)
    data = _odd(call, rows[offset : offset + limit])
    return Answer({"total_count": len(rows), "offset": offset, "limit": limit, "data": data})


def is_over(price: int, max_price: float | None) -> bool:
    """Return whether micro-dollars are more than a `maxPrice` in dollars. 0 is none: SkyPilot
    always sends it."""
    return bool(max_price) and price > round(max_price * MICRO)


def _shown(call: Call) -> Pod:
    """Return a pod that lives, or has ended a moment ago: without its bill, which the history has.

    Raises ApiError (404).
    """
    pod = call.market.cloud.pods.get(call.path("id"))
    until = (pod.terminated_at or 0.0) + _SHOWN_ENDED if pod is not None else 0.0
    return pod if pod is not None and call.market.world.clock.now < until else _living(call)


def _living(call: Call) -> Pod:
    pod = call.market.cloud.pods.get(call.path("id"))
    if pod is None or pod.over:
        raise ApiError(404, "Pod not found")
    return pod


def _odd(call: Call, rows: list[Json]) -> list[Json]:
    """Give the first row that has a status one that nobody has heard of, when that is set."""
    told = next((row for row in rows if "status" in row), None)
    if told is not None and call.market.world.faults.take("unknown_status", PRIME):
        told["status"] = "RETICULATING"
    return rows


def _pod(pod: Pod) -> Json:
    nodes = pod.row.nodes
    address = "127.0.0.1" if pod.ssh and not pod.over else None
    ssh = f"ubuntu@{address} -p 22" if address else None
    progress = {"PENDING": None, "ACTIVE": 50, "FINISHED": 100}.get(pod.installation)
    return {
        "id": pod.id,
        "userId": _USER,
        "teamId": pod.team,
        "walletId": _wallet_id(pod.team),
        "name": pod.name,
        "type": "HOSTED",
        "providerType": pod.row.seller.name,
        "status": pod.status,
        "installationStatus": pod.installation,
        "installationFailure": pod.failure,
        "installationProgress": progress,
        "createdAt": _time(pod.created_at),
        "updatedAt": _time(pod.updated_at),
        "terminatedAt": None if pod.terminated_at is None else _time(pod.terminated_at),
        "gpuName": pod.row.kind.gpu_type,
        "gpuCount": pod.row.count,
        "socket": pod.row.kind.socket,
        "priceHr": pod.rate / MICRO,
        "stoppedPriceHr": None,
        "provisioningPriceHr": 0,
        "environmentType": pod.wanted.get("image", IMAGES[0]),
        "customTemplateId": pod.wanted.get("customTemplateId"),
        "clusterId": f"cluster-{pod.id}" if nodes > 1 else None,
        "primePortMapping": [],
        "sshConnection": [ssh] * nodes if nodes > 1 else ssh,
        "ip": [address] * nodes if nodes > 1 else address,
        "resources": {
            "memory": 94 * pod.row.count,
            "disk": pod.wanted.get("diskSize", pod.row.default_disk),
            "shared_disk": None,
            "vcpus": 13 * pod.row.count,
        },
        "attachedResources": [],
        "isSpot": pod.row.spot,
        "autoRestart": pod.wanted.get("autoRestart", False),
    }


def _ended(pod: Pod) -> Json:
    """Return a pod as the history has it: what it was and what it cost, and no status."""
    whole = _pod(pod)
    kept = (
        "id", "name", "providerType", "createdAt", "terminatedAt", "gpuName", "gpuCount",
        "socket", "priceHr", "userId", "teamId",
    )  # fmt: skip
    return {
        **{name: whole[name] for name in kept},
        "provisionedBy": "simulated",
        "type": "Instance" if whole["clusterId"] is None else "Cluster",
        "totalBilledPrice": pod.billed / MICRO,
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/availability/gpus", _gpus),
    ("GET", "/availability/multi-node", _clusters),
    ("GET", "/availability/gpu-summary", _summary),
    ("POST", "/pods/", _create),
    ("GET", "/pods/", _pods),
    ("GET", "/pods/status", _statuses),
    ("GET", "/pods/history", _history),
    ("GET", "/pods/{id}", _one),
    ("GET", "/pods/{id}/log", _log),
    ("DELETE", "/pods/{id}", _delete),
    ("GET", "/billing/wallet", _wallet),
    ("GET", "/user/whoami", _whoami),
]
