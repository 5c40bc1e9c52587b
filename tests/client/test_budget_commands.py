"""`longshore tenants`, `tenant set` and `budget`, and files that are wrong."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.client.budget_file import read_budgets
from longshore.client.budget_view import says_money
from longshore.models.funding import BudgetMoney
from longshore.models.funding_views import BudgetEdit, BudgetSpent, BudgetView, Edit, TenantView
from tests.client.conftest import Command, Ran

_FILE = """
tenant: {tenant}
envelopes:
  main:
    gpus: 64
    gpu_type: H100
    end: never
    lending: {{to: [{other}], max: 8}}
  spot: {{gpus: 2.5, labels: {{zone: b}}, start: 2027-01-01T00:00:00Z, end: 2099-01-01T00:00:00Z}}
caps:
  both: {{gpus: 65, envelopes: [main, spot]}}
  below: {{gpus: 100, subtree: true}}
money: {{per_day: $500, per_month: "$9,000"}}
"""


async def test_tenants_and_budgets_from_the_first_to_none(
    longshore: Command, pool: str, tmp_path: Path
):
    root, a = f"{pool}-root", f"{pool}-a"  # the database is that of other tests too
    unknown = await longshore("tenant", "set", a, "--parent", root)
    assert unknown.code == 66
    assert f"parent: there is no tenant '{root}'" in unknown.err
    assert f"`longshore tenant set {root}` makes it" in unknown.err
    made = await longshore("tenant", "set", root, "--max-gpus", "200", "--shares", "2")
    assert (made.code, made.out) == (0, f"tenant {root} is set: shares 2, max_gpus 200\n")
    below = await longshore("tenant", "set", a, "--parent", root, "--max-queued", "7")
    assert below.out == f"tenant {a} is set: below {root}, shares 1, max_queued 7\n"
    circle = await longshore("tenant", "set", root, "--parent", a)
    assert circle.code == 77
    assert f"would be below itself: {root} is below {a}, {a} is below {root}" in circle.err
    again = await longshore("tenant", "set", root, "--max-gpus", "none", "--json")
    assert json.loads(again.out)["quotas"]["max_gpus"] is None
    assert json.loads(again.out)["shares"] == 2
    shown = await longshore("tenants")
    lines = [line.split() for line in shown.out.splitlines()]
    at = next(number for number, line in enumerate(lines) if line[0] == root)
    assert lines[at + 1][0] == a
    listed = await longshore("tenants", "--json")
    tenants = {each["name"]: TenantView.model_validate(each) for each in json.loads(listed.out)}
    assert tenants[a].parent == root

    none = await longshore("budget", "show", a)
    assert none.code == 66
    assert f"tenant '{a}' has no budget: it pays for all that it uses" in none.err
    file = tmp_path / "budget.yaml"
    file.write_text(_FILE.format(tenant=a, other=root))
    checked = await longshore("budget", "check", str(file))
    assert checked.code == 0, checked.err
    assert f"would: {a}: envelope main made\n" in checked.out
    assert f"{root} has no budget" in checked.err
    assert (await longshore("budget", "show", a)).code == 66
    applied = await longshore("budget", "apply", str(file))
    assert applied.code == 0, applied.err
    assert f"{a}: money changed: per_day any to $500.00; per_month any to $9,000.00" in applied.out
    repeated = await longshore("budget", "apply", str(file), "--json")
    assert BudgetEdit.model_validate_json(repeated.out).changes == ()
    shown = await longshore("budget", "show", a)
    for said in (
        "64",
        f"8 to {root}",
        "never",
        "not yet",
        "zone=b",
        "cap both",
        "main, spot",
        "all below",
        f"Purchases for {a} and those below it: $0.00 of $500.00 today, $0.00 of $9,000.00 this",
    ):
        assert said in shown.out, said  # fmt: skip
    (budget,) = json.loads((await longshore("budget", "show", a, "--json")).out)
    assert BudgetView.model_validate(budget).envelopes[0].spec.gpus == 64

    file.write_text(f"budgets: [{{tenant: {a}}}, {{tenant: {root}, money: {{per_day: $9}}}}]")
    several = await longshore("budget", "apply", str(file))
    assert f"{a}: envelope main removed" in several.out
    assert f"{root}: budget made" in several.out
    below = await longshore("budget", "show", a)
    assert below.out.endswith(
        f"Purchases for {a} take of the money of {root}, too: `longshore budget show {root}`.\n"
    )
    assert "take of the money" not in (await longshore("budget", "show", root)).out
    assert "take of the money" not in (await longshore("budget", "show")).out, "it is there itself"
    gone = await longshore("budget", "remove", a)
    assert gone.out == f"tenant {a} has no budget any more, and pays for all that it uses\n"
    none = await longshore("budget", "show", a)
    assert f"all that it uses. Its purchases take of the money of {root}. `" in none.err
    gone = await longshore("budget", "remove", root, "--json")
    (change,) = BudgetEdit.model_validate_json(gone.out).changes
    assert (change.tenant, change.what, change.edit) == (root, "budget", Edit.REMOVED)
    assert (await longshore("budget", "remove", a)).code == 66


def test_money_of_nothing_is_a_limit():
    spent = BudgetSpent(today=0, this_month=7_000_000, forecast=9_000_000)
    of_nothing = BudgetMoney(per_day=None, per_month=0)
    at = datetime(2026, 11, 1, tzinfo=UTC)
    said = says_money(BudgetView(tenant="a", since=at, money=of_nothing, spent=spent))
    assert said == "$7.00 of $0.00 this month, about $9.00 by its end, as in the last week"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shares", "0"), "--shares 0: shares: must be at least 1e-06, got 0"),
        (("--shares", "none"), "--shares none: shares: must be a number, got 'none'"),
        (("--max-gpus", "many"), "--max-gpus many: quotas.max_gpus: must be a number"),
        (("--max-gpus", "0.0001"), "quotas.max_gpus: is 0.0001: GPUs are counted in thousandths"),
        (("--max-jobs", "1.5"), "--max-jobs 1.5: quotas.max_jobs: must be a whole number"),
        (("--max-nodes", "-1"), "quotas.max_nodes: must be at least 0, got -1"),
        (("--parent", "Über"), "parent: must be lower-case letters"),
    ],
)
async def test_wrong_options_of_a_tenant(longshore: Command, options: tuple[str, ...], said: str):
    ran = await longshore("tenant", "set", "wrong-options", *options)
    assert ran.code == 65
    assert said in ran.err, ran.err


async def test_a_tenant_cannot_have_the_word_for_no_parent_as_its_name(longshore: Command):
    for more in ((), ("--dry-run",)):
        ran = await longshore("tenant", "set", "none", *more)
        assert ran.code == 65
        assert "name: is none, which as a parent means that there is none: give it an" in ran.err
    assert "none" not in {
        each["name"] for each in json.loads((await longshore("tenants", "--json")).out)
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("envelopes: {}", "b.yaml:1: tenant: is required"),
        ("tenant: none", "b.yaml:1: tenant: is none, which as a parent means that there is none"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1",
         "b.yaml:3: envelopes.m.end: is required: a time, such as 2027-04-01T00:00:00Z, or never"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: soon",
         "b.yaml:5: envelopes.m.end: must be never or a time with its zone"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    start: 2027-01-02T00:00:00Z\n"
         "    end: 2027-01-01T00:00:00Z",
         "b.yaml:6: envelopes.m.end: must be after start, 2027-01-02T00:00:00Z, got 2027-01-01T"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: -1\n    end: never",
         "b.yaml:4: envelopes.m.gpus: must be at least 0, got -1"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: never\n    lending: {max: 1}",
         "b.yaml:6: envelopes.m.lending.to: is required: the tenants that it is lent to"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: never\n    lending: {to: [b]}",
         "b.yaml:6: envelopes.m.lending.max: is required: the most GPUs that are lent"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: never\n    lending: {to: [b],max: 2}",
         "b.yaml:6: envelopes.m.lending.max: must be at most the 1 GPU of the envelope, got 2"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: never\n    sharing: all",
         "b.yaml:6: envelopes.m.sharing: must be family or none, got 'all'"),
        ("tenant: a\nenvelopes:\n  m: {gpus: 1, end: never, gpu: H100}",
         "b.yaml:3: envelopes.m.gpu: no such field; did you mean gpus?"),
        ("tenant: a\nenvelopes:\n  main: {gpus: 1, end: never}\ncaps:\n"
         "  c: {gpus: 1, envelopes: [mian]}",
         "b.yaml:5: caps.c.envelopes[0]: there is no envelope 'mian' here; did you mean main?"),
        ("tenant: a\ncaps:\n  c: {gpus: 1, envelopes: [mian]}",
         "b.yaml:3: caps.c.envelopes[0]: there is no envelope 'mian' here; there is none"),
        ("tenant: a\ncaps:\n  c: {gpus: 1}",
         "b.yaml:3: caps.c: give the envelopes of the cap, or subtree: true"),
        ("tenant: a\nmoney: {per_day: 500}",
         "b.yaml:2: money.per_day: must be dollars, such as $500, got 500"),
        ("tenant: a\nmoney: {per_day: $-1}",
         "b.yaml:2: money.per_day: must be at least $0, got '$-1'"),
        ("tenant: a\nmoney:\n  per_day: $500\n  per_month: $20.50",
         "b.yaml:4: money.per_month: must be at least per_day, $500.00, got $20.50"),
        ("tenant: a\nmoney: $-1", "b.yaml:2: money: must be"),
        ("tenant: a\nenvelopes:\n  m:\n    gpus: 1\n    end: never\n    "
         "lending: {to: [b, a], max: 1}",
         "b.yaml:6: envelopes.m.lending.to[1]: a is its own tenant: name others, or leave"),
        ("tenant: a\nenvelopes:\n  m: {gpus: 1, gpu_type: H100, end: never}\n"
         "  n: {gpus: 1, end: never}\n  o: {gpus: 1, gpu_type: A100, end: never}\n"
         "caps:\n  c: {gpus: 1, envelopes: [m, n, o]}",
         "b.yaml:7: caps.c.envelopes[2]: o is for A100, and m for H100: a cap over envelopes is "
         "of one type, give each type its own"),
        ("budgets:\n- tenant: a\n- tenant: a",
         "b.yaml:3: budgets[1].tenant: a has a budget in this file already"),
        ("tenant: a\n---\ntenant: b\n---\ntenant: a",
         "b.yaml:4: tenant: a has a budget in this file already"),
        ("tenant: a\nmoney: {per_day: 5}\n--- # b\nbudgets:\n- tenant: b\n  caps: 1\n",
         "b.yaml:2: money.per_day: must be dollars, such as $500, got 5\n"),
        ("tenant: a\nmoney: {per_day: 5}\n--- # b\nbudgets:\n- tenant: b\n  caps: 1\n",
         "b.yaml:6: budgets[0].caps: must be"),
        ("budgets: []", "b.yaml:1: budgets: must have at least 1 entry, got none"),
        ("- tenant: a", "b.yaml:1: must hold one mapping (name: value lines), not a list"),
    ],
)  # fmt: skip
def test_a_wrong_file_names_field_line_value_and_what_would_be_right(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
):
    monkeypatch.chdir(tmp_path)
    Path("b.yaml").write_text(text)
    for command in ("apply", "check"):
        ran = cli("budget", command, "b.yaml")
        assert ran.code == 65
        assert said in ran.err, ran.err


def test_several_documents_are_several_budgets(tmp_path: Path):
    file = tmp_path / "b.yaml"
    file.write_text(
        "# all\n---\ntenant: a\n---\nbudgets: [{tenant: b}, {tenant: c}]\n---\n# none\n"
    )
    assert [budget.tenant for budget in read_budgets(str(file))] == ["a", "b", "c"]


def test_a_file_that_is_not_there(cli: Callable[..., Ran]):
    ran = cli("budget", "apply", "/nowhere/b.yaml")
    assert (ran.code, ran.err.strip()) == (65, "error: /nowhere/b.yaml: no such file")


async def test_gpus_and_pools_that_nobody_knows_are_told_and_may_come_later(
    longshore: Command, pool: str, tmp_path: Path
):
    file, a = tmp_path / "b.yaml", f"{pool}-a"
    file.write_text(f"""
tenant: {a}
envelopes:
  known: {{gpus: 1, gpu_type: h100, end: never}}
  odd: {{gpus: 1, gpu_type: H999, pool: {pool}x, end: never}}
  other: {{gpus: 1, gpu_type: Quantum, end: never}}
""")
    await longshore("pool", "set", pool, "--order", "age")
    for command in ("check", "apply"):
        ran = await longshore("budget", command, str(file))
        assert ran.code == 0, ran.err
        told = " ".join(ran.err.split())
        odd = f"{a}: envelopes.odd"
        assert f"{odd}.gpu_type: no node and no offer has 'H999'; known are A100, B200, H1" in told
        assert f"{odd}.pool: there is no pool '{pool}x' yet; did you mean {pool}?" in told
        assert "other.gpu_type: no node and no offer has 'Quantum'; known are A100," in told
        assert "envelopes.known" not in told
    await longshore("budget", "remove", a)
