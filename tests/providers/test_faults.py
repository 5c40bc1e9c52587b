"""What the real clients make of every fault of the simulated market's switchboard."""

from collections.abc import AsyncIterator

import httpx
import pytest

from longshore.models.errors import (
    MarketAwayError,
    MarketError,
)
from longshore.simulation.market.faults import FAULTS, FOREVER, PRIME
from longshore.simulation.market.faults import SFCOMPUTE as SFC
from longshore.simulation.market.server import MarketServer
from tests.providers import fault_scenes_of_prime  # noqa: F401 (it adds scenes)
from tests.providers.fault_scenes import CREATE, ROWS, SCENES, Shop, client_of
from tests.providers.told import Sleeps
from tests.support.local_stack import ROOT
from tests.support.market_contract import Control, Room


@pytest.fixture
async def shop(
    provider: str, running: MarketServer, controls: httpx.AsyncClient, room: Room
) -> AsyncIterator[Shop]:
    """Starts a simulated market, and yields a shop at it; 0.02 s."""
    sleeps = Sleeps()
    client = client_of(provider, running, sleeps)
    control = Control(controls, provider)
    yield Shop(client, control, CREATE[provider], running.market, running, room, sleeps)
    await client.aclose()


def test_every_fault_is_met_by_every_client_that_it_concerns():
    switchboard = {(f.name, provider) for f in FAULTS.values() for provider in f.providers}
    assert set(SCENES) == switchboard


def test_the_page_says_what_the_clients_make_of_every_fault():
    page = (ROOT / "docs" / "providers.md").read_text()
    heading = "| fault | at | what the client makes of it |\n|---|---|---|\n"
    table = page.partition(heading)[2].partition("\n\n")[0]
    assert table.splitlines() == ROWS


@pytest.mark.parametrize(("fault", "provider"), SCENES)
async def test_it_is_met(shop: Shop, fault: str):
    await SCENES[fault, shop.name](shop, fault)
    assert shop.happened(fault) >= 1


@pytest.mark.parametrize("provider", [PRIME])
@pytest.mark.parametrize("trouble", ["unavailable", "malformed_json", "unauthorized"])
async def test_a_lost_pod_that_cannot_be_looked_for_is_not_made_twice(shop: Shop, trouble: str):
    request = await shop.request()
    pods = "GET /pods/history"  # read after the list of live pods, in every look
    await shop.fault_at(shop.create_route, "dropped")
    await shop.control.fault("list_lag", FOREVER)
    with pytest.raises(MarketAwayError) as raised:
        await shop.provider.order(request)
    assert raised.value.uncertain
    await shop.fault_at(pods, trouble, FOREVER)
    with pytest.raises((MarketAwayError, MarketError)) as refusal:
        await shop.provider.order(request)
    assert getattr(refusal.value, "uncertain", True)
    await shop.control.clear_faults()
    order = await shop.provider.order(request)
    assert shop.made() == {order.id}


@pytest.mark.parametrize("provider", [PRIME, SFC])
async def test_a_refusal_after_a_lost_answer_leaves_an_order_uncertain(shop: Shop):
    request = await shop.request()
    faults = shop.simulated.world.faults
    next_call = "GET /pods/" if shop.name == PRIME else shop.create_route

    async def withdraw_the_token(seconds: float) -> None:
        faults.set("unauthorized", provider=shop.name, route=next_call)

    client = client_of(shop.name, shop.server, withdraw_the_token)
    await shop.control.fault("list_lag", FOREVER)
    await shop.fault_at(shop.create_route, "dropped")
    with pytest.raises(MarketAwayError) as raised:
        await client.order(request)
    assert raised.value.uncertain
    assert shop.happened("unauthorized") == 1
    await shop.control.clear_faults()
    assert {(await client.order(request)).id} == shop.made()
    await client.aclose()
