"""One word for one thing: the glossary says what the code has, and pages use no retired word."""

import pkgutil
import re
from collections import Counter
from enum import StrEnum
from importlib import import_module
from inspect import getmembers, isclass
from itertools import chain
from types import ModuleType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from longshore import models
from longshore.models import cycles, domains, spending, views
from longshore.models.block import BlockState
from longshore.models.dag_view import DagState, StepState
from longshore.models.elements import ElementState
from longshore.models.funding import FundingClass
from longshore.models.gang import GangPacking
from longshore.models.job import Tier
from longshore.models.job_status import JobState
from longshore.models.limit import HeldBy
from longshore.models.market import MachineState, OrderState
from longshore.models.messages import LeaseEnd
from longshore.models.node import NodeState
from longshore.models.packing import PackingRule, QueueOrder
from longshore.models.placement import PlacementKind, RejectionCode
from longshore.models.purchase import PurchaseState
from longshore.models.retry import FailureClass
from longshore.models.schedule import Oddity, Overlap
from longshore.models.topology import LinkClass
from tests.test_docs import NAMES, ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
SHOWN: tuple[type[StrEnum], ...] = (
    JobState, ElementState, DagState, StepState, Overlap, Oddity, FailureClass, LeaseEnd, Tier,
    NodeState, PlacementKind, RejectionCode, QueueOrder, PackingRule,
    GangPacking, LinkClass, PurchaseState, BlockState, OrderState, MachineState, HeldBy,
    FundingClass,
)  # fmt: skip
"""What people are shown by its value."""
VIEWS = (views, spending, cycles, domains)
RECORDS = ("docs/decisions/", "CHANGELOG.md")
"""They keep the words of their day."""
FOLDERS = [folder.name for folder in (ROOT / "longshore").iterdir() if folder.is_symlink()]
READ = [name for name in NAMES if not name.startswith(RECORDS)]


def test_every_value_is_in_the_glossary_and_no_other():
    sections = re.split(r"^### ", section_of("Values"), flags=re.MULTILINE)[1:]
    told = {text.split("\n", 1)[0]: firsts_of(text) for text in sections}
    assert told == {kind.__name__: [member.value for member in kind] for kind in SHOWN}


def test_every_enumeration_of_a_view_is_in_the_glossary():
    found = set(chain.from_iterable(enumerations_of(module) for module in VIEWS))
    assert len(found) >= 5
    assert found <= set(SHOWN)


def test_what_the_glossary_names_of_the_code_exists():
    named = names_of_the_code()
    assert len(named) > 60
    values = {member.value for kind in CLASSES if issubclass(kind, StrEnum) for member in kind}
    assert named - values - {kind.__name__ for kind in CLASSES} == set()


def test_every_view_is_of_a_word_of_the_glossary():
    shown = {kind.__name__ for kind in CLASSES if kind.__name__.endswith("View")}
    assert len(shown) > 10
    assert shown - names_of_the_code() == set()


def test_a_word_stands_in_the_glossary_once():
    words = Counter(row[0] for row in rows_of(GLOSSARY) if len(row) == 4)
    assert len(words) > 60
    assert [word for word, times in words.items() if times > 1] == []


@pytest.mark.parametrize("page", READ)
def test_pages_use_no_retired_word(page: str):
    assert retired_in((ROOT / page).read_text()) == []


def test_retired_words_are_found_in_prose_alone():
    assert retired_in("A job gives\nway to [another](who-gives-way.md).") == ["gives way"]
    assert retired_in("Gave way\n```\na job gives way\n```\n`nursery` nurseryman") == ["gave way"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_uses_no_retired_name(folder: str):
    files = [file for file in (ROOT / folder).rglob("*.py") if "migrations" not in file.parts]
    assert files
    found = {
        str(file.relative_to(ROOT)): names
        for file in files
        if (names := retired_names_in(f"{file.stem}\n{file.read_text()}"))
    }
    assert found == {}


def test_retired_names_are_found_as_words_and_as_parts_of_names():
    assert retired_names_in("def end_nursery(ground): ...") == ["ground", "nursery"]
    assert retired_names_in("class RoomKeeper: surface = background") == ["roomkeeper"]
    assert retired_names_in("jobs.going_on()") == ["going_on"]


def retired_names_in(code: str) -> list[str]:
    """Return the retired names in code, in its names and in its prose."""
    words = {word.casefold() for word in re.findall(r"[A-Za-z_]\w*", code)}
    parts = {part for word in words for part in word.split("_")}
    return sorted(
        name for name in RETIRED_NAMES
        if name in parts or any(f"_{name}_" in f"_{word}_" for word in words)
    )  # fmt: skip


def retired_in(page: str) -> list[str]:
    """Return the retired words of a page, outside of code, comments and addresses."""
    text = re.sub(r"<!--.*?-->|^( *)```.*?^\1```", " ", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    prose = " ".join(text.split()).casefold()
    return [word for word in RETIRED if re.search(rf"\b{re.escape(word)}\b", prose)]


def section_of(heading: str) -> str:
    """Return what stands below a heading of the second level."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", GLOSSARY, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows of its tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in ("word", "value", "retired", "---")]


def firsts_of(text: str) -> list[str]:
    return [row[0].strip("`") for row in rows_of(text)]


def names_of_the_code() -> set[str]:
    cells = [row[3] for row in rows_of(GLOSSARY) if len(row) == 4]
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


def enumerations_of(module: ModuleType) -> set[type[StrEnum]]:
    """Return the enumerations among the fields of the models that a module defines."""
    of_it = [kind for kind in classes_of(module) if issubclass(kind, BaseModel)]
    fields = chain.from_iterable(kind.model_fields.values() for kind in of_it)
    parts = chain.from_iterable(parts_of(field.annotation) for field in fields)
    return {part for part in parts if isclass(part) and issubclass(part, StrEnum)}


def parts_of(annotation: Any) -> list[Any]:
    return [annotation, *chain.from_iterable(parts_of(part) for part in get_args(annotation))]


def classes_of(module: ModuleType) -> list[type]:
    return [kind for _, kind in getmembers(module, isclass) if kind.__module__ == module.__name__]


CLASSES = [
    kind
    for found in pkgutil.iter_modules(models.__path__, "longshore.models.")
    if not found.ispkg
    for kind in classes_of(import_module(found.name))
]
RETIRED = [
    word
    for row in rows_of(section_of("Words that are no longer used").split("### ")[0])
    for word in re.findall(r"`([^`]+)`", row[0])
]
RETIRED_NAMES = {
    word.casefold()
    for row in rows_of(section_of("Words that are no longer used").split("### ")[1])
    for word in re.findall(r"`([^`]+)`", row[0])
}
