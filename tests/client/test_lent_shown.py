"""How commands tell that a job runs on a spare that another lends."""

from datetime import UTC, datetime, timedelta

from rich.console import Console

from longshore.client.use_view import leases_screen, usage_words
from longshore.models.funding import FundingClass
from longshore.models.funding_use import Leases, LeaseView, Usage, UsedBy

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def a_lease(**fields: object) -> LeaseView:
    usual = {
        "funding": FundingClass.UNFUNDED, "node_id": "node-c", "gpu_index": 0, "gpus": 1,
        "job_id": "guest", "job_name": "guest", "tenant": "blue", "attempt": 1, "started_at": NOW,
    }  # fmt: skip
    return LeaseView.model_validate(usual | fields)


def told(lease: LeaseView) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(leases_screen(Leases(at=NOW, leases=(lease,)), NOW, 200))
    return captured.get()


def test_a_lease_says_on_whose_spare_it_is():
    assert "on a spare that wide lends" in told(a_lease(borrowed_from="wide"))
    assert "nobody" in told(a_lease())


def test_hours_on_lent_spares_stand_beside_the_sum():
    used = Usage(
        since=NOW - timedelta(hours=1), until=NOW, by=UsedBy.TENANT, gpu_hours=6.0,
        by_class={FundingClass.OWNED: 6.0},
    )  # fmt: skip
    assert usage_words(used, NOW).endswith(": 6.00 OWNED")
    lent = used.model_copy(update={"on_lent_spares": 1.5})
    assert usage_words(lent, NOW).endswith(
        ": 6.00 OWNED; besides, 1.50 on spares that gangs lend, and pay themselves"
    )
