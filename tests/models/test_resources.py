"""Requests of GPUs: how they read, and what they may draw."""

from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.resources import GPURequest

SHARE = GPURequest(1, 40.0, 500)
SLICE = GPURequest(1, mig="1g.10gb")


def test_a_request_reads_as_people_write_it() -> None:
    assert [request.text("H100") for request in (GPURequest(2, 40.0), SHARE)] == [
        "2 x H100 with 40GB", "500/1000 of an H100 with 40GB",
    ]  # fmt: skip
    assert [request.text(None) for request in (GPURequest(2), SLICE)] == [
        "2 x GPU", "1g.10gb of a GPU",
    ]  # fmt: skip


def test_an_engine_is_told_by_its_memory() -> None:
    """Its thousandths follow from that."""
    assert GPURequest(1, 0.757, 9, by_memory=True).text(None) == "757MB of a GPU"
    assert GPURequest(2, 40.0, 500, by_memory=True).text("H100") == "40GB of each of 2 H100"


def test_power_is_what_it_asks_for_or_its_part_of_what_a_gpu_may_draw() -> None:
    assert GPURequest(2).power(300.0, 700.0) == 600.0
    assert [request.power(None, 700.0) for request in (GPURequest(2), SHARE, SLICE)] == [
        1400.0, 350.0, 87.5,
    ]  # fmt: skip


def test_a_spec_and_what_the_packer_is_told_of_it_ask_for_the_same_gpus() -> None:
    spec = JobSpec(name="a", gpus=1, vram_per_gpu=40, milli=500, command="true")
    asked = JobRequest(id="a", gpus=1, vram_per_gpu=40, milli=500)
    assert spec.gpu == asked.gpu == SHARE
    assert [request.whole for request in (SHARE, SLICE, GPURequest(2))] == [False, False, True]
