"""How values that cannot be read are told of."""

import pytest
from pydantic import ValidationError

from longshore.client.payloads import data_converter

_CONVERTER = data_converter.payload_converter


def _read(values: list[str]) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        _CONVERTER.from_payloads(_CONVERTER.to_payloads([values]), [list[int]])
    return refused.value


def test_very_many_mistakes_are_counted():
    """The SDK writes the text of such an error to the log."""
    assert len(str(_read(["x"] * 100_000))) < 1_000
    assert "has 100,000 mistakes" in str(_read(["x"] * 100_000))


def test_few_mistakes_are_told_one_by_one():
    assert [each["loc"] for each in _read(["x", "y"]).errors()] == [(0,), (1,)]
