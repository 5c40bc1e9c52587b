"""What a job may say of a part of a GPU, and what a GPU may look like."""

from typing import Any

import pytest
from pydantic import ValidationError

from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.mig import positions_of
from longshore.models.node import GPU, GPUParts


def a_spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "job", "command": "true", **fields})


def test_a_share_names_its_thousandths_and_its_memory():
    spec = a_spec(milli=250, vram_per_gpu="20GB")
    assert (spec.gpus, spec.milli, spec.vram_per_gpu) == (1, 250, 20)
    assert a_spec(mig="1G.10gb").mig == "1g.10gb"
    assert a_spec(milli=1000, gpus=4).milli == 1000
    assert a_spec(milli=250, gpus=4, vram_per_gpu=10).gpus == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"milli": 500, "gpus": 2}, "say with vram_per_gpu how much memory of each GPU it needs"),
        ({"milli": 500}, "say with vram_per_gpu how much memory"),
        ({"milli": 0, "vram_per_gpu": 10}, "greater than or equal to 1"),
        ({"milli": 1001}, "less than or equal to 1000"),
        ({"milli": 500, "vram_per_gpu": 10, "mig": "1g.10gb"}, "leave out milli"),
        ({"mig": "1g.10gb", "gpus": 2}, "gpus must be 1, not 2"),
        ({"mig": "big"}, "a MIG profile such as 1g.10gb"),
        ({"mig": "1g.10gb", "vram_per_gpu": 20}, "has 10GB: vram_per_gpu cannot be 20GB"),
        ({"milli": 500, "vram_per_gpu": 10, "gang": {}}, "a gang takes whole GPUs"),
        ({"mig": "1g.10gb", "gang": {}}, "a gang takes whole GPUs"),
    ],
)
def test_what_no_job_can_have_is_refused_in_words(fields: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        a_spec(**fields)
    if "milli" in fields and not 1 <= fields["milli"] <= 1000:
        return
    with pytest.raises(ValidationError, match=words):
        JobRequest.model_validate({"id": "job", "gpus": 1, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"slices_used": 1}, "not in MIG mode"),
        ({"mig": positions_of("H100", 80), "milli_used": 5}, "slices of it, no thousandths"),
        ({"milli_used": 1001}, "less than or equal to 1000"),
        ({"mig": {}, "slices_used": 256}, "less than 256"),
    ],
)
def test_a_gpu_is_used_in_one_way(fields: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        GPUParts(**fields)


def test_a_gpu_that_is_held_has_no_parts():
    for parts in (GPUParts(milli_used=5), GPUParts(mig={})):
        with pytest.raises(ValidationError, match="held by a, and in parts"):
            GPU(index=0, vram=80, job_id="a", parts=parts)
