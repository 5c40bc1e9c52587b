"""Two teams on 72 GPUs, as others' documents tell of them, in their numbers: what happens when one
wants more than there is, loses a node, or keeps spares."""

from longshore.models.funding import FundingClass, FundingCode
from longshore.models.job_request import JobRequest
from longshore.models.placement import PackingPolicy
from longshore.scheduling.funding.cover import cover
from longshore.scheduling.funding.evaluate import evaluate, evaluated
from longshore.scheduling.funding.facts import Charge, Facts, Share, Use
from longshore.scheduling.funding.pool import pool_funding
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.turns import fund
from longshore.scheduling.preemption.payers import Right, right_over
from longshore.scheduling.preemption.plan import plan_preemption
from tests.support.funding_scenes import H100, HOUR, NOW, applied, facts_of, owned, tree, use
from tests.support.packing import POLICY, a_job, a_node
from tests.support.preemption import RULES, a_work, nodes_with

A, B = 1, 2
OF_A_NODE = 8
NODES = 9


def two_teams() -> Facts:
    """As J1b leaves them: A has 24 and B 48; J1 holds 32 for A, J2 24 for B, J3 2 for A."""
    since = NOW - HOUR
    ranks = tuple(Share(rank, H100, tuple(range(OF_A_NODE)), 1000) for rank in range(3))
    jobs = [
        use("j1", "a", 32, since=since), Use("j2", 1, "b", since, ranks),
        use("j3", "a", 2, since=since),
    ]  # fmt: skip
    facts = facts_of(tree(a=None, b=None), [owned(A, "a", 24), owned(B, "b", 48)], (), jobs)
    paid = [
        Charge("j1", 1, 0, A, tuple(range(24)), 1000, False, since, 1),
        *(Charge("j2", 1, rank, B, ranks[rank].gpus, 1000, False, since, 2 + rank)
          for rank in range(3)),
    ]  # fmt: skip
    return facts._replace(charges=paid)


def idle(facts: Facts) -> int:
    return NODES * OF_A_NODE - sum(len(one.gpus) for each in facts.uses for one in each.shares)


def asking(gpus: int, tenant: str = "b") -> JobRequest:
    return a_job("j4", gpus, tenant=tenant, cpus=0, ram=0)


def policy_for(job: JobRequest, facts: Facts) -> PackingPolicy:
    funding = pool_funding(facts, "pool", [job], {}, NOW)
    return POLICY.model_copy(update={"funding": funding})


# --- J1c: J4 wants 32


def test_j1c_two_numbers_are_missing_and_they_are_not_the_same():
    """B has 24 of 48 left, so for 8 of 32 nobody pays: that is what the document prints. Of GPUs
    14 are idle, so 18 are missing; the 8 that J1 holds beyond its budget would make 22."""
    facts = two_teams()
    found = cover(Room(facts, NOW), use("j4", "b", 32))
    assert (found.funded, found.code, found.deficit) == (False, FundingCode.NO_ROOM, 8.0)
    assert idle(facts) == 14
    assert 32 - idle(facts) == 18
    unfunded = evaluate(facts, NOW).splits["j1", 1].unfunded // 1000
    assert (unfunded, idle(facts) + unfunded) == (8, 22)


def test_j1c_who_is_within_the_budget_has_who_is_not_stopped():
    """For 24 B has room: J1 is over its budget by 8, and is stopped as a whole: 14 + 32."""
    facts = two_teams()
    for gpus, right in ((24, Right.FIRST), (32, Right.CLASS)):
        job = asking(gpus)
        funding = policy_for(job, facts).funding
        assert funding is not None
        assert funding.of("j4").funded is (gpus == 24)
        assert right_over("j1", "j4", funding) is right
        assert right_over("j2", "j4", funding) is not Right.FIRST, "it is paid for"


# --- J1d: nobody is drawn by lot who is paid for


