"""Malleable jobs start, and grow, on the largest size that somebody pays for."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.funding import FundingTerms, Lending, PoolFunding, Quotas, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.models.placement import PlacementKind
from longshore.models.topology import Gang
from longshore.scheduling.cycle import plan
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Charge, Facts, Use, Wall, Where
from longshore.scheduling.funding.pool import Asks, fewest, pool_funding, settled
from longshore.scheduling.funding.sizes import MayGrow
from tests.support.funding_scenes import (
    NOW,
    applied,
    borrowing,
    capped,
    facts_of,
    owned,
    tree,
    universes,
    use,
)
from tests.support.packing import HOUR, POLICY, a_job, a_node

MICROSECOND = timedelta(microseconds=1)
J4 = Malleable(min=96, max=160, step=32)
J5 = Malleable(min=96, max=128, step=32)


def elastic(name: str, tenant: str, sizes: Malleable, **fields: object) -> JobRequest:
    job = a_job(name, sizes.target, tenant=tenant, malleable=sizes, cpus=0, ram=0, **fields)
    return job.model_copy(update={"gpu_type": None})


def found(
    facts: Facts, *queue: JobRequest, asks: Asks | None = None, walls: tuple[Wall, ...] = ()
) -> PoolFunding:
    terms = dict.fromkeys((job.id for job in queue), asks) if asks else {}
    return pool_funding(facts, "pool", queue, {k: v for k, v in terms.items() if v}, NOW, walls)


def growing(facts: Facts, job: JobRequest, gpus: int, *queue: JobRequest) -> dict[str, int]:
    """Up to which size a job may grow that runs on so many GPUs."""
    asked = job.model_copy(update={"attempt": 2})
    return dict(pool_funding(facts, "pool", queue, {}, NOW, growing=[MayGrow(asked, gpus)]).sizes)


def running(facts: Facts, *uses: Use) -> Facts:
    facts = facts._replace(uses=[*facts.uses, *uses])
    return applied(facts, evaluate(facts, NOW))


def started(funding: PoolFunding, *queue: JobRequest, gpus: int, nodes: int) -> dict[str, int]:
    """The sizes with which the jobs of a queue start on idle nodes."""
    policy = POLICY.model_copy(update={"funding": funding})
    there = [a_node(f"n{number}", gpus=gpus, cpus=900, ram=9000) for number in range(nodes)]
    decisions = plan(queue, there, (), policy, NOW).decisions
    return {one.job_id: one.gpus for one in decisions if one.kind is PlacementKind.EXISTING_NODE}


# --- J4: an envelope of 256, 160 GPUs in groups of 32


def j4() -> JobRequest:
    return elastic("run", "a", J4, gang=Gang(group_gpus=32, unlabelled_nodes=True))


def test_j4_a_budget_of_256_pays_for_all_sizes():
    facts = facts_of(tree(a=None), [owned(1, "a", 256)])
    funding = found(facts, j4())
    assert funding.sizes == {}
    assert started(funding, j4(), gpus=32, nodes=5) == {"run": 160}
    assert started(funding, j4(), gpus=32, nodes=3) == {"run": 96}, "3 groups, and pending to grow"


@pytest.mark.parametrize(
    ("budget", "runs_on", "grows_to"),
    [
        (256, 96, None),
        (160, 96, None),
        (159, 96, 128),
        (128, 96, 128),
        (127, 96, 96),
        (128, 128, 128),
    ],
)
def test_j4_it_grows_group_by_group_as_far_as_its_budget_pays(
    budget: int, runs_on: int, grows_to: int | None
):
    facts = running(facts_of(tree(a=None), [owned(1, "a", budget)]), use("run", "a", runs_on))
    assert growing(facts, j4(), runs_on).get("run") == grows_to


def test_j4_a_smaller_desired_size_is_paid_for_alone():
    """Back from 160 to 96: two groups leave, and 160 of the 256 are free again."""
    facts = running(facts_of(tree(a=None), [owned(1, "a", 256)]), use("run", "a", 160))
    back = facts._replace(uses=[use("run", "a", 96)])
    split = evaluate(back, NOW).splits["run", 1]
    assert split[:4] == (96_000, 0, 0, 0)
    small = j4().model_copy(update={"malleable": J4.model_copy(update={"desired": 96})})
    assert growing(back, small, 96) == {}


# --- J5: an envelope of 96, and a sponsor that lends 64


def j5(most: int) -> tuple[Facts, JobRequest, Asks]:
    lending = Lending(to=("own",), max=64)
    envelopes = [owned(1, "own", 96), owned(2, "sponsor", 256, lending=lending)]
    facts = facts_of(tree(own=None, sponsor=None), envelopes)
    job = elastic("run", "own", J5, gang=Gang(group_gpus=32, unlabelled_nodes=True))
    return facts, job, Asks(borrowing("sponsor", most=most))


def test_j5_a_malleable_run_borrows_32():
    facts, job, asks = j5(32)
    funding = found(facts, job, asks=asks)
    assert funding.sizes == {}
    assert started(funding, job, gpus=32, nodes=4) == {"run": 128}


def test_j5b_with_a_limit_of_16_it_starts_at_96():
    facts, job, asks = j5(16)
    funding = found(facts, job, asks=asks)
    assert funding.sizes == {"run": 96}
    assert started(funding, job, gpus=32, nodes=4) == {"run": 96}
    policy = POLICY.model_copy(update={"funding": funding})
    nodes = [a_node(f"n{number}", gpus=32, cpus=900, ram=9000) for number in range(4)]
    (decision,) = plan([job], nodes, (), policy, NOW).decisions
    assert decision.reason.startswith(
        "96 of 128 desired GPUs, as many as budgets and quotas allow"
    )


# --- the rules


SMALL = Malleable(min=2, max=8, step=2)


def test_what_it_has_beyond_its_fewest_comes_after_all_that_wait():
    facts = facts_of(tree(a=None), [owned(1, "a", 7)])
    queue = [elastic("e1", "a", SMALL), elastic("e2", "a", SMALL), a_job("last", 1, tenant="a")]
    assert found(facts, *queue).sizes == {"e1": 4, "e2": 2}
    assert found(facts, *queue).unfunded == {}


def test_nothing_is_taken_from_a_relative_that_waits():
    facts = facts_of(tree(p=None, a="p", b="p"), [owned(1, "a", 8)])
    funding = found(facts, a_job("guest", 3, tenant="b"), elastic("e", "a", SMALL))
    assert (funding.sizes, dict(funding.unfunded)) == ({"e": 4}, {})


def test_a_relative_that_runs_gives_back_to_the_owner():
    facts = facts_of(tree(p=None, a="p", b="p"), [owned(1, "a", 8)])
    facts = running(facts, use("guest", "b", 3))
    funding = found(facts, elastic("e", "a", SMALL))
    assert funding.sizes == {}
    assert funding.recalls == {}, "nobody is stopped for more than its fewest GPUs"


def test_nobody_pays_for_its_fewest_so_it_runs_whole_on_idle_gpus():
    facts = facts_of(tree(a=None), [owned(1, "a", 1)])
    job = elastic("e", "a", SMALL)
    funding = found(facts, job)
    assert (set(funding.unfunded), funding.sizes) == ({"e"}, {})
    assert started(funding, job, gpus=8, nodes=1) == {"e": 8}
    runs = running(facts, use("e", "a", 4))
    assert growing(runs, job, 4) == {}
    wait = use("e", "a", 4, terms=FundingTerms(unfunded=WhenUnfunded.WAIT))
    assert growing(running(facts, wait), job, 4) == {"e": 4}


def test_one_that_is_paid_for_in_part_does_not_grow():
    facts = running(facts_of(tree(a=None), [owned(1, "a", 8)]), use("e", "a", 4))
    cut = facts._replace(envelopes={1: owned(1, "a", 3)})
    assert growing(applied(cut, evaluate(cut, NOW)), elastic("e", "a", SMALL), 4) == {"e": 4}


def test_a_job_that_runs_grows_behind_those_that_wait():
    facts = running(facts_of(tree(a=None), [owned(1, "a", 8)]), use("e", "a", 2))
    job = elastic("e", "a", SMALL)
    assert growing(facts, job, 2) == {}
    assert growing(facts, job, 2, a_job("waits", 3, tenant="a")) == {"e": 4}


def test_spares_are_paid_for_with_each_size():
    gang = Gang(group_gpus=2, spares_per_group=1)
    facts = facts_of(tree(a=None), [owned(1, "a", 8)])
    assert found(facts, elastic("e", "a", SMALL, gang=gang)).sizes == {"e": 4}  # 6 with spares
    assert found(facts, elastic("e", "a", SMALL)).sizes == {}


def test_a_cap_and_parts_of_gpus_count():
    facts = facts_of(
        tree(a=None), [owned(1, "a", 4), owned(2, "a", 4)], [capped(1, "a", 5, (1, 2))]
    )
    facts = running(facts, use("part", "a", 1, milli=500))
    assert found(facts, elastic("e", "a", SMALL)).sizes == {"e": 4}


def test_a_hard_quota_bounds_the_size_too():
    wall = Wall("root", frozenset({"a"}), Quotas(max_gpus=7), milli=1000, jobs=1)
    facts = facts_of({}, [])
    queue = [elastic("e1", "a", SMALL), elastic("e2", "a", SMALL)]
    assert found(facts, *queue, walls=(wall,)).sizes == {"e1": 4, "e2": 2}
    one = pool_funding(
        facts, "pool", (), {}, NOW, (wall,), growing=[MayGrow(queue[0], 4)]
    )  # fmt: skip
    assert one.sizes == {}


def test_without_budgets_no_size_is_bound():
    funding = found(facts_of({}, []), elastic("e", "a", SMALL))
    assert (funding.sizes, dict(funding.payers)) == ({}, {})


def test_at_the_commit_too_nothing_is_taken_from_who_begins_behind_it():
    """The parent's two GPUs are what the sibling can have; the other may borrow instead."""
    lending = Lending(to=("a",), max=4)
    tenants = tree(p=None, a="p", b="p", bank=None)
    facts = facts_of(tenants, [owned(1, "p", 4), owned(2, "bank", 4, lending=lending)])
    sizes = Malleable(min=2, max=4, step=2)
    terms = borrowing("bank")
    queue = [elastic("e", "a", sizes), a_job("last", 2, tenant="b")]
    funding = pool_funding(facts, "pool", queue, {"e": Asks(terms)}, NOW)
    assert (dict(funding.unfunded), funding.sizes) == ({}, {})
    begins = (
        use("e", "a", 4, terms=terms, since=NOW), use("last", "b", 2, since=NOW + MICROSECOND),
    )  # fmt: skip
    opened = settled(facts, begins, NOW, fewest(queue)).opened
    assert sorted((one.job_id, one.envelope, one.gpus) for one in opened) == [
        ("e", 1, (0, 1)), ("e", 2, (2, 3)), ("last", 1, (0, 1)),
    ]  # fmt: skip


