"""What is advised about a job that no node can take: only what would help."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from longshore.models.constraints import parse_constraint
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import RejectionCode
from longshore.models.topology import Conformance
from longshore.scheduling.advice import advice, kind_of_node
from longshore.scheduling.job_changes import Change, agent_command, most_gpus, together
from longshore.scheduling.packer import could_ever_place, place
from longshore.scheduling.unready_nodes import in_the_way_for_good, look_past_states
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import NOW, POLICY, a_job, a_node
from tests.support.packing_scenes import Scene, scenes


def advised(job: JobRequest, nodes: Sequence[Node], *, may_stop: bool = False) -> tuple[str, ...]:
    alone, _ = look_past_states(place(job, nodes, POLICY, NOW), None, job, nodes, POLICY, NOW)
    return advice(job, alone.rejections, nodes, NOW, pool="p", may_stop=may_stop)


def kind(job: JobRequest, nodes: Sequence[Node]) -> str:
    return kind_of_node(job, in_the_way_for_good(job, nodes, POLICY, NOW), nodes, NOW)


FULL = [in_domain("A", "n1", busy=range(8)), in_domain("B", "n2", busy=range(8))]


def test_to_ask_who_gives_way_is_advised_where_somebody_may_be_stopped() -> None:
    for job in (a_job(gpus=8), a_gang(16), a_job(gpus=4, milli=1000)):
        (alone,) = advised(job, FULL)
        assert alone == "wait for running jobs to end (`longshore jobs`), or add a node"
        (asked,) = advised(job, FULL, may_stop=True)
        assert f"`longshore preempt --dry-run {job.id}`" in asked


def test_a_job_of_the_other_tier_is_advised_what_then_fits() -> None:
    flex = a_job(gpus=8, tier="FLEX")
    assert advised(flex, FULL) == (
        "give the job the tier FAST (`--set tier=FAST`)",
        "add a FLEX node: `longshore agent --pool p --tier flex`",
    )
    assert kind(flex, FULL) == "a FLEX node"
    # It would not fit there in the other tier either, nor on a FLEX node like these.
    assert advised(a_job(gpus=16, tier="FLEX"), FULL) == (
        "it takes all of this: give the job the tier FAST (`--set tier=FAST`); and ask for fewer "
        "GPUs: a job's GPUs are all on one node, unless `gang` lets it span several",
        "add a FLEX node with 16 GPUs or more: run `longshore agent --pool p --tier flex` on it",
    )
    more = a_job(gpus=8, tier="FLEX", cpus=1000)
    assert advised(more, [a_node("n1")]) == (
        "it takes all of this: give the job the tier FAST (`--set tier=FAST`); and ask for fewer "
        "cpus",
        "add a FLEX node with 1000 cores or more: run `longshore agent --pool p --tier flex` on "
        "it",
    )
    assert kind(more, [a_node("n1")]) == "a FLEX node with 1000 cores or more"


def test_a_node_that_is_to_be_added_has_all_that_one_or_the_other_lacks() -> None:
    """What is true of a node of another tier is not all: those of the job's tier lack more."""
    small = a_node("n2", tier="FLEX", gpu_type="A100", gpus=2)
    whole = (
        "add a FAST node with A100 GPUs and with 4 GPUs or more: run `longshore agent --pool p` "
        "on it"
    )
    told = advised(a_job(gpus=4, gpu_type="A100"), [a_node("n1"), small])
    assert [each for each in told if "add " in each] == [whole]
    told = advised(a_job(gpus=4, gpu_type="A100"), [small, a_node("n1")])
    assert [each for each in told if "add " in each] == [whole]  # once, whichever is asked first
    many = advised(a_job(cpus=100), [a_node("n1", cpus=64), a_node("n2", tier="FLEX", cpus=200)])
    assert "add a FAST node with 100 cores or more: run `longshore agent --pool p` on it" in many
    (alone,) = [each for each in advised(a_job(gpu_type="A100"), [a_node("n1")]) if "add " in each]
    assert alone == "add a node with A100 GPUs"


@pytest.mark.parametrize(
    ("job", "lacks"),
    [
        (a_job(gpus=16), "a node with 16 GPUs or more"),
        (a_job(cpus=100), "a node with 100 cores or more"),
        (a_job(ram=2000), "a node with 2000GB RAM or more"),
        (a_job(gpus=2, vram_per_gpu=200), "a node with 2 GPUs of 200GB or more"),
        (a_job(gpus=1, milli=500, vram_per_gpu=200), "a node with 1 GPU of 200GB or more"),
        (a_job(storage_bandwidth=9), "a node with 9GB/s storage bandwidth or more"),
        (a_job(gpus=2, power_per_gpu=700), "a node with 1400W of power or more"),
        (a_job(gpus=2), "a node with more power"),
        (a_gang(16, cpus=1600), "a node with 100 cores or more for each GPU"),
    ],
)
def test_a_node_is_said_to_need_what_the_job_asks_for(job: JobRequest, lacks: str) -> None:
    """The command that adds it is the same for every node: it makes none larger."""
    small = in_domain("A", "n1", cpus=64, ram=512, storage_bandwidth=1)
    if "power" in lacks:
        small = in_domain("A", "n1", power=600, gpu_power=700)
    assert kind(job, [small]) == lacks


