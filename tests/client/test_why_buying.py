"""What `why` says of a pool that may buy and has not: one reason first, the rest below."""

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console

from longshore.client.explain import explain
from longshore.client.why_view import explanation_screen
from longshore.models.buying import BuyingPolicy
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from longshore.models.spending import BuyingRecord
from longshore.models.views import JobView
from longshore.scheduling.buying.buying_status import buying_status

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LEFT_OUT = "60 offers are left out: 60 of community hosts (`community`)"


def test_what_the_policy_leaves_out_is_told_below_the_headline() -> None:
    pool = PoolSpec(name="default", buying=BuyingPolicy(enabled=True))
    bought = BuyingRecord(at=NOW, reason="wait: that costs least", left_out=(LEFT_OUT,))
    job = JobView.model_validate(
        {
            "id": "train-abcdefghij", "name": "train", "tenant": "default", "pool": "default",
            "tier": "FAST", "priority": 5, "gpus": 4, "state": JobState.QUEUED,
            "submitted_at": NOW - MINUTE,
        }
    )  # fmt: skip
    standing = buying_status(pool, "", bought, NOW - MINUTE)
    told = explain(job, position=1, standing=standing, buying=bought)
    assert told.headline == (
        "waits: pool default has no nodes; it buys nothing now: that costs least"
    )
    out = io.StringIO()
    Console(file=out, width=100).print(explanation_screen(told, NOW))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[lines.index("wait: that costs least") + 1] == LEFT_OUT
