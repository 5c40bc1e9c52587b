"""What a run of purchases is judged by sees what it has to."""

from datetime import timedelta
from typing import Any

from longshore.activities.markets.reconcile import MarketFinding, Mismatch
from tests.faults.trade_checks import AT_ONCE, dear_machines, wrong_bills

RATE = 19_200_000
POD = {
    "id": "pod_1", "rate": RATE, "minutes": 4, "billed": RATE * 4 // 60, "hardware": "8xH100-80GB",
    "machines": ["pod_1"],
}  # fmt: skip


def a_bill(**changes: Any) -> MarketFinding:
    fields: dict[str, Any] = {
        "provider": "prime", "kind": Mismatch.BILL, "id": "pod_1", "order": "p-1.1",
        "cost_micro_usd": POD["billed"],
    }  # fmt: skip
    return MarketFinding.model_validate({**fields, **changes})


def test_a_late_minute_is_expected_and_nothing_else():
    booked = {"p-1.1": RATE * 3 // 60}
    assert wrong_bills([a_bill()], booked, [POD], 1) == []
    (more,) = wrong_bills([a_bill()], booked, [POD], 0)
    assert "1 bills are not booked, and 0 came late" in more
    never = wrong_bills([a_bill()], {}, [POD], 1)
    assert "1280000 micro-dollars are not booked, and a late minute is 320000" in never[0]
    assert wrong_bills([a_bill(id="ordr_1", provider="sfcompute")], {}, [POD], 1)
    assert wrong_bills([a_bill(order=None)], booked, [POD], 1), "a sale has no late bill"
    assert wrong_bills([a_bill(kind=Mismatch.MISSING, order=None)], booked, [POD], 1)


def test_a_pod_above_its_limit_has_to_be_stopped_for_its_price():
    def wrong(most: int, reason: str, kept: timedelta = 2 * AT_ONCE, **changes: Any) -> list[str]:
        row = {"order_id": "pod_1", "most": most, "reason": reason, "kept": kept}
        return dear_machines([row], [{**POD, **changes}])

    assert wrong(2_399_999, "the run lets it go")
    assert wrong(2_400_000, "the run lets it go") == []
    assert wrong(2_399_999, "it costs $2.40 a GPU-hour, above the limit of $2.39") == []
    assert wrong(2_399_999, "the run lets it go", kept=timedelta(seconds=1)) == []
    assert wrong(2_399_999, "it runs", machines=["pod_1-1", "pod_1-2"]) == [], "of 16 GPUs"
