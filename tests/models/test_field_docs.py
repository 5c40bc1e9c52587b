"""What stands below a field in the source is what schemas and pages say of it."""

from pathlib import Path
from typing import Generic, TypeVar

from longshore.models.base import Frozen, Wire
from longshore.models.docs import field_docs
from longshore.models.job import JobSpec
from longshore.models.pool import PoolSpec

T = TypeVar("T")


class Berth(Frozen):
    """A place at a quay."""

    length: int
    """In metres,
    along the quay."""
    depth: int = 4
    note: Path | None = None
    "Plain quotes do as well."


class DeepBerth(Berth):
    depth: int = 12
    """In metres, at low tide."""


class Listed(Wire, Generic[T]):
    items: tuple[T, ...]
    """One page of them."""


def test_each_field_has_the_text_below_it_and_a_subclass_those_it_inherits():
    assert field_docs(Berth) == {
        "length": "In metres,\nalong the quay.", "note": "Plain quotes do as well."
    }  # fmt: skip
    assert field_docs(DeepBerth) == {**field_docs(Berth), "depth": "In metres, at low tide."}
    assert field_docs(Listed[int]) == field_docs(Listed) == {"items": "One page of them."}


def test_a_schema_describes_its_fields_in_the_model_and_in_those_within():
    schema = JobSpec.model_json_schema()
    assert all("description" in schema["properties"][name] for name in ("name", "gpus", "gang"))
    assert set(schema["$defs"]["Gang"]["properties"]) == {
        name for name, field in schema["$defs"]["Gang"]["properties"].items()
        if field["description"]
    }  # fmt: skip
    packing = PoolSpec.model_json_schema()["$defs"]["PoolPacking"]["properties"]
    assert packing["rule"]["description"].startswith("By what nodes are ranked")
