"""What the work of a block would cost elsewhere: of what its pool may buy."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.models.buying import BuyingPolicy
from longshore.models.money import micro_of
from longshore.scheduling.buying.price_elsewhere import prices_elsewhere
from tests.scheduling.test_block_end import a_block
from tests.support.buying import cloud


def elsewhere(
    *offers: tuple[str, int], policy: dict[str, Any] | None = None, **fields: Any
) -> list[int]:
    allowed = BuyingPolicy(enabled=True, **(policy or {}))
    return prices_elsewhere([cloud(*offers, **fields)], a_block(), allowed)


@pytest.mark.parametrize(
    "row",
    [
        {"variable": True}, {"spot": True}, {"startup": timedelta(hours=1)},
        {"prepaid": timedelta(hours=24)}, {"nodes": 2}, {"kind": "A100-80GB"},
    ],
)  # fmt: skip
def test_what_the_pool_would_not_buy_is_no_price(row: dict[str, Any]):
    assert elsewhere(("2.00", 8)) == [micro_of("2.00")]
    assert elsewhere(("2.00", 8), **row) == []


@pytest.mark.parametrize(
    "policy", [{"max_price": {"FAST": "$1.00"}}, {"instance_types": ["8xB200"]}]
)
def test_nor_is_what_its_policy_forbids(policy: dict[str, Any]):
    assert elsewhere(("2.00", 8), policy=policy) == []


def test_of_a_larger_machine_the_whole_is_paid():
    assert elsewhere(("0.50", 64), ("2.00", 8), ("1.00", 4)) == [
        micro_of("2.00"), micro_of("4.00")
    ]  # fmt: skip
