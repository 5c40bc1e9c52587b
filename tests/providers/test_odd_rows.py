"""One odd row of Prime Intellect costs no other, and no decision."""

import logging
from typing import Any

import pytest

from longshore.activities.buying import block_scene
from longshore.activities.buying.inputs import look_at
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.prime_reading import gpu_of
from longshore.models.buying import BuyingPolicy, Unmet
from longshore.models.market import (
    InstanceType,
    NoQuote,
    NoQuoteReason,
    OrderBook,
    OrderRequest,
    Preview,
    Window,
)
from longshore.models.settings import Settings
from tests.providers.told import NOW, body
from tests.scheduling.test_block_end import HOUR, a_block, a_job_there, a_release, a_scene
from tests.scheduling.test_block_end import NOW as SCENE
from tests.support.scripted_http import ScriptedHTTP

API = "/api/v1"
H100 = InstanceType.parse("8xH100")
ODD = [
    {"prices": {"onDemand": -1, "currency": "USD"}},
    {"gpuType": "GB200", "gpuMemory": -1},
    {"gpuType": "X" * 80},
    {"gpuType": "A100-SXM4_80GB"},
    {"prepaidTime": 1e8},
    {"provisioningTime": 10**12},
]


def serve(server: ScriptedHTTP, odd: dict[str, Any]) -> None:
    first = body("prime_gpus")["items"][0]
    rows = [{**first, "cloudId": "odd", **odd}, first]
    server.on(f"GET {API}/availability/gpus", {"items": rows, "totalCount": 2})
    server.on(f"GET {API}/availability/multi-node", {"items": [], "totalCount": 0})
    server.on(f"GET {API}/availability/gpu-summary", {})


@pytest.mark.parametrize("odd", ODD)
async def test_a_row_that_does_not_fit_is_left_out_and_logged(
    server: ScriptedHTTP, prime: Prime, caplog: pytest.LogCaptureFixture, odd: dict[str, Any]
):
    serve(server, odd)
    with caplog.at_level(logging.INFO):
        found = await prime.offers()
    assert [offer.native["pod"]["cloudId"] for offer in found] == ["gpu_8x_h100"]
    assert "not as documented" in caplog.text
    book = await prime.book(H100)
    assert isinstance(book, OrderBook)
    assert len(book.asks) == 1
    assert [str(kind) for kind in await prime.instance_types()] == ["8xH100-80GB"]
    (view,) = await look_at([prime], Unmet(), BuyingPolicy(), NOW)
    assert (len(view.offers), view.away) == (1, "")


@pytest.mark.parametrize("gpu_type", ["A100-SXM4_80GB", "X" * 80, "H100 PCIe"])
def test_a_type_that_nobody_could_write_is_none(gpu_type: str):
    assert gpu_of(gpu_type, 8) is None


class Broken:
    """A market whose client fails in a way of its own."""

    name, no_buying = "prime", ""
    capabilities = Prime.capabilities

    async def offers(self, wanted: InstanceType | None = None) -> Any:
        raise ZeroDivisionError

    async def aclose(self) -> None:
        pass


async def test_a_market_that_cannot_be_read_holds_up_no_decision(
    monkeypatch: pytest.MonkeyPatch,
):
    market: Any = Broken()
    (view,) = await look_at([market], Unmet(), BuyingPolicy(), NOW)
    assert view.away == "it cannot be read: ZeroDivisionError"
    monkeypatch.setattr(block_scene.registry, "configured", lambda _: ("prime",))
    monkeypatch.setattr(block_scene.registry, "connect", lambda *_: market)
    scene = a_scene(
        a_release("n1", busy_hours=4),
        block=a_block(
            provider="prime", by_use=True, starts_at=SCENE - 4 * HOUR, ends_at=SCENE + HOUR / 6
        ),
        jobs=(a_job_there("n1", 4),),
    )
    assert (await block_scene.with_markets(scene, None, Settings())).elsewhere is None


@pytest.mark.parametrize("quoted", ["isku_a", None])
async def test_the_fee_of_a_sale_is_asked_for_where_the_block_is(quoted: str | None):
    """Else anywhere: a market that quotes another place keeps something of a sale there, too."""
    asked: list[OrderRequest] = []

    class Asked:
        async def preview(self, request: OrderRequest) -> Preview | NoQuote:
            asked.append(request)
            if request.place != quoted:
                return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail="quoted isku_b")
            return Preview(
                provider="sfcompute", instance_type="8xH100", nodes=1, price=1, fee_bps=300
            )

    market: Any = Asked()
    window = Window(start=SCENE, end=SCENE + HOUR)
    terms = await block_scene.terms_of(market, a_scene(place="isku_a"), "pool_1", window)
    places = ["isku_a"] if quoted else ["isku_a", None]
    assert (terms.fee_bps, [each.place for each in asked]) == (300, places)
