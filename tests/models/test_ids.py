"""Ids that one part makes or takes and others have to take too."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from longshore.models.base import JOB_ID, Name
from longshore.models.purchase import PURCHASE_ID, machine_name, order_key

NAMES = TypeAdapter[str](Name)


@given(st.from_regex(PURCHASE_ID, fullmatch=True), st.integers(1, 9_999), st.integers(1, 9_999))
def test_a_machine_of_any_purchase_has_a_name_for_a_node(
    purchase: str, order: int, machine: int
) -> None:
    NAMES.validate_python(machine_name(order_key(purchase, order), machine))


@given(st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True))
def test_every_name_may_be_an_id(name: str) -> None:
    NAMES.validate_python(name)
    assert JOB_ID.fullmatch(name)
