"""Tables of tenants, budgets and who pays, on a terminal of 80 columns."""

from datetime import timedelta
from typing import Any

from longshore.client.budget_view import budgets_table, tenants_table
from longshore.client.use_view import fund_screen, leases_screen
from longshore.models.fund_view import FundRung, FundView
from longshore.models.funding import Cap, Envelope, Quotas
from longshore.models.funding_use import Leases
from longshore.models.funding_views import (
    BudgetView,
    CapView,
    EnvelopeState,
    EnvelopeView,
    Holdings,
    TenantView,
)
from tests.client.test_lent_shown import a_lease
from tests.support.screens import NOW, drawn


def a_rung(**fields: Any) -> FundRung:
    usual = {
        "rung": "own", "tenant": "vision", "envelope": "main", "gpus": 8, "unused": 2,
        "recallable": 0, "gives": 0,
    }  # fmt: skip
    return FundRung.model_validate(usual | fields)


def a_fund(*rungs: FundRung) -> FundView:
    return FundView(
        job_id="train", tenant="vision", has_budget=True, runs=False, wants=4, funded=False,
        says="nobody would pay", rungs=rungs,
    )  # fmt: skip


def an_envelope(state: str = "open", **fields: Any) -> EnvelopeView:
    usual = {"name": "main", "gpus": 64, "gpu_type": "H100", "start": NOW, "end": None}
    spec = Envelope.model_validate(usual | fields)
    return EnvelopeView(id=1, spec=spec, state=EnvelopeState(state), used=40, lent=0)


def test_leases_name_who_pays() -> None:
    paid = a_lease(
        node_id="local-1", job_id="train-abcdefghij", tenant="research", funding="OWNED",
        payer="research", envelope="main", started_at=NOW - timedelta(days=2),
        ended_at=NOW - timedelta(days=1),
    )  # fmt: skip
    guest = a_lease(borrowed_from="wide-abcdefghij", mig="1g.10gb")
    now = paid.started_at.astimezone() + timedelta(days=9)
    leases = Leases(at=NOW, leases=(paid, guest))
    _, heads, first, *lines = drawn(leases_screen(leases, now, 80))
    assert heads.split()[:6] == ["GPU", "job", "tenant", "class", "paid", "by"]
    assert first.split()[:5] == [
        "local-1/0", "train-abcdefghij", "research", "OWNED", "research/main",
    ]  # fmt: skip
    assert " ".join(line[heads.index("from") :] for line in lines[:3]).split()[1] == "to"
    assert "wide-abcdefghij" in "\n".join(lines)
    long = paid.model_copy(update={"payer": "vision-and-speech"})
    _, heads, *lines = drawn(leases_screen(Leases(at=NOW, leases=(long, guest)), now, 80))
    column = slice(heads.index("paid by"), heads.index("from"))
    assert [line[column].strip() for line in lines[:2]] == ["vision-and-speech/", "main"]


def test_the_tree_of_tenants_is_seen() -> None:
    org = TenantView(name="org", subtree=Holdings(gpus=192, jobs=6, queued=17))
    below = TenantView(
        name="vision-research", parent="org", shares=2, budget_since=NOW, gpu_hours=1220,
        counts=0.05, subtree=Holdings(gpus=180, jobs=3),
        quotas=Quotas(max_gpus=200, max_jobs=10, max_queued=1000, sensitive_nodes=2,
                      gpu_hours=1000),
    )  # fmt: skip
    heads, line = drawn(tenants_table((org,), 80))
    assert heads.split() == ["tenant", "GPUs", "jobs", "waiting"]
    assert line.split() == ["org", "192", "6", "17"]
    named = org.model_copy(update={"name": "an-organisation-with-a-long-name"})
    assert drawn(tenants_table((named,), 80))[1].startswith("an-organisation-with-a-long-name  ")
    lines = drawn(tenants_table((org, below), 80))
    (named,) = (number for number, line in enumerate(lines) if "vision" in line)
    assert lines[named].startswith("  vision-research       2   180 of  3 of 10     0 of   0 of 2")
    assert [lines[named + i].split()[-2:] for i in (0, 1, 2)] == [
        ["1,220.00", "of"], ["1,000", "GPU:"], ["jobs", "count"],
    ]  # fmt: skip


def test_envelopes_say_what_they_are_for() -> None:
    alone = BudgetView(tenant="lab", since=NOW, envelopes=(an_envelope(),))
    assert drawn(budgets_table((alone,), 80))[-1].split() == [
        "lab", "main", "64", "40", "H100", "no", "end", "family",
    ]  # fmt: skip
    lending = an_envelope(lending={"to": ["product", "lab"], "max": 8})
    later = an_envelope(
        "not yet", name="spring", gpu_type=None, labels={"region": "eu"}, sharing="none"
    )
    cap = CapView(spec=Cap(name="joint", gpus=80, envelopes=("main", "spring")), used=40)
    budget = BudgetView(tenant="research", since=NOW, envelopes=(lending, later), caps=(cap,))
    text = "\n".join(drawn(budgets_table((budget,), 80)))
    for said in ("  H100 ", "family   0 of 8 to", " product,\n", " lab\n", "  region=eu   opens ",
                 " 2026-11-20\n", "cap joint", "not yet", "  main, "):  # fmt: skip
        assert said in text, said


def test_rungs_name_their_envelopes() -> None:
    (line,) = drawn(fund_screen(a_fund(a_rung(code="NO_ROOM")), NOW, 80))[-1:]
    assert line.split() == ["own", "vision/main", "2", "of", "8", "0", "NO_ROOM"]
    rungs = (
        a_rung(),
        a_rung(rung="grandparent", tenant="organisation", recallable=2, ahead=2,
               held_by={"lab": 4, "product": 2}, ends=NOW + timedelta(days=20)),
        a_rung(rung="sponsor", code="BORROW_LIMIT"),
    )  # fmt: skip
    lines = drawn(fund_screen(a_fund(*rungs), NOW, 80))
    text = "\n".join(lines)
    for said in ("own          vision/main ", "grandparent  organisation/  2 of 8,  lab 4, ",
                 "             main           2 to     product 2;", "2026-12-10\n",
                 "BORROW_LIMIT  no end"):  # fmt: skip
        assert said in text, said
    # On a wide one nothing is left out.
    wide = "\n".join(drawn(fund_screen(a_fund(*rungs), NOW, 140), 140))
    other = rungs[0].model_copy(update={"on": "L40S"})
    assert "(on L40S)" in "\n".join(drawn(fund_screen(a_fund(*rungs, other), NOW, 140), 140))
    assert "organisation/main     8       2          2  lab 4, product 2; 2 of it" in wide
