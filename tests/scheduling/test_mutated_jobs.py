"""Job files that somebody has spoilt: each is refused, or taken and planned, without a fault."""

import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import timedelta
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_examples import FULL_EXAMPLE
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.topology import labels_of_bought
from longshore.scheduling.cycle import plan
from tests.support.packing import HOUR, NOW, POLICY, a_job, a_node, read_back, running

Path = tuple[str | int, ...]
EXAMPLE: dict[str, Any] = yaml.safe_load(FULL_EXAMPLE)
SMALL: dict[str, Any] = {"name": "job", "command": "true", "milli": 500, "vram_per_gpu": 20}
BOUNDS = (
    0, 1, -1, 2**31, 2**63, 10**18, 10**19, 10**400, 0.1, 5e-324, 1e-7, 1e9, 1e18, 1e300, 1e308,
    float("inf"), float("-inf"), float("nan"), "3653d", "3653d1s", "1e9", "1e400", "0", "-0",
    "nan", "Infinity", "99999999999:59:59", "PT1S", "P9999Y", "0.000001s", "1 week", "1e9 GB",
    "10**9", "0x10", "1_000", "٣", "½", "9" * 400,
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "a\0b", "\n", "\x1b]0;x\a", "\u202e", "\ud800", "\U0010ffff", "é" * 64, "-",
    "--", "--volume=/:/host", "..", "../../etc", "/", "~nobody/x", "'; DROP TABLE jobs", "%s",
    "{}", "null", "x" * 4_096, "x" * 131_072, "SIG", "SIGKILL", "SIGNONE", "1g.10gb", "7g.80gb",
    "9g.0gb", "FLEX", "default", "require", "gpu",
)  # fmt: skip
NESTED = ([], {}, [[]], {"": None}, [None], {"a": {"a": {"a": 1}}}, [EXAMPLE], True, False, None)
PIECES = (
    "\t", "\r", "\n", ":", ": ", "- ", "? ", "#", "&a ", "*a", "!!python/object:os.system ", "!",
    "%", "---\n", "...\n", "|", ">", "{", "}", "[", "]", ",", "'", '"', "\\x", "\ufeff", "\x85",
    "\u2028", "\x7f", "<<: ", "null", "~", "1e9", ".inf", ".nan", "0o17", "-", "9" * 30, "[" * 400,
    "{a: " * 300,
)  # fmt: skip
FITTING: dict[str, tuple[Any, ...]] = {
    "gpus": (1, 2, 8, 9, 31, 100_000),
    "gpu_type": (None, "h100", "A"),
    "vram_per_gpu": (0, 5e-324, 79.9999, 1e9),
    "milli": (1, 500, 999, 1000),
    "mig": (None, "1g.10gb"),
    "cpus": (0, 5e-324, 0.0004, 1e6),
    "ram": (0, 5e-324, 0.0004, 1e9),
    "storage_bandwidth": (0, 5e-324, 1e9),
    "power_per_gpu": (None, 0, 5e-324, 1e9),
    "expected_duration": (0, 1e-6, 1e-300, "3653d"),
    "stop_grace": (0, "3653d"),
    "tier": ("FAST", "FLEX"),
    "priority": (0, 10),
    "gang": (None, {}, {"group_gpus": 1}, {"group_gpus": 8, "spares_per_group": 1024},
             {"unlabelled_nodes": True}, {"allow_cross_group_spread": False}),
    "conformance": (None, {"known": True}, {"allowed": ["x"]}),
    "data": ([], ["a"], {"a": 1e9, "b": 0}, {"a": 5e-324}),
    "checkpoint": (None, {"folder": "a", "grace": "3653d"}),
    "image": (None, "a"),
}  # fmt: skip
"""Values at the bounds, which are taken."""

values = st.one_of(
    st.sampled_from(BOUNDS), st.sampled_from(TEXTS), st.sampled_from(NESTED), st.integers(-2, 20),
    st.floats(), st.text(max_size=20), st.booleans(),
)  # fmt: skip


