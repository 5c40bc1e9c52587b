"""Reading the price of a pool again: from a URL, and from what the simulated markets ask."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from longshore.activities.database import clock
from longshore.activities.prices.reading import PriceActivities
from longshore.activities.prices.views import price_view
from longshore.activities.signals import Signals
from longshore.activities.views import set_pool
from longshore.models.buying import Among, BuyingPolicy
from longshore.models.job import Tier
from longshore.models.pool import PoolSpec
from longshore.models.price_messages import PriceRead, PriceRequest, price_workflow_id
from longshore.models.price_series import PoolPrice, PriceView, Unknown
from longshore.models.settings import Settings
from longshore.models.text import format_dollars
from longshore.simulation.market.background import Profile
from tests.support.ledger import Ledger
from tests.support.market import RunningMarket, running_market
from tests.support.scripted_http import Reply, ScriptedHTTP


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
    async with ScriptedHTTP() as running:
        yield running


@pytest.fixture(scope="module")
def market() -> Iterator[RunningMarket]:
    """Starts a simulated market whose prices stay; 0.2 s."""
    with running_market(Profile.CALM) as running:
        running.book(worked_example=True)
        yield running


async def set_price(ledger: Ledger, source: str, **pool: object) -> PoolSpec:
    price = PoolPrice(source=source, unknown=Unknown.WAIT)
    spec = PoolSpec.model_validate({"name": ledger.pool, "price": price, **pool})
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec)
    return spec


async def read(ledger: Ledger, settings: Settings, *, due: bool = True) -> PriceRead:
    if due:
        async with ledger.database.transaction() as connection:
            await connection.execute(
                text("UPDATE price_series SET tried_at = tried_at - interval '30 days'"
                     " WHERE pool = :pool"), {"pool": ledger.pool}
            )  # fmt: skip
    prices = PriceActivities(ledger.database, settings, Signals(ledger.temporal))
    async with ledger.listening():
        return await ledger.run(prices.read_price, PriceRequest(pool=ledger.pool))


async def shown(ledger: Ledger, spec: PoolSpec) -> PriceView:
    async with ledger.database.transaction() as connection:
        view = await price_view(connection, spec, await clock(connection))
    assert view is not None
    return view


async def test_the_lowest_ask_of_what_the_pool_may_buy_is_its_price(
    ledger: Ledger, market: RunningMarket
):
    spec = await set_price(ledger, "market")
    found = await read(ledger, market.settings())
    view = await shown(ledger, spec)
    assert view.price is not None
    assert found.says.startswith(f"{format_dollars(view.price)} (market prime, ")
    types = BuyingPolicy(instance_types=("8xH100",), max_price={Tier.FAST: 1})
    spec = await set_price(ledger, "market", buying=types)
    found = await read(ledger, market.settings())
    dearer = await shown(ledger, spec)
    assert dearer.price is not None
    assert dearer.price > view.price, "H100 alone cost more, and a cap of the pool hides no price"
    assert "H100" in found.says
    nowhere = BuyingPolicy(countries=Among(include=("XX",)))
    nobody = await set_price(ledger, "market", buying=nowhere)
    assert "no market asks a price" in (await read(ledger, market.settings())).says
    assert (await shown(ledger, nobody)).price == dearer.price, "what was known goes on"


async def test_without_a_market_that_is_said(ledger: Ledger, settings: Settings):
    spec = await set_price(ledger, "market")
    found = await read(ledger, settings.model_copy(update={"market": "off"}))
    assert found.says == "no market is configured; not known: it has not been read yet"
    view = await shown(ledger, spec)
    assert (view.price, view.trouble) == (None, "no market is configured")
    assert view.says == "not known: it could not be read: no market is configured"


async def test_a_url_is_read_again_and_lets_in_who_waited(
    ledger: Ledger, settings: Settings, server: ScriptedHTTP
):
    server.on("GET /p", Reply(body(2.6)), Reply(b"broken"), Reply(b"", 503), Reply(body(2.0)))
    spec = await set_price(ledger, f"{server.url}/p")
    await ledger.enqueue("cheap", start_below="$2.10/gpu-hour")
    async with ledger.listening("cheap"):
        reply = await ledger.cycle("cycle-1")
        assert await started(ledger) == 1, "a cycle has it read"
        assert reply.queued == 0
        first = await read(ledger, settings)
        assert (first.released, first.says[:6]) == (0, "$2.60 ")
        assert (await ledger.cycle("cycle-2")).next_wake <= timedelta(minutes=5)
        assert await started(ledger) == 1, "it is not due again"
        for trouble in ("line 1: expected a time", "answers with status 503"):
            found = await read(ledger, settings)
            assert trouble in found.says
            view = await shown(ledger, spec)
            assert (view.price, view.waiting) == (2_600_000, 1)
            assert trouble in view.trouble
        await ledger.rows("UPDATE pools SET poked = false")
        last = await read(ledger, settings)
        assert (last.released, last.says[:6]) == (1, "$2.00 ")
        assert await ledger.value("SELECT poked FROM pools")
        assert (await ledger.cycle("cycle-3")).queued == 1
    assert (await shown(ledger, spec)).trouble == ""


async def test_a_read_that_was_begun_before_another_was_stored_asks_nobody(
    ledger: Ledger, settings: Settings, server: ScriptedHTTP
):
    server.on("GET /p", Reply(body(2.6)), Reply(body(2.0)))
    spec = await set_price(ledger, f"{server.url}/p")
    await read(ledger, settings)
    again = await read(ledger, settings, due=False)
    assert again.says == "the price of the pool has just been read"
    assert len(server.seen("GET /p")) == 1
    assert (await shown(ledger, spec)).price == 2_600_000


async def test_what_is_read_of_a_source_that_the_pool_has_left_is_not_kept(
    ledger: Ledger, settings: Settings, server: ScriptedHTTP
):
    await set_price(ledger, f"{server.url}/old")
    prices = PriceActivities(ledger.database, settings, Signals(ledger.temporal))
    server.on("GET /old", Reply(body(2.6)))
    read_price = prices._read  # pyright: ignore[reportPrivateUsage]

    async def meanwhile(spec: PoolSpec, price: PoolPrice) -> object:
        found = await read_price(spec, price)
        await set_price(ledger, f"{server.url}/new")
        return found

    prices._read = meanwhile  # type: ignore[method-assign]  # pyright: ignore
    found = await ledger.run(prices.read_price, PriceRequest(pool=ledger.pool))
    assert found.says == "the pool has another price by now"
    assert await ledger.rows("SELECT * FROM price_series") == []


def body(dollars: float) -> bytes:
    return f"{datetime.now(UTC) - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ},{dollars}\n".encode()


async def started(ledger: Ledger) -> int:
    """Return how many reads of the price have been begun."""
    query = f'WorkflowId="{price_workflow_id(ledger.pool)}"'
    handle = ledger.temporal.get_workflow_handle(price_workflow_id(ledger.pool))
    await handle.describe()
    return (await ledger.temporal.count_workflows(query)).count or 1
