"""The sizes of a malleable job: what a job file may say, and all that is wrong with it."""

import pytest

from longshore.models.document import load_document
from longshore.models.elastic import Malleable
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec


def load(text: str) -> JobSpec:
    return load_document(f"name: train\ncommand: 'true'\n{text}", "job.yaml", JobSpec)


def all_refused(text: str) -> tuple[str, ...]:
    with pytest.raises(SpecError) as error:
        load(text)
    return error.value.problems


def refused(text: str) -> str:
    (problem,) = all_refused(text)
    return problem


@pytest.mark.parametrize(
    ("sizes", "gpus"),
    [("{min: 2, max: 8, step: 2}", 8), ("{min: 2, max: 8, step: 2, desired: 4}", 4)],
)
def test_the_gpus_of_a_file_that_names_none_are_those_of_the_desired_size(sizes: str, gpus: int):
    assert load(f"malleable: {sizes}").gpus == gpus


def test_gpus_that_are_given_stay():
    assert load("gpus: 2\nmalleable: {min: 2, max: 8, step: 2}").gpus == 2


def test_the_sizes_go_from_min_to_max_by_step():
    sizes = Malleable(min=96, max=160, step=32)  # J4
    assert [*sizes.sizes] == [96, 128, 160]
    assert [*sizes.up_to_target] == [160, 128, 96]
    assert [*sizes.model_copy(update={"desired": 96}).up_to_target] == [96]


def test_min_above_max():
    said = refused("malleable: {min: 8, max: 4}")
    assert said == "job.yaml:3: malleable.min: is 8, which is above max (4)"
    assert all_refused("malleable: {min: 8, max: 4, desired: 16}") == (
        "job.yaml:3: malleable.desired: is 16, which is above min (8) and max (4)",
        said,
    )


def test_everything_that_is_wrong_is_said_at_once():
    sizes = "\n  min: 2\n  max: 12\n  step: 3\n  desired: 13"
    assert all_refused(f"gpus: 9\npriority: 22\ngang: {{group_gpus: 4}}\nmalleable:{sizes}") == (
        "job.yaml:3: gpus: is 9, which is not malleable.min (2) and a number of steps of 3: the "
        "nearest sizes are 8 and 11",
        "job.yaml:4: priority: must be at most 10, got 22",
        "job.yaml:7: malleable.min: is 2, which is no multiple of gang.group_gpus (4)",
        "job.yaml:9: malleable.step: is 3, which does not divide the 10 GPUs between min (2) and "
        "max (12)",
        "job.yaml:9: malleable.step: is 3, which is no multiple of gang.group_gpus (4)",
        "job.yaml:10: malleable.desired: is 13, which is outside 2 (min) to 12 (max)",
    )


@pytest.mark.parametrize("desired", ["", ", desired: 13"])
def test_gpus_that_nobody_wrote_are_not_blamed(desired: str):
    found = all_refused(f"malleable: {{min: 2, max: 12, step: 3{desired}}}")
    assert "gpus:" not in "".join(found)
    assert len(found) == (2 if desired else 1)


def test_what_speaks_of_a_field_that_cannot_be_read_is_not_told():
    found = all_refused("malleable: {min: 9, max: 4, step: many, desired: 20}")
    assert found == (
        "job.yaml:3: malleable.desired: is 20, which is above min (9) and max (4)",
        "job.yaml:3: malleable.min: is 9, which is above max (4)",
        "job.yaml:3: malleable.step: must be a whole number, got 'many'",
    )
    assert all_refused("milli: 500\nvram_per_gpu: huge") == (
        "job.yaml:4: vram_per_gpu: expected a size such as 80GB, 512MB or 64GiB, not 'huge'",
    )


def test_an_unaligned_size_is_told_with_the_nearest_ones():
    said = refused("malleable: {min: 8, max: 24, step: 8, desired: 18}")
    assert "malleable.desired: is 18, which is not min (8) and a number of steps of 8" in said
    assert "the nearest sizes are 16 and 24" in said


def test_a_part_of_a_gpu_has_one_size():
    said = refused("milli: 500\nvram_per_gpu: 4GB\nmalleable: {min: 1, max: 2}")
    assert "takes whole GPUs" in said


def test_what_is_no_number_is_refused_as_such():
    assert "malleable.max" in refused("malleable: {min: 1, max: many}")


def test_twice_the_gpus_are_twice_as_fast_only_without_a_serial_part():
    linear, half = Malleable(min=1, max=8), Malleable(min=1, max=8, serial_fraction=0.5)
    assert linear.speed(8) / linear.speed(4) == pytest.approx(2)
    assert half.speed(8) == pytest.approx(1 / (0.5 + 0.5 / 8))
    assert Malleable(min=1, max=8, serial_fraction=1).speed(8) == 1


IN_PLACE = "malleable: {min: 2, max: 8, step: 2, in_place: true}"
SAVES = "checkpoint: {folder: saved, save_file: true}"


def test_a_change_in_place_needs_a_gang_and_a_save_that_can_be_asked_for():
    assert load(f"{IN_PLACE}\ngang: {{}}\n{SAVES}").malleable
    said = "\n".join(all_refused(f"{IN_PLACE}\n"))
    assert "malleable.in_place: takes nodes from a gang: add `gang: {}`" in said
    assert "malleable.in_place: saves before each change: add a checkpoint" in said
    assert "in_place: saves before each change" in refused(
        f"{IN_PLACE}\ngang: {{}}\ncheckpoint: {{folder: saved}}"
    )
    spares = "gang: {group_gpus: 2, spares_per_group: 2}"
    assert "in_place: takes no gang with spares_per_group" in refused(
        f"{IN_PLACE}\n{spares}\n{SAVES}"
    )
