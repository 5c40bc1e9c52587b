"""Nodes of San Francisco Compute that are not for everybody (`audience_hint`)."""

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.errors import GoneError
from longshore.models.market import (
    InstanceType,
    NoQuote,
    NoQuoteReason,
    OrderBook,
    OrderRequest,
    Window,
)
from longshore.simulation.market.catalogue import SKUS
from tests.support.market import RunningMarket, running_market
from tests.support.market_contract import QUICK
from tests.support.market_shop import Shop

FEW = "early access: ask sales"
H100 = InstanceType.parse("8xH100")
GB300 = InstanceType.parse("8xGB300")


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Starts a market with two SKUs that are for few, the cheapest H100 among them; 0.02 s."""
    maple = replace(SKUS[0], id="isku_h100z", alias="maple", audience=FEW)
    oak = replace(maple, id="isku_gb300a", alias="oak", accelerator="gb300")
    with running_market(skus=(*SKUS, maple, oak)) as market:
        cheap, dear = ({"side": "sell", "dollars_per_gpu_hour": d, "nodes": 4} for d in "12")
        market.post("books", sku="maple", orders=[cheap])
        market.post("books", sku="alder", orders=[dear])
        yield Shop(market)


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[SFCompute]:
    market: RunningMarket = shop.market
    made = SFCompute(Access(market.url, SecretStr(market.token), "simulated"), patience=QUICK)
    yield made
    await made.aclose()


async def test_what_is_not_for_everybody_is_neither_quoted_nor_bought(
    shop: Shop, client: SFCompute, caplog: pytest.LogCaptureFixture
):
    start = datetime.fromtimestamp(shop.start, UTC)
    window = Window(start=start, end=start + timedelta(hours=1))
    with caplog.at_level(logging.INFO):
        book = await client.book(H100, window)
    assert isinstance(book, OrderBook)
    assert [ask.place for ask in book.asks] == ["isku_h100a"]
    assert f"(maple), which is not for everybody: {FEW}" in caplog.text
    assert "8xGB300" not in {str(kind) for kind in await client.instance_types()}
    quote = await client.book(GB300, window)
    assert isinstance(quote, NoQuote)
    assert quote.reason is NoQuoteReason.UNKNOWN_TYPE
    order = OrderRequest(
        key="k", instance_type="8xH100", nodes=1, limit=9_000_000, window=window,
        account=await client.make_account("train"), place="isku_h100z",
    )  # fmt: skip
    with pytest.raises(GoneError):
        await client.order(order)
    assert shop.market.state()["orders"] == []


def test_the_market_refuses_an_order_of_it(shop: Shop):
    refused = shop.place(shop.make_pool(), instance_sku="isku_h100z")
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "forbidden")
    skus = {row["id"]: row for row in shop.http.get("/preview/v2/instance_skus").json()["data"]}
    assert skus["isku_h100z"]["audience_hint"] == FEW
    assert "audience_hint" not in skus["isku_h100a"]
