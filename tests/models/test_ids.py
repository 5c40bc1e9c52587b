"""Ids that one part makes or takes and others have to take too."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from models.base import Name
from models.messages import JOB_ID

NAMES = TypeAdapter[str](Name)


@given(st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True))
def test_every_name_may_be_an_id(name: str) -> None:
    NAMES.validate_python(name)
    assert JOB_ID.fullmatch(name)
