"""What the packer is told of a job: a value like any other, in sets and as a key."""

from datetime import UTC, datetime

from longshore.models.buying_document import WaitingJob
from longshore.models.job import JobSpec, Tier
from longshore.models.job_request import JobRequest
from longshore.models.topology import Conformance, Gang
from tests.support.packing import read_back

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
DATA = {"tokens": 12.0, "images": 0.0}


def a_request(**fields: object) -> JobRequest:
    return JobRequest.model_validate({"id": "a", "gpus": 8, "data": DATA, **fields})


def test_a_request_is_hashable_with_every_field_that_it_may_have():
    requests = {
        a_request(tier=Tier.FLEX, gang=Gang(), submitted_at=NOW, power_per_gpu=300),
        a_request(conformance=Conformance(known=True, allowed=("1f",)), needs_container=True),
        a_request(gpus=1, mig="1g.10gb"),
        a_request(),
    }
    assert len(requests) == 4


def test_equal_requests_have_equal_hashes_whatever_the_order_of_their_data():
    turned = a_request(data=dict(reversed(DATA.items())))
    assert list(turned.data) != list(DATA)
    assert turned == a_request()
    assert hash(turned) == hash(a_request())
    assert hash(a_request().model_copy(update={"data": {**DATA}})) == hash(a_request())
    assert {a_request(): "found"}[turned] == "found"


def test_requests_of_other_data_differ():
    assert len({a_request(), a_request(data={}), a_request(data={"tokens": 1})}) == 3


def test_what_is_made_of_a_request_is_hashable_too():
    waiting = WaitingJob(id="a", gpus=1, data=DATA, tenant="ada")
    assert hash(waiting) == hash(waiting.model_copy())
    assert hash(waiting.unmet(NOW)) == hash(waiting.unmet(NOW))


def test_the_wire_and_the_job_file_say_data_as_before():
    spec = JobSpec.model_validate({"name": "a", "command": ["true"], "data": DATA})
    request = JobRequest.of("a", spec, NOW, 1)
    assert request.model_dump(mode="json")["data"] == DATA
    again = read_back(request)
    assert again == request
    assert hash(again) == hash(request)