def test_sensitive_jobs_are_not_told_that_simulated_nodes_would_do() -> None:
    for job in (a_job(sensitive=True), a_job(conformance=Conformance(known=True))):
        told = " ".join(advised(job, [a_node("n1")]))
        assert (
            "nodes that say what they have (`longshore topology`; simulated ones never do)" in told
        )


def test_a_gang_is_told_the_most_that_fits() -> None:
    nodes = [in_domain(name, f"n{name}", gpus=gpus) for name, gpus in (("A", 8), ("B", 7))]
    for job, most in (
        (a_gang(64), 15), (a_gang(64, 4), 15), (a_gang(64, 8), 15), (a_gang(64, 5), 13),
        (a_gang(64, allow_cross_group_spread=False), 8), (a_gang(64, 32), 0),
    ):  # fmt: skip
        assert most_gpus(job, nodes, NOW) == most
        for gpus in range(job.gang.group_gpus or 1 if job.gang else 1, 17):
            fits = could_ever_place(job.model_copy(update={"gpus": gpus}), nodes, NOW)
            assert fits == (gpus <= most)


def test_a_job_of_a_profile_is_told_how_to_start_such_a_node() -> None:
    told = (
        "add a node whose GPUs have the profile, in MIG mode: run `longshore agent --pool p` on "
        "that machine"
    )
    assert advised(a_job(gpus=1, vram_per_gpu=0, mig="3g.40gb"), [a_node("n1")]) == (told,)


def test_a_gang_without_labels_is_advised_to_have_them_or_to_do_without() -> None:
    bare = [a_node("n1"), a_node("n2")]
    assert advised(a_gang(16), bare) == (
        "set gang.unlabelled_nodes to true (`--set gang.unlabelled_nodes=true`)",
        "start the agents with labels, the same for nodes that share fast fabric, as in "
        "`longshore agent --pool p --label region=r1 --label cluster=c1 --label fabric.domain=f1`",
    )
    assert kind(a_gang(16), bare) == "nodes that name their region, cluster and fabric.domain"
    assert not [each for each in advised(a_gang(24), bare) if "unlabelled_nodes" in each]


@pytest.mark.parametrize(
    ("job", "helps", "most", "together"),
    [
        (a_gang(24), (), "ask for at most 16 GPUs, or ", ""),
        (a_gang(16, allow_cross_group_spread=False),
         ("let its groups spread over domains: gang.allow_cross_group_spread",),
         "ask for at most 8 GPUs, or ", " of one domain"),
        # With fewer GPUs than one group has it would be no job.
        (a_gang(16, 16), ("make gang.group_gpus smaller",), "", " of one domain"),
        (a_gang(16, 8, spares_per_group=8),
         ("do without spares: gang.spares_required: false",), "ask for at most 8 GPUs, or ", ""),
        # Each GPU takes more cores with it, the fewer there are: no number of them fits.
        (a_gang(24, cpus=1000.0 * 24), (), "", ""),
    ],
)  # fmt: skip
def test_a_gang_that_can_never_fit_is_not_told_to_wait(
    job: JobRequest, helps: tuple[str, ...], most: str, together: str
) -> None:
    start = (
        "`longshore agent --pool p --label region=r1 --label cluster=c1 --label fabric.domain=f1`"
    )
    last = f"{most}add nodes{together}: run {start} on each"
    assert advised(job, FULL, may_stop=True) == (*helps, last)
    assert kind(job, FULL) == f"more nodes{together}"


def test_what_helps_only_together_is_advised_together() -> None:
    nodes = [a_node("n1"), a_node("n2", busy=range(8))]
    job = a_job(gpus=9, cpus=1000)
    (found,) = advised(job, nodes)
    assert found == (
        "it takes all of this: ask for fewer cpus; and ask for fewer GPUs: a job's GPUs are all "
        "on one node, unless `gang` lets it span several"
    )
    assert kind(job, nodes) == "a node with 1000 cores or more and with 9 GPUs or more"
    for part in (a_job(cpus=1000, gpus=8), a_job(gpus=9)):
        (found,) = advised(part, nodes)
        assert "all of this" not in found


def test_what_one_kind_of_node_lacks_is_advised_where_it_takes_fewer_changes() -> None:
    nodes = [
        a_node("n1", gpus=4, cpus=8), a_node("n2", gpus=4, cpus=8), a_node("n3", gpus=4, cpus=64),
    ]  # fmt: skip
    (only,) = advised(a_job(gpus=8, cpus=32), nodes)
    assert only.startswith("ask for fewer GPUs")


