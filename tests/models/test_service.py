"""A service file: what its jobs could not have is refused before anything is stored."""

import pytest
from pydantic import ValidationError

from longshore.models.bounds import TAKEN
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.service import ServiceFile, ServiceSpec


@pytest.mark.parametrize(
    ("models", "service", "said"),
    [
        ("", "drain: 3653d", "services[0].drain: is 3653d, and may be 1d at most"),
        ("", "drain: 24h1s", "services[0].drain: is 1d1s, and may be 1d at most"),
        ("source: 's3://sets/a b'", "", "models[0].source: s3://sets/a b is a URL, and may hold"),
        (f"source: 's3://sets/{'a' * 2000}'", "", "models[0].source: has 2,010 characters: a URL"),
        ("source: 's3://'", "", "models[0].source: s3:// is no place of these: s3://, gs://"),
        ("source: 'https://a::b'", "", "models[0].source: may not lead from one place to another"),
        ("source: /m, adapters: {x: 'https://h/a b'}", "", "models[0].adapters.x: https://h/a"),
        ("source: 'https://[a/'", "", "models[0].source: https://[a/ is no URL: Invalid IPv6"),
        ("source: 'https://me:no@h/a'", "", "models[0].source: may hold no user or password"),
        ("source: 'job:a'", "", "models[0].source: job:a is no place of these: s3://"),
    ],
)
def test_what_no_job_could_have_is_refused(models: str, service: str, said: str):
    model = f"models:\n  - {{name: m, {models}}}\n" if models else ""
    text = f"{model}services:\n  - {{name: a, model: m, {service}}}\n"
    with pytest.raises(SpecError) as refused:
        load_document(text, "serve.yaml", ServiceFile)
    assert said in str(refused.value)
    assert len(refused.value.problems) == 1


def test_what_jobs_can_have_is_taken():
    text = """
models:
  - {name: m, source: 's3://sets/m.gguf', adapters: {x: /a b/c, y: 'https://[::1]/y'}}
services:
  - {name: a, model: m, drain: 24h}
"""
    assert load_document(text, "serve.yaml", ServiceFile).services[0].drain.days == 1


def test_a_longer_drain_that_was_taken_can_be_read():
    stored = {"name": "a", "model": "m", "drain": "2d"}
    assert ServiceSpec.model_validate(stored, context=TAKEN).drain.days == 2


def test_a_file_that_names_a_service_or_a_model_twice_is_refused():
    model = {"name": "m", "source": "/m.gguf"}
    service = {"name": "s", "model": "m"}
    with pytest.raises(ValidationError, match="s is in this file already"):
        ServiceFile.model_validate({"services": [service, service]})
    with pytest.raises(ValidationError, match="m is in this file already"):
        ServiceFile.model_validate({"models": [model, model], "services": [service]})


@pytest.mark.parametrize("what", ["models", "services"])
def test_a_file_has_a_thousand_of_each_at_most(what: str):
    model = {"name": "m", "source": "/m.gguf"}
    service = {"name": "s", "model": "m"}
    many = [
        {**(model if what == "models" else service), "name": f"x{each}"} for each in range(1001)
    ]
    with pytest.raises(ValidationError, match="at most 1000 items"):
        ServiceFile.model_validate({"services": [service], what: many})
    ServiceFile.model_validate({"services": [service], what: many[:-1]})


def test_a_mistake_between_two_fields_is_told_once_and_the_list_around_it_is_not_empty():
    """What cannot be read counts as no entry for who looks at the list as a whole."""
    text = """
models:
  - {name: m, source: /m.gguf, memory: 0}
services:
  - {name: a, model: m, surge: 0, unavailable: 0}
"""
    with pytest.raises(SpecError) as refused:
        load_document(text, "serve.yaml", ServiceFile)
    first, second = refused.value.problems
    assert first == "serve.yaml:3: models[0].memory: must be more than 0"
    assert second.startswith("serve.yaml:5: services[0].surge: is 0 and so is unavailable: no")
    with pytest.raises(SpecError, match=r"yaml:1: services: must have at least 1 entry"):
        load_document("services: []", "serve.yaml", ServiceFile)
