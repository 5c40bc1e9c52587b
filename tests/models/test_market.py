"""Instance types, windows and levels of books."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.market import InstanceType, Level, OrderState, Window

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)

sizes = st.integers(1, 2_000) | st.sampled_from([0.5, 1.5, 40.25, 79.6])
types = st.builds(
    InstanceType,
    gpus=st.integers(1, 9999),
    gpu_type=st.from_regex(r"[A-Z][A-Z0-9_+.]{0,12}", fullmatch=True),
    vram=st.none() | sizes.map(float).filter(lambda gb: gb >= 1),
)
moments = st.integers(0, 1_000).map(lambda hours: NOW + hours * HOUR)
windows = st.tuples(moments, moments).filter(lambda pair: pair[0] < pair[1])


@given(types)
def test_a_type_is_read_as_it_is_written(kind: InstanceType) -> None:
    assert InstanceType.parse(str(kind)) == kind
    assert InstanceType.parse(str(kind).lower()) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("8xH100", InstanceType(gpus=8, gpu_type="H100")),
        (" 8xh100 ", InstanceType(gpus=8, gpu_type="H100")),
        ("1xA100-80GB", InstanceType(gpus=1, gpu_type="A100", vram=80)),
        ("16XB200_SXM", InstanceType(gpus=16, gpu_type="B200_SXM")),
    ],
)
def test_types(text: str, kind: InstanceType) -> None:
    assert InstanceType.parse(text) == kind


@pytest.mark.parametrize(
    "text", ["", "H100", "0xH100", "8x", "8 x H100", "x8H100", "8xH100-80", "8xH100-", "-8xH100"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an instance type"):
        InstanceType.parse(text)


@given(types, types)
def test_a_type_takes_itself_and_who_takes_it(one: InstanceType, other: InstanceType) -> None:
    assert one.takes(one)
    assert one.takes(other) == other.takes(one)


@pytest.mark.parametrize(
    ("wanted", "offered", "takes"),
    [
        ("8xH100", "8xh100", True),
        ("8xH100", "8xH100-80GB", True),
        ("8xH100-80GB", "8xH100", True),
        ("8xA100-40GB", "8xA100-80GB", False),
        ("8xH100", "4xH100", False),
        ("8xH100", "8xH200", False),
    ],
)
def test_which_type_takes_which(wanted: str, offered: str, takes: bool) -> None:
    assert InstanceType.parse(wanted).takes(InstanceType.parse(offered)) is takes


@given(windows)
def test_a_window_has_a_length_and_covers_its_parts(pair: tuple[datetime, datetime]) -> None:
    window = Window(start=pair[0], end=pair[1])
    assert window.start + window.length == window.end
    assert window.hours == (window.end - window.start).total_seconds() / 3600
    assert window.covers(window)
    longer = Window(start=window.start, end=window.end + HOUR)
    assert longer.covers(window)
    assert not window.covers(longer)
    assert Window.model_validate_json(window.model_dump_json()) == window


def test_a_window_ends_after_it_starts() -> None:
    with pytest.raises(ValidationError, match="must end after it starts"):
        Window(start=NOW, end=NOW)


@pytest.mark.parametrize(
    ("times", "ends_at"),
    [
        ({}, None),
        ({"duration": HOUR}, None),
        ({"start": NOW}, None),
        ({"start": NOW, "duration": HOUR}, NOW + HOUR),
        ({"start": NOW, "end": NOW + 2 * HOUR, "duration": HOUR}, NOW + 2 * HOUR),
        ({"end": NOW}, NOW),
    ],
)
def test_when_a_level_ends(times: dict[str, datetime], ends_at: datetime | None) -> None:
    assert Level.model_validate({"price": 1, "gpus": 8, **times}).ends_at == ends_at


@pytest.mark.parametrize(
    "wrong", [{"price": -1}, {"price": 10**15 + 1}, {"gpus": -1}, {"gpus": 10**9 + 1}, {"lot": 0}]
)
def test_levels_have_sane_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Level.model_validate({"price": 1, "gpus": 8, **wrong})


def test_three_states_of_an_order_are_final() -> None:
    final = {state.value for state in OrderState if state.final}
    assert final == {"FILLED", "CANCELLED", "REJECTED"}
