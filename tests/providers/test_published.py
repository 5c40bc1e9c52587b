"""Every request that the clients send, and every answer of the simulated market, as published.

What is published is in `published_sfcompute.py` and `published_prime.py`, with its sources.
"""

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.errors import MarketAwayError, MarketError
from longshore.models.market import InstanceType, MachineState, Offer, Side
from longshore.models.money import MICRO
from longshore.simulation.market.background import Profile
from tests.providers import published_prime, published_sfcompute
from tests.providers.contract import TYPE, Market
from tests.providers.exchanges import Endpoint, Exchange, Recorder, endpoint_of, mistakes
from tests.providers.shapes import unverified
from tests.support.market import RunningMarket, running_market
from tests.support.market_contract import QUICK, Control
from tests.support.market_shop import V2

SFC, PRIME = "sfcompute", "prime"
PUBLISHED = {SFC: published_sfcompute.ENDPOINTS, PRIME: published_prime.ENDPOINTS}
REFUSALS = {
    SFC: ("order_invalid", "maintenance"),
    PRIME: ("stale_offer", "pod_cap", "fastapi_error"),
}
UNVERIFIED = {("GET /v1/balances", "answer.updated_at")}
"""Fields that no source gives a kind: any value passes."""


@dataclass(frozen=True)
class Said:
    """All that one client and the market said to each other."""

    provider: str
    exchanges: Sequence[Exchange]

    @property
    def published(self) -> Sequence[Endpoint]:
        return PUBLISHED[self.provider]

    def success(self, asked: str) -> Exchange:
        """Return the last exchange of a call that succeeded, which tells most."""
        return next(
            each
            for each in reversed(self.exchanges)
            if each.status < 300
            and (call := endpoint_of(each, self.published))
            and call.asked == asked
        )


@pytest.fixture(params=[SFC, PRIME])
def said(request: pytest.FixtureRequest) -> Said:
    """Makes every call of a client to a simulated market, once; 3 s."""
    return _recorded(request.param)


@cache
def _recorded(name: str) -> Said:
    with running_market(Profile.CALM, seed=7, balance=100_000 * MICRO) as running:
        return Said(name, asyncio.run(_all_calls(name, running)))


async def _all_calls(name: str, running: RunningMarket) -> list[Exchange]:
    token = SecretStr(running.token)
    async with (
        Recorder(running.url) as recorder,
        httpx.AsyncClient(
            base_url=running.url, headers=running.headers, trust_env=False, timeout=60
        ) as controls,
    ):
        access = Access(recorder.url, token, "simulated")
        for number, client in enumerate(_clients(name, access)):
            market = Market(client, Control(controls, name), "")
            try:
                await _ask_and_buy(market)
                if number:
                    continue
                if isinstance(client, SFCompute):
                    await _trade(market, running)
                else:
                    await _take_offers(market)
                await _be_refused(market)
            finally:
                await client.aclose()
        return recorder.exchanges


def _clients(name: str, access: Access) -> Sequence[SFCompute | Prime]:
    """Return a client with the settings that it needs to buy, and one with all of them."""
    if name == SFC:
        own: dict[str, str] = {"workspace": "wksp_simulated", "image": "image_ubuntu2404"}
        return SFCompute(access, patience=QUICK), SFCompute(access, patience=QUICK, **own)
    plain = Prime(access, patience=QUICK, template="template-1")
    return plain, Prime(access, patience=QUICK, team="team-1", template="template-1")


async def _ask_and_buy(market: Market) -> None:
    """Make the calls that both clients have."""
    provider = market.provider
    await provider.account()
    await provider.instance_types()
    await provider.book(TYPE)
    await provider.book(InstanceType.parse("3xABACUS"))
    await provider.offers()
    await provider.preview(await market.request())
    machine = await market.start()
    await market.reached(machine.id, MachineState.READY)
    await provider.orders()
    await provider.machines()
    await provider.stop_machine(machine.id)
    await market.reached(machine.id, MachineState.ENDED)
    await provider.orders()
    await provider.find_order("never-was")


