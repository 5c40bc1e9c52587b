"""Documents are read by the parser in C where PyYAML has it, and mean the same without it."""

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from yaml.scanner import Scanner

from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_examples import FULL_EXAMPLE
from longshore.models.plain_yaml import Located, parse_yaml

pytestmark = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is here without libyaml")

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def in_python(text: str) -> Located | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        return parse_yaml(text)


def test_a_document_without_a_mistake_is_read_by_the_parser_in_c(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(Scanner, "fetch_more_tokens")  # of the parser in Python
    root = parse_yaml("name: a\ngpus: 8\n")
    assert root is not None
    assert root.plain() == {"name": "a", "gpus": 8}
    assert root.key_lines == {"name": 1, "gpus": 2}


def test_the_example_is_the_same_by_either_parser():
    assert parse_yaml(FULL_EXAMPLE) == in_python(FULL_EXAMPLE)


@given(VALUES, st.sampled_from([True, False, None]), st.booleans())
def test_either_parser_reads_the_same_values_and_lines(value: Any, flow: bool | None, wide: bool):
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=wide)
    assert parse_yaml(text) == in_python(text)


@given(VALUES)
def test_either_parser_reads_json_alike(value: Any):
    text = json.dumps(value, indent=1)
    assert parse_yaml(text) == in_python(text)


@pytest.mark.parametrize(
    "text",
    [
        "name: 'a\n", "name: {a: 1\n", "a: 1\n  b: 2\n", "a:\n\tb: 1\n", "a: *b\n",
        "a: !x 1\n", "!!str a: 1\n", "*a : 1\n", "? [a]\n: 1\n", "a: \x00\n", "a: \ud83d\n", "a",
        "a: 1\n---\nb: 2\n", "- a\n- b\n", "%YAML 3.0\n", "", "# nothing\n", "- " * 101 + "a\n",
        "[" * 2000,
        "a: &b 1\nc: *b\n",
    ],
)  # fmt: skip
def test_a_mistake_is_told_alike(text: str):
    """The parser in C says less of most: what the one in Python says of them is told."""
    with pytest.raises(SpecError) as found:
        load_document(text, "job.yaml", JobSpec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        with pytest.raises(SpecError) as expected:
            load_document(text, "job.yaml", JobSpec)
    assert found.value.problems == expected.value.problems


@pytest.mark.parametrize("deep", ["- " * 101 + "a\n", "[" * 101 + "]" * 101])
def test_what_is_nested_too_deeply_is_refused(deep: str):
    with pytest.raises(SpecError, match="is nested too deeply"):
        load_document(deep, "job.yaml", JobSpec)


def test_documents_are_read_where_pyyaml_has_no_parser_in_c():
    """As where no wheel of it fits, and it was built without libyaml."""
    code = (
        "import sys; sys.modules['yaml._yaml'] = None; import yaml; "
        "from longshore.models.plain_yaml import parse_yaml; "
        "print(yaml.__with_libyaml__, parse_yaml('a: 1').plain())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False {'a': 1}\n", "")