def test_j1d_by_default_it_waits():
    """No spares, and nobody who could shrink: of 18 that are missing a lottery would take funded
    ones. J4 is over its budget itself, and all are of one class: nobody is stopped. Within it
    J1 is, as a whole."""
    facts = two_teams()
    nodes = [a_node(f"node-{number}", vram=80) for number in range(7)]
    works = [
        a_work(name, {node.id: range(OF_A_NODE) for node in nodes[first:end]}, priority=5)
        for name, first, end in (("j1", 0, 4), ("j2", 4, 7))
    ]
    for budgeted, stopped in ((32, []), (24, ["j1"])):
        policy = policy_for(asking(budgeted), facts)
        plan = plan_preemption(asking(8), nodes_with(works, nodes), works, RULES, policy, NOW)
        assert [victim.job_id for victim in plan.victims] == stopped


# --- J1e: a node under J2 is lost


def test_j1e_who_is_left_keeps_its_payer():
    """J2 goes on with 16 of 24: what was paid for the lost rank ends, the rest is as it was, and B
    has 32 of 48 left."""
    facts = two_teams()
    j2 = next(each for each in facts.uses if each.job_id == "j2")
    left = j2._replace(shares=j2.shares[:2])
    after = facts._replace(uses=[left if each is j2 else each for each in facts.uses])
    funded, room = evaluated(after, NOW)
    [ended] = funded.ended
    assert (ended.charge.job_id, ended.charge.rank) == ("j2", 2)
    assert funded.opened == ()
    assert funded.splits["j2", 1].payers == (("b", FundingClass.OWNED, 16_000),)
    assert room.free[room.place[B]] == 32_000
    assert cover(room, use("j4", "b", 32)).funded, "the 8 that were missing are free now"


# --- J3: a job with spares, and shards


def with_spares(attempt: int = 1, spares: int = 4) -> Use:
    """J1 on 64 GPUs and spares, which stand by as ranks of their own."""
    shares = [Share(0, H100, tuple(range(64)), 1000)]
    if spares:
        shares.append(Share(1, H100, tuple(range(spares)), 1000))
    return Use("j1", attempt, "a", NOW - HOUR, tuple(shares))


def test_j3_spares_are_paid_in_full_and_shards_have_the_rest():
    facts = facts_of(tree(a=None), [owned(A, "a", 72)], (), [with_spares()])
    facts = applied(facts, evaluate(facts, NOW))
    room = Room(facts, NOW)
    assert room.free == [4_000]
    shards = [use(f"shard-{number}", "a", 2) for number in range(4)]
    covers = fund(room, shards)
    assert [found.funded for found in covers.values()] == [True, True, False, False]
    assert {found.code for found in covers.values() if not found.funded} == {FundingCode.NO_ROOM}
    assert covers["shard-2"].deficit == 2


def test_j3_after_the_swap_the_payer_is_as_it_was_and_the_others_have_room():
    """The spare has taken the place of what failed: 64 are held, paid for since J1 began."""
    facts = facts_of(tree(a=None), [owned(A, "a", 72)], (), [with_spares()])
    before = applied(facts, evaluate(facts, NOW))
    since = {charge.since for charge in before.charges}
    swapped = with_spares(attempt=2, spares=0)
    carried = [
        charge._replace(attempt=2, id=100 + charge.id)
        for charge in before.charges
        if charge.rank == 0
    ]
    running = [swapped, use("shard-0", "a", 2), use("shard-1", "a", 2)]
    facts = applied(after := facts._replace(uses=running, charges=carried), evaluate(after, NOW))
    [kept] = [charge for charge in facts.charges if charge.job_id == "j1"]
    assert (kept.envelope, len(kept.gpus), {kept.since}) == (A, 64, since)
    assert sum(len(charge.gpus) for charge in facts.charges) == 68
    shards = [use(f"shard-{number}", "a", 2) for number in (2, 3)]
    assert all(found.funded for found in fund(Room(facts, NOW), shards).values())
