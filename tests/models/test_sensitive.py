"""`sensitive` of a job: what is taken, what is refused, and what does not change without it."""

import pytest

from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from tests.support.packing import NOW


def a_spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "command": "b", **fields})


@pytest.mark.parametrize(
    ("says", "line", "why"),
    [
        (
            "milli: 500\nvram_per_gpu: 10GB", 3,
            "asks for parts of GPUs (milli): leave out milli, or sensitive",
        ),
        ("mig: 1g.10gb", 3, "asks for parts of GPUs (mig): leave out mig, or sensitive"),
        (
            "malleable: {min: 1, max: 4}", 3,
            "so other jobs have nothing of a smaller size: leave out malleable, or sensitive",
        ),
        (
            "gpus: 4\ngang: {group_gpus: 4, spares_per_group: 2, lend_spares: true}", 3,
            "so it lends no spare there: leave out gang.lend_spares, or sensitive",
        ),
    ],
)  # fmt: skip
def test_what_cannot_hold_its_nodes_alone_is_refused(says: str, line: int, why: str) -> None:
    with pytest.raises(SpecError) as error:
        load_document(f"name: a\ncommand: b\nsensitive: true\n{says}\n", "job.yaml", JobSpec)
    said = str(error.value)
    assert "sensitive: holds its nodes" in said
    assert why in said
    assert f"job.yaml:{line}: " in said


def test_nonsense_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(SpecError, match="sensitive"):
        load_document("name: a\ncommand: b\nsensitive: maybe\n", "job.yaml", JobSpec)


def test_gangs_and_arrays_may_say_it_and_the_request_has_it() -> None:
    for fields in ({"gpus": 16, "gang": {}}, {"array": "0-9"}, {"gpus": 3}):
        request = JobRequest.of("a", a_spec(sensitive=True, **fields), NOW, 1)
        assert request.sensitive
        assert request.gpu.alone


def test_a_job_without_it_is_stored_and_sent_as_before() -> None:
    spec = a_spec()
    assert "sensitive" not in spec.model_dump(mode="json")
    request = JobRequest.of("a", spec, NOW, 1)
    assert "sensitive" not in request.model_dump(mode="json")
    told = JobRequest.of("a", a_spec(sensitive=True), NOW, 1).model_dump(mode="json")
    assert JobRequest.model_validate(told).sensitive
