"""Job and state files: what is read, and how each mistake is named."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from longshore.activities.stored_specs import why_unreadable
from longshore.models.document import load_document, read_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.messages import JobInput
from longshore.models.statefile import ClusterState


def problems(text: str, model: type[BaseModel] = JobSpec) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        load_document(text, "job.yaml", model)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_yaml_is_read_as_people_mean_it() -> None:
    spec = load_document(
        "name: train\n"
        "command: [python, train.py]\n"
        "expected_duration: 01:30:00\n"
        "vram_per_gpu: 40GB\n"
        "cpus: 1e1\n"
        "gpus: 0x4\n"
        "tier: FLEX\n"
        "checkpoint:\n"
        "env:\n"
        "  ANSWER: no\n"
        "  DAY: 2026-11-20\n"
        "  COUNT: 3\n",
        "job.yaml",
        JobSpec,
    )
    assert spec.expected_duration == timedelta(minutes=90)
    assert (spec.cpus, spec.gpus, spec.vram_per_gpu) == (10.0, 4, 40.0)
    assert spec.env == {"ANSWER": "no", "DAY": "2026-11-20", "COUNT": "3"}
    assert spec.checkpoint is None


def test_json_with_tabs_escapes_and_pairs_is_read() -> None:
    text = '\ufeff{\n\t"name": "a",\n\t"command": "x\\ty \\ud83d\\ude00",\n\t"gpus": 8\n}'
    spec = load_document(text.removeprefix("\ufeff"), "job.json", JobSpec)
    assert (spec.command, spec.gpus) == ("x\ty \N{GRINNING FACE}", 8)


def test_every_mistake_is_named_in_the_order_of_the_lines() -> None:
    assert problems(
        "gpus: 0\n"
        "gpuz: 3\n"
        "command: 5\n"
        "retry:\n"
        "  user:\n"
        "    max_retries: -1\n"
        "    backof: 3\n"
        "priority: true\n"
        "tier: fast\n"
        "vram_per_gpu: huge\n"
        "cpus: many\n"
        "image: ''\n"
        "env: {1a: x}\n"
    ) == (
        "job.yaml:1: gpus: must be at least 1, got 0",
        "job.yaml:1: name: is required",
        "job.yaml:2: gpuz: no such field; did you mean gpus?",
        "job.yaml:3: command: must be text or a list, got 5",
        "job.yaml:6: retry.user.max_retries: must be at least 0, got -1",
        "job.yaml:7: retry.user.backof: no such field; did you mean backoff?",
        "job.yaml:8: priority: must be a whole number, got true",
        "job.yaml:9: tier: must be FAST or FLEX, got 'fast'",
        "job.yaml:10: vram_per_gpu: expected a size such as 80GB, 512MB or 64GiB, not 'huge'",
        "job.yaml:11: cpus: must be a number, got 'many'",
        "job.yaml:12: image: must not be empty",
        "job.yaml:13: env.1a: must be letters, digits and underscores, "
        "and not begin with a digit, got '1a'",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml: is empty"),
        ("# only a comment\n", "job.yaml: is empty"),
        ("- a\n- b\n", "job.yaml:1: must hold one mapping (name: value lines), not a list"),
        ("hello", "job.yaml:1: must hold one mapping (name: value lines), not a single value"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: holds several documents; give each a file of its own"),
        ("a: b: c\n", "job.yaml:1: column 5: is not valid YAML: mapping values are not allowed"),
        ("a: [1\nb: 2", "job.yaml:2: column 2: is not valid YAML: expected ',' or ']'"),
        ("name: x\n\tgpus: 2", "job.yaml:2: column 1: is not valid YAML"),
        ("name: &x a\ncommand: *x", "job.yaml:2: column 10: is not valid YAML: aliases (*name)"),
        ("name: !!python/name:os.system a", "job.yaml:1: column 7: is not valid YAML: tags"),
        ("? [a]\n: b\n", "job.yaml:1: column 3: is not valid YAML: a name before a colon"),
        ("name: a\nx: b\x07", "job.yaml:2: character '\\x07' is not allowed here"),
        ("[" * 5000, "job.yaml: is nested too deeply"),
        (
            "name: a\nimage: x\nretry:\n",
            "job.yaml:3: retry: must be a mapping (name: value lines)",
        ),
        ("name: a\n", "job.yaml:1: give a command to run, an image, or both"),
        ("name: a\ncommand: [x, 5]\n", "job.yaml:2: command[1]: must be text, got 5"),
        ("name: A b\nimage: x\n", "job.yaml:1: name: must be lower-case letters, digits"),
        ("name: a\nimage: x\ndata: [a b]\n", "job.yaml:3: data: must have no spaces"),
        (
            "name: a\nimage: x\ncheckpoint: {folder: a, signal: TERM}\n",
            "job.yaml:3: checkpoint.signal: must be the name of a signal, such as SIGTERM, got",
        ),
        ("name: a\nimage: x\ncpus: .inf\n", "job.yaml:3: cpus: must be at most 1000000, got inf"),
        (
            '{\n\t"image": "a", "name": "a",\n\t"gpus": "8"\n}',
            "job.yaml:3: gpus: must be a whole number",
        ),
    ],
)
def test_a_mistake_has_its_line_and_a_sentence(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(problem)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("a\0b", "command: must not hold a NUL character, got 'a\\x00b'"),
        (["a\0b"], "command[0]: must not hold a NUL character, got 'a\\x00b'"),
        (["a", 5], "command[1]: must be text, got 5"),
        (5, "command: must be text or a list, got 5"),
    ],
)
def test_one_mistake_is_told_once_and_without_the_forms_that_may_stand_there(
    command: object, said: str
) -> None:
    document = {"name": "a", "command": command}
    assert problems(json.dumps(document)) == (f"job.yaml:1: {said}",)
    with pytest.raises(SpecError) as refused:
        JobInput.model_validate({"spec": document})
    assert refused.value.problems == (f"spec.{said}",)
    assert why_unreadable(document) == f"{said}"


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nretry:\n  user: {backoff: 1s, backoff: 2s}\nname: b\ngpuz: 1\nimage: x",
        '{"name": "a",\n"image": "x",\n"retry": {"user": {"backoff": 1, "backoff": 2}},\n'
        '"name": "b",\n"gpuz": 1}',
    ],
)
def test_names_given_twice_are_all_refused_and_hide_nothing(text: str) -> None:
    assert problems(text) == (
        "job.yaml:3: retry.user.backoff: is given twice",
        "job.yaml:4: name: is given twice",
        "job.yaml:5: gpuz: no such field; did you mean gpus?",
    )


@pytest.mark.parametrize(
    "text",
    [
        '{name: a, command: x, env: {"A\\nB": x}, data: {"a\\u202eb": -1}}',
        r'{"name": "a", "command": "x", "env": {"A\nB": "x"}, "data": {"a\u202eb": -1}}',
    ],
    ids=["yaml", "json"],
)
def test_keys_of_mappings_stay_in_their_line_and_hide_nothing(text: str) -> None:
    named = {each.split(": ")[1] for each in problems(text)}
    assert named == {r"env.A\nB", r"data.a\u202eb"}


def test_a_key_given_twice_stays_in_its_line() -> None:
    twice = 'name: a\ncommand: x\nenv: {"A\\nB": 1, "A\\nB": 2}\n'
    assert problems(twice)[1:] == (r"job.yaml:3: env.A\nB: is given twice",)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"name: x\n\xff\xfe")
    (tmp_path / "sixteen").write_text("name: x", encoding="utf-16")
    cases = {
        "missing": "missing: no such file",
        ".": "is a folder, not a file",
        "binary": "binary:2: is not UTF-8 text; save it as UTF-8",
        "sixteen": "sixteen:1: is not UTF-8 text; save it as UTF-8",
    }
    for name, problem in cases.items():
        with pytest.raises(SpecError) as caught:
            read_document(tmp_path / name, JobSpec)
        assert caught.value.problems[0].endswith(problem)
    with pytest.raises(SpecError, match="is not the name of a file"):
        read_document("a\0b", JobSpec)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nimage: y\n", encoding="utf-8-sig")
    assert read_document(tmp_path / "job.yaml", JobSpec).name == "x"


def test_state_file_mistakes_name_the_node() -> None:
    assert problems(
        "nodes:\n"
        "- id: a\n"
        "  gpus: many\n"
        "- id: b\n"
        "  gpus:\n"
        "  - {index: 0, vram: bad}\n"
        "- id: c\n"
        "  gpus: 2\n"
        "  used: {5: x}\n"
        "- id: d\n"
        "  gpus: 2\n"
        "  used: {0: {jobb: x}}\n"
        "  expires_at: 2026-11-20T12:00:00\n"
        "- id: e\n"
        "  gpus: 2\n"
        "  used: {0: {milli: 500}}\n"
        "policy: {weights: {expiry: .nan}}\n",
        ClusterState,
    ) == (
        "job.yaml:3: nodes[0].gpus: must be a whole number or a list, got 'many'",
        "job.yaml:6: nodes[1].gpus[0].vram: expected a size such as 80GB, 512MB or 64GiB, "
        "not 'bad'",
        "job.yaml:9: nodes[2]: used: there is no GPU 5 among 2",
        "job.yaml:12: nodes[3].used.0.jobb: no such field; did you mean job?",
        "job.yaml:13: nodes[3].expires_at: a time needs its zone, for example "
        "2026-11-20T12:00:00Z",
        "job.yaml:16: nodes[4].used.0: milli needs vram: how much memory is in use",
        "job.yaml:17: policy.weights.expiry: must be a finite number, got nan",
    )
