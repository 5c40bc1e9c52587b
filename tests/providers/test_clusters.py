"""Clusters of Prime Intellect, and what a gang asks for at San Francisco Compute."""

import contextlib
import copy
import logging
from typing import Any

import pytest

from longshore.activities.providers.access import Access
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.activities.providers.sfcompute_units import moment
from longshore.models.errors import InvalidOrderError
from longshore.models.market import (
    InstanceType,
    MachineRequest,
    MachineState,
    Offer,
    OrderBook,
    OrderRequest,
    OrderState,
    Preview,
    Window,
)
from tests.providers.test_sfcompute import buy
from tests.providers.told import NOW, body, page
from tests.support.scripted_http import Reply, ScriptedHTTP

API, V2 = "/api/v1", "/preview/v2"
CREATE, PODS = f"POST {API}/pods/", f"GET {API}/pods/"
NO_PODS = {"total_count": 0, "data": []}
H100 = InstanceType.parse("8xH100")


def listed(server: ScriptedHTTP, *rows: Any, single: Any = None) -> None:
    """Let a market have these rows of clusters, and one of a single machine."""
    first = single or body("prime_gpus")["items"][0]
    server.on(f"GET {API}/availability/gpus", {"items": [first], "totalCount": 1})
    server.on(f"GET {API}/availability/multi-node", {"items": list(rows), "totalCount": len(rows)})
    server.on(f"GET {API}/availability/gpu-summary", body("prime_summary"))


def a_row(**changed: Any) -> Any:
    (row,) = copy.deepcopy(body("prime_multi_node")["items"])
    return {**row, **changed}


async def a_cluster(server: ScriptedHTTP, prime: Prime) -> Offer:
    listed(server, a_row())
    (found,) = [offer for offer in await prime.offers() if offer.nodes > 1]
    return found


async def test_a_cluster_is_several_machines_at_a_price_for_all(
    server: ScriptedHTTP, prime: Prime
):
    offer = await a_cluster(server, prime)
    assert (offer.instance_type, offer.gpus, offer.nodes) == ("8xH100-80GB", 8, 2)
    assert (offer.price, offer.fabric) == (2_400_000, "infiniband")
    # Whether a row counts the cores of one machine or of all is not said: the less is taken.
    assert (offer.cpus, offer.ram) == (52, 376)


async def test_a_cluster_is_no_machine_of_its_type(server: ScriptedHTTP, prime: Prime):
    await a_cluster(server, prime)
    assert [offer.nodes for offer in await prime.offers(H100)] == [1]
    book = await prime.book(H100)
    assert isinstance(book, OrderBook)
    assert [ask.gpus for ask in book.asks] == [8]


async def test_16_gpus_of_one_machine_are_one_machine(server: ScriptedHTTP, prime: Prime):
    listed(server, single=a_row(interconnectType=None))
    (found,) = await prime.offers()
    assert (found.instance_type, found.gpus, found.nodes) == ("16xH100-80GB", 16, 1)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (a_row(gpuCount=12), "it does not say how its 12 GPUs are spread over machines"),
        (a_row(gpuType="GB200"), "it does not say how its 16 GPUs are spread over machines"),
        (a_row(interconnectType=None), "no fast fabric connects its machines: it names nothing"),
        (a_row(interconnectType="Ethernet"), "no fast fabric connects its machines"),
    ],
)
async def test_a_cluster_that_does_not_say_enough_is_left_out(
    server: ScriptedHTTP, prime: Prime, caplog: pytest.LogCaptureFixture, row: Any, why: str
):
    listed(server, row)
    with caplog.at_level(logging.INFO):
        found = await prime.offers()
    assert [offer.nodes for offer in found] == [1]
    assert why in caplog.text


async def test_a_row_of_clusters_that_is_one_machine_is_one_machine(
    server: ScriptedHTTP, prime: Prime
):
    listed(server, a_row(gpuCount=8, interconnectType=None))
    assert {(offer.gpus, offer.nodes) for offer in await prime.offers()} == {(8, 1)}


async def test_an_order_takes_a_cluster_whole(server: ScriptedHTTP, prime: Prime):
    offer = await a_cluster(server, prime)
    server.on(PODS, NO_PODS)
    server.on(f"GET {API}/pods/history", NO_PODS)
    pod = body("prime_pod", gpuCount=16, clusterId="cluster-1", ip=[None, None],
               sshConnection=[None, None])  # fmt: skip
    server.on(CREATE, pod)
    request = OrderRequest(
        key="p-1.1", instance_type="8xH100-80GB", nodes=2, limit=2_400_000, offer=offer
    )
    with pytest.raises(InvalidOrderError, match="the offer is 2 machines, taken whole"):
        await prime.order(request.model_copy(update={"nodes": 1}))
    order = await prime.order(request)
    assert (order.nodes, order.gpus_per_node) == (2, 8)
    (sent,) = server.seen(CREATE)
    assert (sent.json["pod"]["gpuCount"], sent.json["pod"]["maxPrice"]) == (16, 38.4)
    preview = await prime.preview(request)
    assert isinstance(preview, Preview)
    assert (preview.nodes, preview.price) == (2, 2_400_000)