def paths(value: object, here: Path = ()) -> Iterator[Path]:
    """Yield where each part of a document is."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for name, part in inner:
        yield (*here, name)
        yield from paths(part, (*here, name))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return a job at the bounds, with parts dropped, renamed, replaced, nested or moved."""
    document = deepcopy(
        draw(st.sampled_from([EXAMPLE, SMALL, {"name": "job", "command": "true"}]))
    )
    for field in draw(st.lists(st.sampled_from(sorted(FITTING)), max_size=4)):
        document[field] = deepcopy(draw(st.sampled_from(FITTING[field])))
    for _ in range(draw(st.integers(0, 3))):
        found = list(paths(document))
        if not found:
            break
        *outer, name = draw(st.sampled_from(found))
        holder: Any = document
        for part in outer:
            holder = holder[part]
        how = draw(st.sampled_from(("replace", "replace", "drop", "rename", "nest", "move")))
        if how == "replace":
            holder[name] = deepcopy(draw(values))
        elif how == "nest":
            holder[name] = draw(st.sampled_from(([holder[name]], {"a": holder[name]})))
        elif how == "move":
            document[draw(st.sampled_from(sorted(EXAMPLE)))] = deepcopy(holder[name])
        else:
            part = holder.pop(name)
            if how == "rename" and isinstance(holder, dict):
                names = st.sampled_from([*sorted(EXAMPLE), *TEXTS, "gups"])
                holder[draw(names | st.text(max_size=8))] = part
    return document


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Return a job file with lines dropped, doubled or indented, letters put in, or cut off."""
    text = FULL_EXAMPLE
    for _ in range(draw(st.integers(1, 4))):
        lines = text.splitlines(keepends=True)
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        how = draw(st.sampled_from(("drop", "double", "indent", "cut", "put in", "put in")))
        if how == "put in" or not lines:
            place = draw(st.integers(0, len(text)))
            piece = draw(st.sampled_from(PIECES) | st.text(max_size=3))
            text = text[:place] + piece + text[place:]
            continue
        if how == "cut":
            text = text[: draw(st.integers(0, len(text)))]
            continue
        line = lines[at]
        changed: dict[str, str] = {"drop": "", "double": line + line, "indent": f"  {line}"}
        text = "".join([*lines[:at], changed[how], *lines[at + 1 :]])
    return text


def some_nodes() -> list[Node]:
    """Return nodes of several kinds, so that a job comes past every constraint."""
    gang = [
        a_node(
            f"big-{number}", vram=80, cpus=1e6, ram=1e9, gpu_type="H100", labels=labels_of_bought(
                "p", "here", f"d-{number // 2}"), container_runtime="docker", power=10_000,
            gpu_power=700, storage_bandwidth=100, conformance="1f0e6b2c9d4a7e35", price=2_000_000,
        )
        for number in range(4)
    ]  # fmt: skip
    return [
        *gang, a_node("plain"), a_node("busy", busy=(0, 1, 2, 3, 4, 5, 6)),
        a_node("ends", expires_in=2 * HOUR), a_node("data", data=("imagenet", "a")),
    ]  # fmt: skip


NODES = some_nodes()
RUNNING = [running("on-busy", "busy", range(7), timedelta(minutes=10))]


def taken_or_refused(text: str, source: str) -> None:
    """Load a job file; what is taken goes through JSON and through both passes of a cycle."""
    try:
        spec = load_document(text, source, JobSpec)
    except SpecError as refused:
        str(refused).encode("utf-8", "backslashreplace")
        return  # and no other error
    again = JobSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert JobSpec.model_validate(spec.model_dump()) == spec
    request = JobRequest.of("job", spec, NOW, 1)
    assert read_back(request) == request
    queue = [request, a_job("after", gpus=4), a_job("part", gpus=1, milli=500)]
    compiled, one_by_one = (
        plan(queue, NODES, RUNNING, POLICY, NOW, compiled=how) for how in (True, False)
    )
    assert compiled == one_by_one
    assert "job" in [decision.job_id for decision in compiled.decisions]


@given(documents())
@example(EXAMPLE)
@example(SMALL)
@example({**EXAMPLE, "ram": 5e-324})
@example({**SMALL, "data": [{"imagenet": "150GB"}]})
@example({**SMALL, "\U0010ffff": 1})
@example({**SMALL, "command": "\U0010ffff", "retry": {"\u2028": 1}})
def test_a_document_with_parts_changed_is_taken_or_refused(document: dict[str, Any]):
    for escaped in (True, False):
        taken_or_refused(json.dumps(document, ensure_ascii=escaped), "job.json")


@given(texts())
@example(FULL_EXAMPLE)
def test_a_text_with_letters_changed_is_taken_or_refused(text: str):
    taken_or_refused(text, "job.yaml")
