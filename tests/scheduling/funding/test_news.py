"""What jobs hear when others pay for them, or nobody does any more."""

from datetime import timedelta

from longshore.activities.funding.telling import TOLD_EVERY, Telling
from longshore.models.funding import FundingClass, Lending, PaidFor
from longshore.models.funding_use import PaidGPUs
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Facts, Use
from longshore.scheduling.funding.news import News, news_of, paid_for
from tests.support.funding_scenes import (
    NOW,
    applied,
    borrowing,
    facts_of,
    owned,
    tree,
    use,
)

FAMILY = tree(root=None, red="root", blue="root")
MINUTE = timedelta(minutes=1)


def begun(facts: Facts, *uses: Use) -> Facts:
    facts = facts._replace(uses=[*facts.uses, *uses])
    return applied(facts, evaluate(facts, NOW))


def told(facts: Facts) -> list[tuple[str, str, str]]:
    found = news_of(facts, evaluate(facts, NOW), NOW)
    return [(one.job_id, str(one.paid.funding), one.paid.says) for one in found]


def test_who_is_recalled_hears_for_whom_and_who_is_funded_hears_by_whom():
    facts = begun(facts_of(FAMILY, [owned(1, "red", 4)]), use("b", "blue", 4))
    with_owner = facts._replace(uses=[*facts.uses, use("r", "red", 3)])
    assert told(with_owner) == [
        ("b", "UNFUNDED",
         "recalled: red/e1 pays for r now; 1 SHARED by red/e1, 3 UNFUNDED: preempted first"),
        ("r", "OWNED", "3 OWNED by red/e1"),
    ]  # fmt: skip
    begins = [one for one in with_owner.uses if one.job_id == "r"]
    found = news_of(with_owner, evaluate(with_owner, NOW), NOW, begins)
    assert {one.paid.since for one in found} == {NOW}
    assert [one.job_id for one in found] == ["b"], "it hears with its placement"


def test_why_an_envelope_pays_no_longer():
    facts = begun(facts_of(FAMILY, [owned(1, "red", 4)]), use("r", "red", 4))
    cut = facts._replace(envelopes={1: owned(1, "red", 2)})
    assert told(cut) == [
        ("r", "UNFUNDED",
         "red/e1 has become too small; 2 OWNED by red/e1, 2 UNFUNDED: preempted first"),
    ]  # fmt: skip
    ended = facts._replace(envelopes={1: owned(1, "red", 4, end=NOW)})
    assert told(ended) == [("r", "UNFUNDED", "red/e1 has ended; 4 UNFUNDED: preempted first")]


def test_who_keeps_its_class_hears_nothing():
    """Of several classes that which it would lose first: a part more or less is no news."""
    facts = begun(facts_of(FAMILY, [owned(1, "blue", 2), owned(2, "red", 2)]), use("b", "blue", 5))
    assert told(facts) == []
    facts = begun(facts_of(FAMILY, [owned(1, "red", 2)]), use("b", "blue", 2))
    other = facts._replace(envelopes={1: owned(1, "red", 0), 2: owned(2, "root", 2)})
    assert evaluate(other, NOW).ended
    assert told(other) == []


def test_a_class_says_what_may_be_lost_first():
    lending = Lending(to=("blue",), max=1)
    envelopes = [owned(1, "blue", 1), owned(2, "red", 1), owned(3, "bank", 1, lending=lending)]
    tenants = FAMILY | tree(bank=None)
    for gpus, funding in ((1, "OWNED"), (2, "SHARED"), (3, "SHARED")):
        job = use("b", "blue", gpus, terms=borrowing("bank"))
        [one] = news_of(
            facts := facts_of(tenants, envelopes, (), [job]), evaluate(facts, NOW), NOW
        )
        assert one.paid.funding == funding
    job = use("b", "blue", 1, terms=borrowing("bank"))
    facts = facts_of(tenants, envelopes[2:], (), [job])
    [one] = news_of(facts, evaluate(facts, NOW), NOW)
    assert one.paid.says == "1 BORROWED by bank/e3"


def test_with_its_placement_a_job_hears_who_pays():
    own = PaidGPUs(funding=FundingClass.OWNED, payer="red", envelope="main", gpus=3)
    lent = PaidGPUs(funding=FundingClass.BORROWED, payer="bank", envelope="e", gpus=1)
    assert paid_for(2, [own, lent]) == PaidFor(
        attempt=2, funding=FundingClass.BORROWED, says="3 OWNED by red/main, 1 BORROWED by bank/e"
    )
    itself = PaidGPUs(funding=FundingClass.OWNED, payer="red", gpus=3)
    assert paid_for(1, [itself]) is None, "its tenant has no budget"
    assert paid_for(1, []) is None


def news(funding: FundingClass, job: str = "j") -> News:
    return News(job, PaidFor(attempt=1, funding=funding))


def test_short_jobs_of_an_owner_do_not_have_a_relative_told_each_minute():
    told = Telling()
    lost, again = news(FundingClass.UNFUNDED), news(FundingClass.SHARED)
    assert told.due([lost], NOW) == (lost,)
    for minute in range(1, 5):
        found = told.due([again if minute % 2 else lost], NOW + minute * MINUTE)
        assert found == ()
    other = news(FundingClass.UNFUNDED, "k")
    assert told.due([other], NOW + MINUTE) == (other,), "others hear at once"
    assert told.next_due(NOW + MINUTE) is None
    assert told.due([], NOW + TOLD_EVERY) == (), "it is as it has heard"
    assert told.due([again], NOW + TOLD_EVERY) == (again,)
    assert told.due([lost], NOW + TOLD_EVERY + MINUTE) == ()
    assert told.next_due(NOW + TOLD_EVERY + MINUTE) == TOLD_EVERY - MINUTE, "its pool wakes then"
    assert told.due([], NOW + 2 * TOLD_EVERY) == (lost,), "later, where it is still so"
