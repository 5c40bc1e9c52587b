"""What must hold where a start is due, on every pool and for every job."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.funding import Payer, PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import PlacementKind
from longshore.models.preemption import Cut, Overcommit, PreemptionPlan, RunningWork
from longshore.scheduling.packer import place
from longshore.scheduling.preemption.due import is_as_drawn, seed_of
from longshore.scheduling.preemption.parts import Parts, shrunk_to
from longshore.scheduling.preemption.plan import plan_preemptions
from tests.support.packing import NOW, POLICY
from tests.support.preemption import RULES, beneficiaries, busy_pools, nodes_without

OWNER = Payer(frozenset({"owner"}), owner="owner")
Scene = tuple[list[Node], list[RunningWork], dict[str, Payer]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Pools of several tenants: some jobs have spares, or sizes, and for some nobody pays."""
    nodes, drawn = draw(busy_pools())
    works: list[RunningWork] = []
    payers: dict[str, Payer] = {}
    for work in drawn:
        tenant = draw(st.sampled_from("abc"))
        new: dict[str, object] = {"tenant": tenant}
        held = sum(len(share.gpu_indices) for share in work.shares)
        if len(work.shares) > 1 and draw(st.booleans()):
            last = work.shares[-1].model_copy(update={"spare": True})
            new["shares"] = (*work.shares[:-1], last)
        elif work.request.milli == 1000 and draw(st.booleans()):
            sizes = Malleable(min=draw(st.integers(1, held)), max=held)
            request = work.request.model_copy(update={"malleable": sizes})
            new |= {"malleable": sizes, "request": request.smallest}
        works.append(work.model_copy(update=new))
        paid = draw(st.sampled_from((True, True, False)))
        payers[work.id] = Payer(frozenset({tenant}), paid, tenant)
    return nodes, works, payers


def planned(scene: Scene, job: JobRequest, overcommit: Overcommit) -> PreemptionPlan | None:
    nodes, works, payers = scene
    funding = PoolFunding({**payers, job.id: OWNER}, {}, frozenset())
    packing = POLICY.model_copy(update={"funding": funding})
    policy = RULES.model_copy(update={"overcommit": overcommit})
    plans = plan_preemptions([job], nodes, works, policy, packing, NOW, due={job.id: seed_of("x")})
    return next((plan for plan in plans if plan.preempts), None)


def gone(scene: Scene, plan: PreemptionPlan) -> list[RunningWork]:
    """What leaves: of a job that goes on what it gives up, as a job of its own."""
    works = {work.id: work for work in scene[1]}
    found: list[RunningWork] = []
    for victim in plan.victims:
        work = works[victim.job_id]
        if victim.spares_on:
            shares = tuple(share for share in work.shares if share.node_id in victim.spares_on)
            assert all(share.spare for share in shares)
            work = work.model_copy(update={"shares": shares})
        found.append(work)
    return found


@given(scenes(), beneficiaries(), st.sampled_from(Overcommit))
def test_the_job_fits_once_others_have_left(
    scene: Scene, job: JobRequest, overcommit: Overcommit
) -> None:
    plan = planned(scene, job, overcommit)
    if plan is None:
        return
    there = nodes_without(gone(scene, plan), scene[0])
    found = place(job, there, POLICY, NOW, explain=False)
    assert found.kind is PlacementKind.EXISTING_NODE
    gained = {(gain.node_id, gpu) for gain in plan.gains for gpu in gain.gpu_indices}
    used = {
        (share.node_id, gpu) for work in scene[1] for share in work.shares
        for gpu in share.gpu_indices
    }  # fmt: skip
    left = {
        (share.node_id, gpu) for work in gone(scene, plan) for share in work.shares
        for gpu in share.gpu_indices
    }  # fmt: skip
    if job.milli == 1000:
        assert gained <= left | {spot for spot in gained if spot not in used}


@given(scenes(), beneficiaries(), st.sampled_from(Overcommit))
def test_what_somebody_pays_for_loses_no_more_than_its_step_takes(
    scene: Scene, job: JobRequest, overcommit: Overcommit
) -> None:
    plan = planned(scene, job, overcommit)
    if plan is None:
        return
    works = {work.id: work for work in scene[1]}
    drawn = set(plan.lottery.drawn) if plan.lottery else set[str]()
    assert bool(drawn) is (plan.cut is Cut.LOTTERY)
    assert overcommit is Overcommit.LOTTERY or plan.cut is not Cut.LOTTERY
    assert plan.lottery is None or is_as_drawn(plan.lottery)
    for victim in plan.victims:
        work = works[victim.job_id]
        assert work.preemptible
        if not scene[2][work.id].funded or work.id in drawn:
            continue
        if victim.spares_on:
            continue
        assert plan.cut in (Cut.SHRINK, Cut.LOTTERY)
        assert work.malleable is not None
        assert victim.gpus_left is not None
        assert victim.gpus_left >= work.malleable.min


@given(scenes(), st.data())
def test_what_is_kept_and_what_is_lost_are_the_whole(scene: Scene, data: st.DataObject) -> None:
    work = data.draw(st.sampled_from(scene[1]))
    if work.malleable is None:
        return
    size = data.draw(st.sampled_from(work.malleable.sizes))
    parts = shrunk_to(work, size, scene[2][work.id])
    held = sum(len(share.gpu_indices) for share in work.shares)
    assert (parts is None) is (size >= held)
    if parts is not None:
        check(work, parts, held - size)


def check(work: RunningWork, parts: Parts, lost: int) -> None:
    both = (*parts.taken, *parts.kept)
    assert parts.most == lost
    assert sorted((one.node_id, gpu) for one in both for gpu in one.gpu_indices) == sorted(
        (one.node_id, gpu) for one in work.shares for gpu in one.gpu_indices
    )
    for name in ("cpus", "ram"):
        whole = sum(getattr(one, name) for one in work.shares)
        assert abs(sum(getattr(one, name) for one in both) - whole) < 1e-6