@pytest.mark.parametrize(
    ("connections", "state"),
    [
        ([None, None], MachineState.STARTING),
        (["ubuntu@10.0.0.1 -p 22", None], MachineState.STARTING),
        (["ubuntu@10.0.0.1 -p 22", "ubuntu@10.0.0.2 -p 22"], MachineState.READY),
    ],
)
async def test_a_cluster_is_ready_when_each_machine_is(
    server: ScriptedHTTP, prime: Prime, connections: list[str | None], state: MachineState
):
    pod = body(
        "prime_pod", gpuCount=16, clusterId="cluster-1", sshConnection=connections, priceHr=38.4,
        status="ACTIVE", installationStatus="FINISHED",
    )  # fmt: skip
    server.on(f"GET {API}/pods/pod_1", pod)
    found = await prime.machine("pod_1")
    assert (found.state, found.nodes, found.gpus, found.instance_type) == (
        state, 2, 16, "8xH100-80GB",
    )  # fmt: skip
    assert found.price == 2_400_000
    order = await prime.order_by_id("pod_1")
    assert (order.state, order.fills[0].nodes) == (OrderState.FILLED, 2)


def skus(**changed: dict[str, Any]) -> Any:
    """Return the SKUs, some with other properties: ``alder={"rdma_type": None}``."""
    found = copy.deepcopy(body("sfcompute_skus"))
    for sku in found["data"]:
        sku.update(changed.get(sku["alias"], {}))
    return found


def value(of: Any) -> dict[str, Any]:
    return {"value": of, "display_value": str(of)}


async def test_a_book_says_by_place_what_connects_its_machines(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    plain = {"rdma_type": None, "supports_public_ipv4": value("no")}
    server.on(f"GET {V2}/instance_skus", skus(birch=plain))
    start = moment(1789995600)
    server.on(f"GET {V2}/orderbook/depth", body("sfcompute_depth"))
    book = await sfcompute.book(H100, Window(start=start, end=moment(1790017200)))
    assert isinstance(book, OrderBook)
    assert book.fabrics == {"isku_alder": "infiniband"}
    assert book.closed == ("isku_birch",)
    assert not sfcompute.capabilities.fast_fabric


def machine(**changed: Any) -> MachineRequest:
    fields = {
        "name": "node-1", "account": "pool_p1", "instance_type": "8xH100",
        "startup_script": "#!/bin/sh\n", "place": "isku_alder",
    }  # fmt: skip
    return MachineRequest.model_validate({**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({}, {"_preview_enable_infiniband": True, "enable_public_ipv4": True}),
        ({"rdma_type": value("roce")}, {"enable_public_ipv4": True}),
        ({"supports_public_ipv4": None}, {"_preview_enable_infiniband": True}),
        ({"supports_public_ipv4": value("no"), "rdma_type": None}, {}),
    ],
)
async def test_a_machine_of_a_gang_asks_for_what_its_place_has(
    server: ScriptedHTTP, sfcompute: SFCompute, changed: dict[str, Any], asked: dict[str, Any]
):
    server.on(f"GET {V2}/instance_skus", skus(alder=changed))
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"GET {V2}/pools/pool_p1", body("sfcompute_pool"))
    server.on(f"POST {V2}/instances", Reply(body("sfcompute_instance"), 201))
    await sfcompute.start_machine(machine(for_gang=True))
    sent = server.requests[-1].json
    assert sent["instance_sku"] == "isku_alder"
    firewall = {"firewall": "sfc:firewall:acme:prod:default"}
    told = {k: v for k, v in sent.items() if "enable" in k or k == "firewall"}
    assert told == asked | (firewall if "enable_public_ipv4" in asked else {})


async def test_another_machine_asks_for_neither(server: ScriptedHTTP, sfcompute: SFCompute):
    server.on(f"GET {V2}/instance_skus", skus())
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"POST {V2}/instances", Reply(body("sfcompute_instance"), 201))
    await sfcompute.start_machine(machine())
    sent = server.requests[-1].json
    assert not {"_preview_enable_infiniband", "enable_public_ipv4", "firewall"} & sent.keys()


async def test_the_firewall_may_be_named(server: ScriptedHTTP, access: Access):
    sfcompute = SFCompute(access, firewall="frwl_mine", clock=lambda: NOW)
    server.on(f"GET {V2}/instance_skus", skus())
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"POST {V2}/instances", Reply(body("sfcompute_instance"), 201))
    await sfcompute.start_machine(machine(for_gang=True))
    assert server.requests[-1].json["firewall"] == "frwl_mine"
    await sfcompute.aclose()


@pytest.mark.parametrize(
    ("named", "passes"),
    [
        ("frwl_mine", True),
        ("sfc:firewall:acme:prod:ranks", True),
        ("ranks", False),
        ("sfc:firewall:acme:ranks", False),
        ("frwl_ranks of prod", False),
    ],
)
async def test_what_names_no_firewall_is_said_before_an_order_for_a_gang(
    server: ScriptedHTTP, access: Access, named: str, passes: bool
):
    sfcompute = SFCompute(access, firewall=named, clock=lambda: NOW)
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"GET {V2}/instances", page())
    said = pytest.raises(InvalidOrderError, match="LONGSHORE_SFCOMPUTE_FIREWALL is neither the id")
    with contextlib.nullcontext() if passes else said:
        await sfcompute.check_start(buy(for_gang=True))
    await sfcompute.check_start(buy())  # machines for other jobs have no firewall
    await sfcompute.aclose()


async def test_a_pool_of_no_known_workspace_needs_a_named_firewall(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on(f"GET {V2}/instance_skus", skus())
    server.on(f"GET {V2}/instances", page())
    server.on(f"GET {V2}/images", body("sfcompute_images"))
    server.on(f"GET {V2}/pools/pool_p1", body("sfcompute_pool", owner="", workspace=""))
    with pytest.raises(InvalidOrderError, match="set LONGSHORE_SFCOMPUTE_FIREWALL"):
        await sfcompute.start_machine(machine(for_gang=True))