def test_a_gang_with_several_things_wrong_is_told_all() -> None:
    bare = [a_node("n1"), a_node("n2")]
    found = advised(a_gang(16, tier="FLEX"), bare)
    assert found[0] == (
        "it takes all of this: give the job the tier FAST (`--set tier=FAST`); and set "
        "gang.unlabelled_nodes to true (`--set gang.unlabelled_nodes=true`)"
    )
    assert found[1].startswith("add FLEX nodes: `longshore agent --pool p --tier flex --label ")


def test_the_command_of_an_agent_has_every_label_that_is_asked_for() -> None:
    bare = [a_node("n1"), a_node("n2")]
    gang = a_gang(16).model_copy(update={"constraints": (parse_constraint("region=eu"),)})
    assert agent_command(gang, "p") == (
        "`longshore agent --pool p --label region=eu --label cluster=c1 --label fabric.domain=f1`"
    )
    both = a_job(gpus=1, constraints=["zone=a", "ib", "!old", "zone!=b"])
    command = "`longshore agent --pool p --label ib=true --label zone=a`"
    assert agent_command(both, "p") == command
    *_, add = advised(both, bare)
    assert add == f"add a node with them, or start the agent of one anew so: {command}"
    one_of = a_job(gpus=1, tier="FLEX", constraints=["zone in (a, b)", "zone!=a"])
    assert agent_command(one_of, "p") == "`longshore agent --pool p --tier flex --label zone=b`"
    *_, add = advised(a_job(gpus=9, constraints=["zone=a"]), bare)
    assert add == (
        "add a node with all that it asks for: run `longshore agent --pool p --label zone=a` on it"
    )


def test_less_is_advised_to_a_job_that_waits_where_it_then_starts() -> None:
    busy = [a_node("n1", busy=range(8), cpus_used=60)]
    assert advised(a_job(gpus=1, cpus=32), busy) == (
        "wait for running jobs to end (`longshore jobs`), or add a node",
    )


def test_what_would_be_in_the_way_of_an_empty_node_is_what_is_advised_about() -> None:
    """The first constraint that fails now may be one that passes."""
    small = a_node("n1", gpus=1, cpus_used=60)
    job = a_job(gpus=8, cpus=32)
    alone = place(job, [small], POLICY, NOW)
    assert [r.code for r in alone.rejections] == [RejectionCode.CPU]
    looked, last = look_past_states(alone, alone, job, [small], POLICY, NOW)
    assert [(r.code, r.reason) for r in looked.rejections] == [
        (RejectionCode.GPU_COUNT, "has 1 GPU, job wants 8")
    ]
    assert last is not None
    assert last.reason == "no known node could ever hold it (1 node: 1 not-enough-gpus)"
    (helps,) = advised(job, [small], may_stop=True)
    assert helps.startswith("ask for fewer GPUs")
    assert kind(job, [small]) == "a node with 8 GPUs or more"


def test_cores_that_others_have_come_back() -> None:
    waits, fewer = advised(a_job(gpus=1, cpus=32), [a_node("n1", cpus_used=60)])
    assert waits.startswith("wait for running jobs to end")
    assert fewer == "ask for fewer cpus"


def test_nodes_that_lack_different_things_are_not_called_too_small() -> None:
    nodes = [a_node("n1", gpus=1, gpu_type="H100"), a_node("n2", gpu_type="A100")]
    assert kind(a_job(gpus=8, gpu_type="H100"), nodes) == "one with all that it asks for"


@given(scenes(mixed=True))
def test_with_all_that_it_takes_a_job_fits_and_with_less_it_does_not(scene: Scene) -> None:
    for job in (each.smallest for each in scene.queue):
        if not scene.nodes or could_ever_place(job, scene.nodes, NOW):
            continue
        found = together(job, scene.nodes, NOW, "p")  # () where it is not the job's to change

        def fits_with(changes: Sequence[Change], job: JobRequest = job) -> bool:
            changed: tuple[JobRequest, Sequence[Node]] = job, scene.nodes
            for each in changes:
                changed = each.made(*changed)
            return could_ever_place(*changed, NOW)

        assert fits_with(found) or not found
        assert not any(fits_with([o for o in found if o is not each]) for each in found)


def test_of_an_engine_the_fields_of_its_model_are_named() -> None:
    engine = a_job(gpus=1, milli=1, vram_per_gpu=200, serves=True)
    too_large = advised(engine, [a_node("n1", gpus=1, serves=True)])
    assert too_large[0].startswith(
        "give its model a smaller context or concurrency, or less memory"
    )
    assert not [told for told in too_large if "vram_per_gpu" in told or "milli" in told]


def test_a_gang_that_is_too_large_for_nodes_without_labels_may_have_more_of_them() -> None:
    (told,) = advised(a_gang(32, 8), [a_node("n1"), a_node("n2")])
    start = agent_command(a_gang(32, 8), "p")
    assert told.startswith("it takes all of this: start the agents with labels")
    assert told.endswith(f"; and ask for at most 16 GPUs, or add nodes: run {start} on each")
