"""Whole numbers as people write them in documents and settings."""

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from longshore.models.book_document import BookDocument
from longshore.models.counts import is_count
from longshore.models.job import JobSpec
from longshore.models.pool import PoolSpec
from longshore.models.problems import describe_all
from longshore.models.settings import Settings

ODD = ("1_000", "1__0", "１０", "٣", "1 0", "1e3", "0x10", "", "ten")
JOB: dict[str, Any] = {"name": "x", "command": "true"}


@pytest.mark.parametrize("written", ["8", " 8 ", "+8", "008"])
def test_digits_are_a_count(written: str):
    assert is_count(written)
    assert JobSpec.model_validate({**JOB, "gpus": written}).gpus == 8


@pytest.mark.parametrize("written", ODD)
def test_what_has_other_than_digits_is_none(written: str):
    assert not is_count(written)
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(
            {**JOB, "gpus": written, "retry": {"user": {"max_retries": written}}}
        )
    problems = describe_all(refused.value)
    assert [each.split(":")[0] for each in problems] == ["gpus", "retry.user.max_retries"]
    assert all("must be a whole number" in each for each in problems)


def test_a_setting_is_read_as_a_job_file_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGSHORE_KEEP_RUNS", "1_000")
    with pytest.raises(Exception, match="must be a whole number, got '1_000'"):
        Settings()


def test_the_bounds_of_a_count_stay_in_the_schema():
    assert JobSpec.model_json_schema()["properties"]["gpus"] | {"description": ""} == {
        "default": 1, "minimum": 1, "maximum": 100_000, "title": "Gpus", "type": "integer",
        "description": "",
    }  # fmt: skip
    with pytest.raises(ValidationError, match="less than or equal to 100000"):
        JobSpec.model_validate({**JOB, "gpus": 100_001})


@pytest.mark.parametrize("document", [JobSpec, PoolSpec, BookDocument, Settings])
def test_every_count_that_people_write_is_one(document: type[BaseModel]):
    plain = [f"{model.__name__}.{name}" for model in _models(document) for name in _ints(model)]
    assert plain == []


def _models(of: type[BaseModel], known: set[type[BaseModel]] | None = None) -> Iterator[Any]:
    """Yield a model and those in its fields, each once."""
    known = set() if known is None else known
    if of in known:
        return
    known.add(of)
    yield of
    for hint in typing.get_type_hints(of, include_extras=True).values():
        for part in _parts(hint):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _models(part, known)


def _ints(model: type[BaseModel]) -> list[str]:
    hints = typing.get_type_hints(model, include_extras=True)
    return [name for name in model.model_fields if _has_plain_int(hints[name])]


def _has_plain_int(hint: Any) -> bool:
    if hint is int:
        return True
    if typing.get_origin(hint) is typing.Annotated:
        return False  # a type of its own: it says what it takes
    return any(_has_plain_int(part) for part in typing.get_args(hint))


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)