async def _trade(market: Market, running: RunningMarket) -> None:
    """Make the calls of an exchange: a standing order, a sale, and a list of two pages."""
    provider = market.provider
    bought = await market.request()
    await market.settled((await provider.order(bought)).id)
    sale = bought.model_copy(
        update={"key": market.key(), "side": Side.SELL, "standing": True, "limit": 10**9}
    )
    await provider.preview(sale)
    order = await provider.order(sale)
    await provider.cancel_order(order.id)
    await market.settled(order.id)
    await provider.preview(await market.request(nodes=1000))
    with suppress(MarketError):  # the key was used with another window
        await provider.order(bought.model_copy(update={"nodes": 2}))
    for number in range(201):
        body = {"workspace": "wksp_simulated", "name": f"pool-{number}"}
        running.http.post(f"{V2}/pools", json=body).raise_for_status()
    await provider.make_account("on-a-second-page")


async def _take_offers(market: Market) -> None:
    """Take an offer of every kind, and give it back."""
    provider = market.provider
    kinds = {_kind(offer) for offer in await provider.offers() if not offer.unusable}
    assert len(kinds) >= 4
    for kind in sorted(kinds):
        usable = [each for each in await provider.offers() if not each.unusable]
        offer = next(each for each in usable if _kind(each) == kind)
        request = await market.request(
            offer=offer, nodes=offer.nodes, instance_type=offer.instance_type,
            limit=offer.price, key=market.key(),
        )  # fmt: skip
        order = await provider.order(request)
        await market.control.advance(timedelta(minutes=15))
        await provider.order_by_id(order.id)
        await provider.cancel_order(order.id)
        await provider.order_by_id(order.id)
    await market.control.fault("empty_availability", times=2)
    with suppress(MarketAwayError):
        await provider.offers()


def _kind(offer: Offer) -> tuple[bool, bool, bool]:
    return offer.spot, bool(offer.prepaid), offer.nodes > 1


async def _be_refused(market: Market) -> None:
    request = await market.request()
    name = market.provider.name
    anywhere = ("unauthorized", "forbidden", "rate_limited", "unavailable", "server_error")
    for fault in (*anywhere, "funds", *REFUSALS[name]):
        await market.control.fault(fault)
        with suppress(MarketError, MarketAwayError):
            await market.provider.account()
        with suppress(MarketError, MarketAwayError):
            await market.provider.preview(request)
        with suppress(MarketError, MarketAwayError):
            await market.provider.order(request.model_copy(update={"key": market.key()}))
    for unknown in (market.provider.order_by_id, market.provider.machine):
        with suppress(MarketError):
            await unknown("never-was")
    with suppress(MarketError):
        await market.provider.cancel_order("never-was")
    await market.provider.stop_machine("never-was")


def test_requests_and_answers_are_as_the_vendor_publishes_them(said: Said):
    found = [line for each in said.exchanges for line in mistakes(each, said.published)]
    assert list(dict.fromkeys(found)) == []


def test_every_call_of_the_list_was_made_and_succeeded(said: Said):
    made = {
        call.asked
        for each in said.exchanges
        if each.status < 300 and (call := endpoint_of(each, said.published))
    }
    assert made == {call.asked for call in said.published}


def test_the_refusals_were_among_what_was_checked(said: Said):
    statuses = {each.status for each in said.exchanges}
    assert {401, 402, 403, 404, 422, 429, 500, 503} <= statuses
    assert (409 if said.provider == SFC else 400) in statuses