@st.composite
def queues(draw: st.DrawFn) -> tuple[Facts, list[JobRequest], dict[str, Asks]]:
    facts = draw(universes())
    names = sorted(facts.tenants)
    queue: list[JobRequest] = []
    asks: dict[str, Asks] = {}
    for number in range(draw(st.integers(1, 5))):
        owner, low = draw(st.sampled_from(names)), draw(st.integers(1, 2))
        sizes = Malleable(min=low, max=low + draw(st.integers(0, 3)))
        job = elastic(f"q{number}", owner, sizes).model_copy(update={"gpu_type": "H100"})
        others = [name for name in names if name != owner]
        terms = FundingTerms()
        if others and draw(st.booleans()):
            terms = borrowing(draw(st.sampled_from(others)), most=draw(st.sampled_from((None, 1))))
        asks[job.id] = Asks(terms, draw(st.integers(0, 4)) > 0)
        queue.append(job)
    return facts, queue, asks


@given(queues())
def test_whoever_is_paid_for_with_its_fewest_gpus_is_so_with_its_size(
    drawn: tuple[Facts, list[JobRequest], dict[str, Asks]],
) -> None:
    """Where all start at once, with the largest sizes: no GPU of them is unfunded, and no sum is
    exceeded."""
    facts, queue, asks = drawn
    facts = applied(facts, evaluate(facts, NOW))
    funding = pool_funding(facts, "pool", queue, asks, NOW)
    rack = Where("pool", "H100", frozenset({("rack", "1")}))
    begins: list[Use] = []
    for place, job in enumerate(queue):
        if job.id in funding.unfunded or not facts.tenants[job.tenant or ""].budget_since:
            continue
        assert job.malleable is not None
        size = funding.sizes.get(job.id, job.malleable.target)
        assert job.malleable.min <= size <= job.malleable.target
        says = asks[job.id]
        begins.append(
            use(
                job.id, job.tenant or "", size, where=rack, since=NOW + place * MICROSECOND,
                terms=says.terms, preemptible=says.preemptible,
            )
        )  # fmt: skip
    found = settled(facts, begins, NOW, fewest(queue))
    paid: Counter[str] = Counter()
    for one in found.opened:
        paid[one.job_id] += len(one.gpus)
    assert {one.job_id: paid[one.job_id] for one in begins} == {
        one.job_id: len(one.shares[0].gpus) for one in begins
    }


@pytest.mark.parametrize("unfunded", list(WhenUnfunded))
def test_who_loses_to_a_job_is_paid_for_before_it_has_more_than_its_fewest(unfunded: WhenUnfunded):
    """The guest of b's envelope goes to that of the parent, so the job starts on one GPU."""
    paid = Charge("r1", 1, 0, 1, (0,), 1000, False, NOW - HOUR, 1)
    runs = use("r1", "d", 1, since=NOW - HOUR)
    given = facts_of(tree(a=None, b="a", d="a"), [owned(1, "b", 1), owned(2, "a", 1)], (), [runs],
                     [paid])  # fmt: skip
    job = elastic("m", "b", Malleable(min=1, max=2, step=1))
    asks = {"m": Asks(FundingTerms(unfunded=unfunded))}
    found = pool_funding(given, "pool", [job], asks, NOW)
    assert found.of("m").funded
    assert found.sizes == {"m": 1}
    begins = use("m", "b", 1)._replace(terms=asks["m"].terms)
    then = settled(given, (begins,), NOW, fewest([job]), found.foreseen)
    assert then.splits["m", 1].owned == then.splits["r1", 1].shared == 1000
    assert not pool_funding(given._replace(uses=(), charges=()), "pool", [job], asks, NOW).sizes
