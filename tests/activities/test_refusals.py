"""What a market refuses because it came late is no fault of the row of its book."""

from datetime import timedelta

import pytest

from longshore.activities.buying import order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.database import clock
from longshore.activities.providers.http_errors import error_of, refused_for_good
from longshore.activities.views import set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.errors import InvalidOrderError, OfferRefusedError
from longshore.models.market import Order, OrderRequest, OrderState, Window
from longshore.models.pool import PoolSpec
from longshore.models.purchase import OrderIntent, PurchaseOption, PurchaseRequest
from tests.support.ledger import Ledger

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(("begun", "final"), [(timedelta(), True), (2 * MINUTE, False)])
async def test_an_order_that_ends_as_rejected_is_final_unless_its_time_had_begun(
    ledger: Ledger, begun: timedelta, final: bool
):
    option = PurchaseOption(
        provider="sfcompute", instance_type="8xH100", gpus_per_node=8, length=timedelta(hours=4),
        limit=2_000_000,
    )  # fmt: skip
    intent = OrderIntent(purchase_id="p-1", number=1, option=0, nodes=1, limit=2_000_000)
    async with ledger.database.transaction() as connection:
        now = await clock(connection)
        window = Window(start=now - begun, end=now + timedelta(hours=4))
        order = OrderRequest(
            key=intent.key, instance_type="8xH100", nodes=1, window=window, limit=2_000_000
        )
        purchase = PurchaseRequest(pool=ledger.pool, options=(option,))
        policy = BuyingPolicy(enabled=True)
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=policy))
        await rows.insert_purchase(connection, "p-1", purchase)
        await order_rows.insert_order(
            connection, intent, "sfcompute", order, 8, window.end, is_machine=False, now=now
        )
        row = await order_rows.lock(connection, intent.key)
        rejected = Order(
            provider="sfcompute", id="o-1", instance_type="8xH100", nodes=1,
            state=OrderState.REJECTED, simulated=True,
        )  # fmt: skip
        await order_rows.record(connection, row, rejected)
        row = await order_rows.lock(connection, intent.key)
    assert row.refused_finally is final


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("allocation_schedule_delta", InvalidOrderError),
        ("instance_sku", OfferRefusedError),
        (None, OfferRefusedError),
    ],
)
def test_a_field_of_the_request_that_is_refused_is_no_fault_of_the_row(
    field: str | None, kind: type[InvalidOrderError]
):
    details = [{"field": field, "message": "odd"}] if field else []
    body = {"error": {"type": "unprocessable_entity", "message": "no", "details": details}}
    error = error_of("sfcompute", 422, body, "POST /orders", "A_TOKEN")
    assert isinstance(error, InvalidOrderError)
    assert type(refused_for_good(error) or error) is kind


@pytest.mark.parametrize(
    ("said", "final"),
    [
        ("The requested image is not available for this provider", True),
        ("Custom templates are unavailable on hyperstack", True),
        ("Reserved instances are not available", True),
        ("disk size exceeds the limit of the provider", True),
        ("custom images are not supported at the moment, please try again with another", True),
        ("the image is temporarily unavailable", False),
        ("no machine is available", False),
        ("you have reached the limit of your account", False),
        ("please try again", False),
        (
            "This image is not available in this data center right now, please try again later",
            False,
        ),
        ("the image is not available, try again", False),
        ("No image is available right now", False),
        ("Cannot pull image: rate limit, try again", False),
        ("You have reached the limit of images", False),
    ],
)
def test_a_refusal_of_what_was_asked_for_is_one_for_good(said: str, final: bool):
    error = error_of("prime", 400, {"detail": said}, "POST /pods/", "A_TOKEN")
    assert isinstance(error, InvalidOrderError)
    assert (refused_for_good(error) is not None) is final
