"""A price for a GPU-hour, as job files and flags say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.gpu_hour_price import format_gpu_hour_price, parse_gpu_hour_price
from longshore.models.job import JobSpec
from longshore.models.money import MOST
from longshore.models.pool import PoolSpec
from longshore.models.price_series import PoolPrice


@given(st.integers(1, MOST))
def test_what_is_written_is_read(micro: int):
    assert parse_gpu_hour_price(format_gpu_hour_price(micro)) == micro


@pytest.mark.parametrize(
    "written", ["$2.10/gpu-hour", "$2.10", "$ 2.1 / GPU-Hour", "$2.100000/gpuh", " $2.10 "]
)
def test_forms_that_people_write(written: str):
    assert parse_gpu_hour_price(written) == 2_100_000


@pytest.mark.parametrize(
    "written",
    ["2.10", ".10/gpu-hour", "$2.10/hour", "$0", "$-1", "$nan", "$1e3", "$", "", 2, 2.1, True,
     None, "$2.1234567", "$" + "9" * 90, [2]],
)  # fmt: skip
def test_all_else_is_refused_with_what_would_be_right(written: object):
    with pytest.raises(ValueError, match=r"such as \$2\.10/gpu-hour"):
        parse_gpu_hour_price(written)


def test_a_job_file_says_it_and_it_travels():
    spec = load_document("name: a\ncommand: make\nstart_below: $2.10/gpu-hour", "a.yaml", JobSpec)
    assert spec.start_below == 2_100_000
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert JobSpec(name="a", command="make", start_below=2_100_000) == spec
    assert "start_below" not in JobSpec(name="a", command="make").model_dump_json()
    with pytest.raises(SpecError, match="start_below: expected a price such as"):
        load_document("name: a\ncommand: make\nstart_below: 2", "a.yaml", JobSpec)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("https://me:secret@example.com/p.csv", "may hold no user or password"),
        ("https://example.com/p.csv?token=secret", "may hold no token or key"),
        ("https://example.com/p.csv?sig=secret", "may hold no token or key"),
        ("ftp://example.com/p.csv", "must be a file, a URL such as"),
        ("prices.csv", "must be a file, a URL such as"),
        ("https://", "must be a file, a URL such as"),
        ("https://[::1/", "is no URL"),
    ],
)
def test_a_source_that_is_none_is_refused_without_its_secret(source: str, told: str):
    with pytest.raises(ValidationError) as refused:
        PoolPrice(source=source)
    (error,) = refused.value.errors()
    assert told in error["msg"]
    assert "secret" not in error["msg"]


def test_a_source_that_an_earlier_version_took_is_read():
    stored = {"price": {"source": "https://example.com/p.csv?sig=x"}}
    found = PoolSpec.as_known({"name": "pool", **stored}).price
    assert found is not None
    assert found.source == stored["price"]["source"]


def test_a_pool_without_a_price_is_stored_as_before():
    assert not {"price", "start_below"} & PoolSpec().model_dump().keys()
