"""Jobs that run for longer than the envelope that pays for them, which an edit ends sooner."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities.funding.checks import check_budgets
from longshore.activities.funding.outlasting import ends_sooner, notes_of_ends, outlasting
from longshore.models.funding import Budget, Envelope
from tests.support.funding import envelope, tenant
from tests.support.funding_scenes import HOUR, NOW, facts_of, owned, tree, use
from tests.support.ledger import Ledger


async def test_a_check_names_who_loses_a_payer_when_an_envelope_ends_sooner(ledger: Ledger):
    await ledger.register(gpus=8)
    await tenant(ledger, "red")
    one = await envelope(ledger, "red", milli=8000)
    for job, lasts in (("short", "5m"), ("long", "9h"), ("unknown", None)):
        await ledger.enqueue(job, gpus=2, tenant="red", expected_duration=lasts)
        async with ledger.listening(job):
            await ledger.cycle(f"cycle-{job}")
    started = await ledger.value("SELECT starts_at FROM envelopes")

    async def notes(end: datetime | None) -> tuple[str, ...]:
        spec = Envelope(name="main", gpus=8, start=started, end=end)
        edit = await check_budgets(ledger.database, [Budget(tenant="red", envelopes=(spec,))])
        assert edit.moves == ()
        return edit.notes

    end = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    until = f"red: envelopes.main.end: it pays until {end:%Y-%m-%d %H:%M:%S} UTC for"
    said = (
        f"{until} 1 job that may run for longer: long; nobody would pay for it then",
        "1 job says no duration, and may outlast the envelope that pays (red/main); nobody would "
        "pay for it then",
    )
    assert await notes(end) == said
    assert await notes(None) == ()
    await ledger.rows("UPDATE envelopes SET ends_at = :end", end=end)
    async with ledger.database.snapshot() as connection:
        assert await notes_of_ends(connection, {one}) == said
        assert await notes_of_ends(connection, ()) == ()
    assert await notes(end + timedelta(hours=1)) == (), "it ends later than before"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [(0, "nobody would pay for them"), (2, "nobody would pay for 1 of them"),
     (4, "others would pay for them")],
)  # fmt: skip
def test_who_pays_after_the_end_is_told(gpus: int, said: str):
    envelopes = [owned(1, "red", 4, end=NOW + HOUR), owned(2, "root", gpus)]
    runs = [use("a", "red", 2), use("b", "red", 2)]
    facts = facts_of(tree(root=None, red="root"), envelopes, (), runs)
    (note,) = outlasting(facts, {1}, dict.fromkeys("ab", NOW + 2 * HOUR), NOW)
    assert note.endswith(f"for 2 jobs that may run for longer: a, b; {said} then")
    (note,) = outlasting(facts, {1}, dict.fromkeys("ab"), NOW)
    assert note == (
        f"2 jobs say no duration, and may outlast the envelope that pays (red/e1); {said} then"
    )
    assert outlasting(facts, {1}, dict.fromkeys("ab", NOW + HOUR), NOW) == ()


def test_jobs_without_a_duration_are_one_line_whatever_envelopes_pay_for_them():
    envelopes = [owned(id, name, 20, end=NOW + id * HOUR) for id, name in enumerate(("a", "b"), 1)]
    runs = [use(f"{name}{number}", name, 1) for name in ("a", "b") for number in range(15)]
    facts = facts_of(tree(a=None, b=None), envelopes, (), runs)
    assert outlasting(facts, {1, 2}, {"a1": NOW, "b1": NOW}, NOW) == (
        "28 jobs say no duration, and may outlast the envelopes that pay (a/e1, b/e2); nobody "
        "would pay for them then",
    )


def test_an_end_is_sooner_than_a_later_one_or_none():
    before = {1: None, 2: NOW, 3: NOW, 4: NOW}
    after = {1: NOW, 2: NOW - HOUR, 3: NOW + HOUR, 4: None, 5: NOW, 6: None}
    assert ends_sooner(before, after) == {1, 2, 5}
