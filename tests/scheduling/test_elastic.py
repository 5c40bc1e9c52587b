"""The sizes of malleable jobs: what a shrink leaves, what another size takes, what is told."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.elastic import Malleable
from longshore.models.views import AttemptShare, AttemptView
from longshore.scheduling.elastic import changes_of, resized
from longshore.scheduling.packer import place
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node

J2, J4, J17 = (
    Malleable(min=8, max=24, step=8), Malleable(min=96, max=160, step=32),
    Malleable(min=8, max=16, step=8),
)  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "now", "missing", "left"),
    [
        (J17, 16, 2, 8),  # one group, though 2 GPUs are enough
        (J17, 8, 2, None),
        (J4, 160, 32, 128),
        (J4, 160, 33, 96),
        (J4, 160, 65, None),
        (J2, 24, 8, 16),  # J1e
        (Malleable(min=16, max=48, step=8), 16, 8, None),  # J2c: the text goes to 0, below min
        (J2, 24, 0, 24),
    ],
)
def test_a_shrink_takes_whole_steps_and_stays_above_min(
    sizes: Malleable, now: int, missing: int, left: int | None
):
    assert sizes.without(now, missing) == left


def test_a_job_of_another_size_takes_its_share_of_the_rest():
    job = a_job("j2", gpus=24, cpus=48, ram=240, storage_bandwidth=6, malleable=J2)
    small = job.at_size(8)
    assert (small.gpus, small.cpus, small.ram, small.storage_bandwidth) == (8, 16, 80, 2)
    assert small.expected_duration == 3 * HOUR
    assert small.malleable is None
    assert job.smallest == small


def test_a_serial_part_makes_a_smaller_size_less_slow():
    sizes = J2.model_copy(update={"serial_fraction": 0.5})
    job = a_job("j2", gpus=24, malleable=sizes)
    assert job.at_size(8).expected_duration == HOUR * ((0.5 + 0.5 / 8) / (0.5 + 0.5 / 24))


def test_a_rigid_job_stays_as_it_is():
    job = a_job("plain", gpus=2)
    assert job.smallest is job
    assert job.at_size(1) is job


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 6), st.integers(0, 60), st.data())
def test_a_shrunk_job_has_one_of_its_sizes_and_gives_up_enough(
    least: int, step: int, steps: int, missing: int, data: st.DataObject
):
    sizes = Malleable(min=least, max=least + step * steps, step=step)
    now = data.draw(st.sampled_from([*sizes.sizes]))
    left = sizes.without(now, missing)
    enough = [size for size in sizes.sizes if now - size >= missing]
    assert left == (enough[-1] if enough else None)


@pytest.mark.parametrize(
    ("has", "desired", "free", "restarts", "said"),
    [
        (8, 16, 16, 16, "from 8 to 16 GPUs, 16 desired"),
        (16, 8, 16, 8, "from 16 to 8 GPUs, 8 desired"),
        (24, 8, 0, None, "it keeps its 24 GPUs: stopped now, it would wait (no node can"),
        (8, 24, 8, None, "it keeps its 8 GPUs: stopped now, it would have 8 GPUs"),
        (8, 24, 16, 16, "from 8 to 16 GPUs, 24 desired"),
        (8, 8, 8, None, "it has 8 GPUs already"),
        (None, 8, 8, None, "it starts on up to 8 GPUs when it is placed"),
    ],
)
def test_a_job_is_stopped_only_for_a_size_nearer_to_its_desired_one(
    has: int | None, desired: int, free: int, restarts: int | None, said: str
):
    sizes = J2.model_copy(update={"desired": desired})
    job = a_job("j2", gpus=desired, cpus=desired, ram=desired, malleable=sizes)
    found = place(job, [a_node("n", gpus=24, busy=range(free, 24))], POLICY, NOW)
    reply = resized(job, has, found, None)
    assert (reply.desired, reply.gpus, reply.restarts) == (desired, has, restarts)
    assert reply.reason.startswith(said)


def an_attempt(number: int, gpus: int, minute: int, lasted: int | None) -> AttemptView:
    begun = NOW + timedelta(minutes=minute)
    ended = None if lasted is None else begun + timedelta(minutes=lasted)
    spare = AttemptShare(node_id="s", gpu_indices=(0,), spare=True)
    share = AttemptShare(node_id="n", gpu_indices=tuple(range(gpus)))
    return AttemptView(
        attempt=number, placed_at=begun, ended_at=ended, shares=(share, spare),
        end_reason=ended and "resized", end_message="by its user" if ended else "",
    )  # fmt: skip


def test_a_change_of_size_is_between_two_attempts_that_differ():
    attempts = [
        an_attempt(1, 8, 0, 10), an_attempt(2, 16, 12, 8), an_attempt(3, 16, 21, 9),
        an_attempt(4, 8, 30, None),
    ]  # fmt: skip
    first, second = changes_of(attempts)
    assert (first.attempt, first.gpus_before, first.gpus) == (2, 8, 16)
    assert (first.paused, first.reason) == (timedelta(minutes=2), "by its user")
    assert (second.attempt, second.gpus_before, second.gpus) == (4, 16, 8)
    assert changes_of(attempts[:1]) == ()


def test_changes_in_place_are_within_an_attempt_and_the_next_one_is_compared_with_its_end():
    def share(node: str, left: int | None = None, **said: Any) -> AttemptShare:
        at = None if left is None else NOW + timedelta(minutes=left)
        return AttemptShare(node_id=node, gpu_indices=tuple(range(8)), left_at=at, **said)

    first = AttemptView(
        attempt=1, placed_at=NOW, ended_at=NOW + timedelta(minutes=9), end_reason="resized",
        end_message="grows",
        shares=(
            share("a"), share("b", 5, end_reason="node-lost", end_message="gone"),
            share("c", 3, end_reason="resized", end_message="asked"),
            share("d", 3, end_reason="resized", end_message="asked"),
        ),
    )  # fmt: skip
    found = changes_of([first, an_attempt(2, 16, 10, None)])
    assert [(each.gpus_before, each.gpus, each.in_place) for each in found] == [
        (32, 16, True), (16, 8, True), (8, 16, False),
    ]  # fmt: skip
    assert [each.reason for each in found] == ["asked", "gone", "grows"]
    assert [each.attempt for each in found] == [1, 1, 2]
    assert first.gpus == 8


@pytest.mark.parametrize(
    ("desired", "ranks", "in_place"),
    [
        (8, {0: 8, 1: 8, 2: 8}, 8),
        (16, {0: 8, 1: 8, 2: 8}, 16),
        (24, {0: 8, 1: 8}, None),  # to grow it has to start again
        (8, {0: 16, 1: 8}, None),  # rank 0 alone has more
        (8, {0: 12, 1: 12}, None),
        (8, None, None),  # it cannot
    ],
)
def test_a_size_to_which_whole_ranks_add_up_needs_no_stop(
    desired: int, ranks: dict[int, int] | None, in_place: int | None
):
    sizes = J2.model_copy(update={"desired": desired, "in_place": ranks is not None})
    reply = resized(a_job("j2", malleable=sizes), sum((ranks or {0: 24}).values()), None, None,
                    ranks)  # fmt: skip
    assert (reply.in_place, reply.restarts) == (in_place, None)