def test_what_settings_and_faults_add_was_among_what_was_checked(said: Said):
    sent = str([(each.query, each.body) for each in said.exchanges])
    told = str([each.answer for each in said.exchanges])
    added = {
        SFC: (("starting_after", "'workspace': ['wksp_simulated']"), ("maintenance_window",)),
        PRIME: (("customTemplateId", "'teamId': ['team-1']", "envVars"), ("'loc'", "Cluster")),
    }
    for words, text in zip(added[said.provider], (sent, told), strict=True):
        assert [word for word in words if word not in text] == []


def test_no_field_can_be_changed_unseen(said: Said):
    """A list that lets something else through would prove nothing."""
    refused = {each.status: each for each in said.exchanges if each.status >= 400}
    unseen = [
        f"{exchange.asked} {exchange.status} {where}"
        for exchange in (*(said.success(call.asked) for call in said.published), *refused.values())
        if (call := endpoint_of(exchange, said.published))
        and call.answers[exchange.status] is not unverified
        for where, changed in _mutants(exchange)
        if (call.asked, where) not in UNVERIFIED and not mistakes(changed, said.published)
    ]
    assert unseen == []


@pytest.mark.parametrize(
    ("said", "asked", "place", "wrong"),
    [
        (SFC, f"GET {V2}/me", ("object",), "me"),
        (SFC, f"GET {V2}/instance_skus", ("data", 0, "num_accelerators", "value"), "8"),
        (SFC, f"GET {V2}/instance_skus", ("data", 0, "supports_public_ipv4", "value"), "yes"),
        (SFC, f"GET {V2}/pools", ("cursor",), "pool_1"),
        (SFC, f"GET {V2}/orders/{{id}}", ("limit_price_dollars_per_node_hour",), 16.8),
        (SFC, f"GET {V2}/instances/{{id}}", ("public_ip",), None),
        (PRIME, "GET /api/v1/pods/{id}", ("resources", "vcpus"), "104"),
        (PRIME, "GET /api/v1/pods/history", ("data", 0, "type"), "HOSTED"),
        (PRIME, "GET /api/v1/pods/history", ("data", 0, "status"), "TERMINATED"),
        (PRIME, "GET /api/v1/availability/gpus", ("items", 0, "gpuMemory"), "80"),
    ],
    indirect=["said"],
)
def test_what_once_was_otherwise_is_seen(
    said: Said, asked: str, place: tuple[str | int, ...], wrong: Any
):
    exchange = said.success(asked)
    assert mistakes(exchange, said.published) == []
    answer = copy.deepcopy(exchange.answer)
    inner = answer
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = wrong
    assert mistakes(replace(exchange, answer=answer), said.published)


def test_what_is_in_no_list_is_seen(said: Said):
    exchange = said.success(said.published[0].asked)
    for other in (
        replace(exchange, path="/api/v1/teams"),
        replace(exchange, method="PUT"),
        replace(exchange, query={"colour": ["red"]}),
        replace(exchange, body={}),
        replace(exchange, status=418),
        replace(exchange, headers={}),
        replace(exchange, headers={**exchange.headers, "idempotency-key": "k"}),
    ):
        assert mistakes(other, said.published)


def _mutants(exchange: Exchange) -> Iterator[tuple[str, Exchange]]:
    """Yield the exchange with one field of its body or answer replaced, or one more field."""
    for where, body in _changed(exchange.body, "body"):
        yield where, replace(exchange, body=body)
    for where, answer in _changed(exchange.answer, "answer"):
        yield where, replace(exchange, answer=answer)


def _changed(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Of a list the first item stands for all."""
    alien = [{"alien": 1}]
    if isinstance(value, dict):
        found: dict[str, Any] = value
        yield f"{where}.alien", {**found, "alien": alien}
        for name, inner in found.items():
            yield f"{where}.{name}", {**found, name: alien}
            for deeper, changed in _changed(inner, f"{where}.{name}"):
                yield deeper, {**found, name: changed}
    elif isinstance(value, list) and value:
        items: list[Any] = value
        for deeper, changed in _changed(items[0], f"{where}[]"):
            yield deeper, [changed, *items[1:]]
