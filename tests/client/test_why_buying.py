"""What `why` says of a pool that may buy and has not: one reason first, the rest below."""

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console

from longshore.client.explain import explain
from longshore.client.why_view import explanation_screen
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.limit import Limit
from longshore.models.pool import PoolSpec
from longshore.models.spending import BuyingRecord, PurchaseUnderWay
from longshore.models.views import JobView
from longshore.scheduling.buying.buying_status import buying_status

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
JOB = JobView.model_validate(
    {
        "id": "train-abcdefghij", "name": "train", "tenant": "default", "pool": "default",
        "tier": "FAST", "priority": 5, "gpus": 4, "state": JobState.QUEUED,
        "submitted_at": NOW - MINUTE,
    }
)  # fmt: skip
LEFT_OUT = "60 offers are left out: 60 of community hosts (`community`)"


def test_what_the_policy_leaves_out_is_told_below_the_headline() -> None:
    pool = PoolSpec(name="default", buying=BuyingPolicy(enabled=True))
    bought = BuyingRecord(at=NOW, reason="wait: that costs least", left_out=(LEFT_OUT,))
    standing = buying_status(pool, "", bought, NOW - MINUTE)
    told = explain(JOB, position=1, standing=standing, buying=bought)
    assert told.headline == (
        "waits: pool default has no nodes; it buys nothing now: that costs least"
    )
    out = io.StringIO()
    Console(file=out, width=100).print(explanation_screen(told, NOW))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[lines.index("wait: that costs least") + 1] == LEFT_OUT


def test_what_would_help_is_told_where_what_comes_is_for_others() -> None:
    pool = PoolSpec(name="default", buying=BuyingPolicy(enabled=True))
    bought = BuyingRecord(at=NOW, reason="within the cooldown", limits=Limit.at("cooldown", "5m"))
    comes = PurchaseUnderWay(
        id="p-1", nodes=1, instance_type="8xH100", provider="prime", committed_micro_usd=1,
        ready_at=NOW,
    )  # fmt: skip
    standing = buying_status(pool, "", bought, NOW - MINUTE)
    for_others = explain(JOB, position=1, standing=standing, coming=[comes])
    (hint,) = for_others.hints
    assert hint.startswith("wait until then, or make the cooldown shorter: `longshore pool set")
    for_it = explain(JOB, position=1, standing=standing, coming=[comes], purchases=[comes])
    assert for_it.hints == ()
