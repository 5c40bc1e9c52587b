"""Plans from nodes that are kept between cycles: those that a plan from nothing makes."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.job_request import RecentJobs
from longshore.models.node import Node, NodeState
from longshore.models.placement import PackingPolicy, PackingRule, RunningJob, ScoreWeights
from longshore.models.topology import Gang
from longshore.scheduling.cycle import plan, plan_cached
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.node_cache import NodeCache
from longshore.scheduling.placement.state import order_on_node, view_nodes
from tests.support.packing import HOUR, NOW, a_job, a_node, running
from tests.support.packing_scenes import Scene, scenes

policies = st.builds(
    PackingPolicy,
    rule=st.sampled_from(PackingRule),
    max_reservations=st.sampled_from([0, 8]),
    weights=st.sampled_from([ScoreWeights(), ScoreWeights(separation=0.3)]),
)
held_data = st.dictionaries(
    st.sampled_from([f"node-{i}" for i in range(6)]), st.sampled_from([("a",), ("a", "b")])
)
Step = tuple[Scene, frozenset[str], Mapping[str, tuple[str, ...]], timedelta]
"""Where changed nodes come from, which they are, data that is held, and the time that passes."""


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """What happens to a pool: nodes come, change, go; jobs begin, end and are overdue."""
    made: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        scene = draw(scenes(mixed=draw(st.booleans()), linked=draw(st.booleans()), max_jobs=6))
        names = [f"node-{i}" for i in range(6)]
        changed = draw(st.frozensets(st.sampled_from(names)))
        passing = timedelta(minutes=draw(st.sampled_from([0, 1, 90])))
        made.append((scene, changed, draw(held_data), passing))
    return made


@given(st.data(), steps(), policies)
def test_plans_from_kept_nodes_are_those_from_all_nodes(
    data: st.DataObject, story: Sequence[Step], policy: PackingPolicy
) -> None:
    pool, kept, now = _Pool(), NodeCache(), NOW
    gang = Gang(group_gpus=4, unlabelled_nodes=True)
    for scene, changed, held, passing in story:
        now += passing
        pool.change(scene, changed)
        kept.update(changed, pool.nodes_of(changed), pool.running_of(changed))
        kept.hold_data(held)
        nodes = [_holding(node, held) for node in pool.nodes]
        queue = list(scene.queue)
        if data.draw(st.booleans()):
            queue.append(a_job("wide", 8, gang=gang))
        recent = [RecentJobs(request=a_job("seen", 3), count=4, ended=2)]
        expected = plan(queue, nodes, pool.running, policy, now, recent)
        assert plan_cached(queue, kept, policy, now, recent) == expected
        assert kept.nodes == tuple(pool.nodes)
        assert sorted(kept.running, key=_in_order) == sorted(pool.running, key=_in_order)
        assert kept.running_count == len(pool.running)
        ready = [gpu for node in pool.nodes if node.state is NodeState.READY for gpu in node.gpus]
        assert (kept.gpus, kept.free_gpus) == (len(ready), sum(gpu.is_free for gpu in ready))
        assert_same_columns(kept.columns(now), _from_nothing(nodes, pool.running, now))
        named = data.draw(st.sampled_from([(), ("rack",), ("ib", "rack")]))
        by_label = _from_nothing(nodes, pool.running, now, named)
        assert_same_columns(kept.columns(now, named), by_label)


def test_a_plan_leaves_what_is_kept_as_it_was() -> None:
    kept = NodeCache()
    nodes = [a_node("node-a"), a_node("node-b", busy=range(4))]
    at_work = running("old", "node-b", range(4), HOUR)
    kept.update(["node-a", "node-b"], nodes, [at_work])
    queue = [a_job("placed", 8), a_job("placed too", 2), a_job("waits", 8)]
    first = plan_cached(queue, kept, PackingPolicy(), NOW)
    assert len(first.placements) == 2
    assert first.reservations
    assert plan_cached(queue, kept, PackingPolicy(), NOW) == first
    assert_same_columns(kept.columns(NOW), _from_nothing(nodes, [at_work], NOW))


def test_classes_that_no_node_is_in_do_not_pile_up() -> None:
    kept = NodeCache()
    for used in range(3_000):
        node = a_node("node-a").model_copy(update={"cpus_used": used / 100})
        kept.update(["node-a"], [node], [])
        assert len(kept.columns(NOW).classes) == 1
        assert kept.cached_classes <= 1_100


def test_nodes_are_told_apart_by_the_labels_that_jobs_of_a_plan_ask_for_alone() -> None:
    nodes = [a_node(f"n{i:02}", labels={"host": f"h{i}", "zone": "ab"[i % 2]}) for i in range(40)]
    kept = NodeCache()
    kept.update({node.id for node in nodes}, nodes, [])
    by_zone = a_job("by-zone", constraints=["zone=b"])
    by_host = a_job("later", constraints=["host=h7"])
    for queue, classes, on in (
        ([a_job()], 1, "n00"),
        ([by_zone], 2, "n01"),
        ([by_zone, by_host], 40, "n01"),
        ([by_host], 40, "n07"),
        ([a_job()], 1, "n00"),
    ):
        made = plan_cached(queue, kept, PackingPolicy(), NOW)
        assert made == plan(queue, nodes, [], PackingPolicy(), NOW)
        assert (made.decisions[0].node_id, kept.cached_classes) == (on, classes)
    # What a job placed lately asked for counts as well: there is to be room for others like it.
    recent = [RecentJobs(request=by_zone, count=4, ended=2)]
    plan_cached([a_job()], kept, PackingPolicy(rule=PackingRule.KEEP_ROOM), NOW, recent)
    assert kept.cached_classes == 2


def test_a_label_that_changes_with_a_registration_changes_where_a_job_goes() -> None:
    kept = NodeCache()
    for label, node_id in (("a", "n"), ("b", None), ("a", "n")):
        kept.update(["n"], [a_node("n", labels={"zone": label})], [])
        made = plan_cached([a_job(constraints=["zone=a"])], kept, PackingPolicy(), NOW)
        assert made.decisions[0].node_id == node_id


def assert_same_columns(one: Columns, other: Columns) -> None:
    assert list(one.views) == list(other.views)
    assert (one.layouts, one.classes) == (other.layouts, other.classes)
    for name in ("class_of", "traits", "layout", "host_to_be_had", "amount_used", "size", "first"):
        column, as_expected = getattr(one, name), getattr(other, name)
        assert np.array_equal(column, as_expected), name
    for name in ("ready", "gone", "host", "gpu_power", "left", "amount", "unnamed"):
        assert np.array_equal(getattr(one.trait_sets, name), getattr(other.trait_sets, name)), name
    for number in range(one.class_count):
        count = int(one.size[number])
        assert one.first_nodes(number, count) == other.first_nodes(number, count)


class _Pool:
    """All nodes of a pool and what runs there, as a read from nothing returns them."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._running: dict[str, list[RunningJob]] = {}

    @property
    def nodes(self) -> list[Node]:
        return [self._nodes[name] for name in sorted(self._nodes)]

    @property
    def running(self) -> list[RunningJob]:
        return [job for jobs in self._running.values() for job in jobs]

    def nodes_of(self, names: frozenset[str]) -> list[Node]:
        return [node for node in self.nodes if node.id in names]

    def running_of(self, names: frozenset[str]) -> list[RunningJob]:
        return [job for job in self.running if job.node_id in names]

    def change(self, scene: Scene, names: frozenset[str]) -> None:
        """Let these nodes be as they are in the scene, where they are in it at all."""
        for name in names:
            self._nodes.pop(name, None)
            self._running[name] = [job for job in scene.running if job.node_id == name]
        self._nodes.update({node.id: node for node in scene.nodes if node.id in names})


def _holding(node: Node, held: Mapping[str, tuple[str, ...]]) -> Node:
    data = held.get(node.id)
    return node.model_copy(update={"data": data}) if data else node


def _from_nothing(
    nodes: Sequence[Node],
    at_work: Sequence[RunningJob],
    now: datetime,
    labels: Sequence[str] | None = None,
) -> Columns:
    at_work = sorted(at_work, key=order_on_node)
    return Columns(view_nodes(nodes, at_work, now), now, labels=labels)


def _in_order(job: RunningJob) -> tuple[str, str]:
    return job.node_id, job.job_id
