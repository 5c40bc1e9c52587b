"""The command line without any server: help, errors in files and flags, schemas, exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from longshore.client.cli import command_line, run
from longshore.client.file_commands import Document
from longshore.models.document import load_document
from longshore.models.job import JobSpec
from longshore.models.packing import ScoreWeights
from longshore.models.placement import PackingRule
from longshore.models.pool import PoolSpec
from longshore.models.schedule import LONGEST_LINE, MOST_LINES
from longshore.models.statefile import ClusterState
from tests.client.conftest import Ran

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLI = Callable[..., Ran]
whole = cache(command_line)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", sorted(commands(whole())), ids=" ".join)
def test_every_command_has_help(cli: CLI, path: tuple[str, ...]) -> None:
    ran = cli(*path, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: longshore {' '.join(path)}" in ran.out
    for rich_row in ("<bool>  Print", "Traceback"):
        assert rich_row not in ran.out


def test_the_overview_groups_its_commands(cli: CLI) -> None:
    ran = cli("--help")
    positions = [
        ran.out.index(f" {panel} ─") for panel in ("Jobs", "Nodes and pools", "Files", "Setup")
    ]
    assert positions == sorted(positions)
    for command in ("submit", "watch", "why", "drain", "pool", "place", "schema", "up", "worker"):
        assert f"│ {command} " in ran.out


def test_help_says_what_is_named_by_id_alone(cli: CLI) -> None:
    assert "newest one; engines by id." in " ".join(cli("--help").out.split())
    evict = " ".join(cli("evict", "--help").out.replace("│", " ").split())
    assert "The engine, by its job's id: `longshore slots` lists them." in evict


def test_a_command_that_was_renamed_has_its_old_name_hidden(cli: CLI) -> None:
    overview = cli("--help").out
    assert "│ terminate " in overview
    assert "let-go" not in overview
    old, new = cli("let-go", "--help"), cli("terminate", "--help")
    assert (old.code, new.code) == (0, 0)
    assert old.out.replace("let-go", "terminate").split() == new.out.split()


@pytest.mark.parametrize("path", [(), *sorted(commands(whole()))], ids=" ".join)
def test_help_ends_no_clause_with_without(path: tuple[str, ...]) -> None:
    found = [text for text in help_of(path) if re.search(r"\bwithout[.;)]|\bsuch as\b", text)]
    assert found == []


def help_of(path: tuple[str, ...]) -> list[str]:
    command: Any = whole()
    for name in path:
        command = command.commands[name]
    return [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]


@pytest.mark.parametrize("path", sorted(commands(whole())), ids=" ".join)
def test_no_flag_has_a_negated_twin(path: tuple[str, ...]) -> None:
    command: Any = whole()
    for name in path:
        command = command.commands[name]
    assert [each.opts for each in command.params if each.secondary_opts] == []


@pytest.mark.parametrize("path", sorted(commands(whole())), ids=" ".join)
def test_help_gives_times_that_have_passed_as_they_are_taken(path: tuple[str, ...]) -> None:
    """``10m ago`` is refused; ``10m`` is taken."""
    assert [text for text in help_of(path) if re.search(r"\d[smhd] ago", text)] == []


def test_help_fills_the_lines_of_all_paragraphs(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of a next line would have gone onto the line before it, where it has room."""
    monkeypatch.setenv("COLUMNS", "80")
    paths = ("drain", "tenant set", "dag retry", "deployment set-current")
    for path in paths:
        text = cli(*path.split(), "--help").out.partition("╭")[0].partition("Usage:")[2]
        for each in re.split(r"\n *\n", text):
            lines = [line.strip() for line in each.strip().splitlines()]
            for line, after in pairwise(lines):
                assert len(f"{line} {after.split()[0]}") > 78, (path, line)


def test_help_imports_no_server_library() -> None:
    slow = ("aiohttp", "temporalio", "sqlalchemy", "psycopg", "longshore.client.api")
    code = (
        "import sys\nfrom longshore.client.cli import command_line\ncommand_line()\n"
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_version(cli: CLI) -> None:
    ran = cli("--version")
    assert ran.code == 0
    assert ran.out.startswith("longshore 0.")


BAD_FILES = {
    "unknown field": (
        "name: a\ncommand: b\ngpu: 1\n",
        ":3: gpu: no such field; did you mean gpus?",
    ),
    "wrong type": (
        "name: a\ncommand: b\ngpus: many\n",
        ":3: gpus: must be a whole number, got 'many'",
    ),
    "out of range": (
        "name: a\ncommand: b\npriority: 11\n",
        ":3: priority: must be at most 10, got 11",
    ),
    "nothing to run": ("name: a\n", "give a command to run, an image, or both"),
    "not YAML": ("name: [a\n", "is not valid YAML"),
    "a list": ("- a\n", "must hold one mapping"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("case", BAD_FILES, ids=str)
def test_a_mistake_in_a_job_file_names_its_line(cli: CLI, tmp_path: Path, case: str) -> None:
    text, problem = BAD_FILES[case]
    (tmp_path / "job.yaml").write_text(text)
    ran = cli("submit", str(tmp_path / "job.yaml"))
    assert (ran.code, ran.out) == (65, "")
    assert ran.err.startswith(f"error: {tmp_path / 'job.yaml'}")
    assert problem in ran.err


@pytest.mark.parametrize(
    "value",
    [
        "expected_duration=99999999h", "expected_duration=9999999999d",
        "expected_duration=99999999999:59:59", f"expected_duration={'9' * 100}",
        f"expected_duration={'9' * 300}", f"ram={'9' * 400}", "ram=inf", "ram=.inf",
        "storage_bandwidth=1e300", "power_per_gpu=1e300",
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_a_number_that_is_too_large_is_refused_with_its_field(cli: CLI, value: str) -> None:
    ran = cli("submit", "--set", value, "--", "true")
    assert (ran.code, ran.out) == (65, "")
    assert ran.err.startswith(f"error: --set {value.partition('=')[0]}=")
    assert "fault in Longshore" not in ran.err
    assert len(ran.err) < 500


def test_every_mistake_has_a_line_of_its_own(cli: CLI, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\ncommand: b\ngpus: 0\nram: lots\n")
    ran = cli("submit", str(tmp_path / "job.yaml"), "--set", "cpus=-1")
    lines = ran.err.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True] * 3
    assert lines[0] == "error: --set cpus=-1: cpus: must be at least 0, got -1"


def test_a_missing_file(cli: CLI) -> None:
    assert cli("submit", "no-such.yaml") == Ran(65, "", "error: no-such.yaml: no such file\n")


def test_a_flag_is_named_for_its_own_mistake(cli: CLI) -> None:
    ran = cli("submit", "--gpus", "none", "--set", "checkpoint={folder: 3}", "--", "true")
    assert ran.code == 65
    assert ran.err.splitlines() == [
        "error: --set checkpoint={folder: 3}: checkpoint.folder: must be text, got 3",
        "error: --gpus none: gpus: must be a whole number, got 'none'",
    ]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["submit"], "give a job file"),
        (["submit", "--set", "gpus", "--", "true"], "give a field and a value"),
        (["submit", "--json", "--follow", "--", "true"], "leave out --json"),
        (["pool", "set", "p"], "say what to change"),
        (["pool", "set", "p", "--weights", "expiry"], "NAME=NUMBER"),
        (["nosuch"], "No such command"),
        (["jobs", "--state", "LOST"], "is not one of"),
        (["jobs", "--limit", "9" * 20], "must be at most 1000000"),
        (["elements", "a", "--limit", "9" * 20], "must be at most 1000000"),
        (["dag", "list", "--limit", "9" * 20], "must be at most 1000000"),
        (["queue", "--limit", "9" * 20], "must be at most 1000000"),
        (["resize", "j", "--gpus", "0"], "'--gpus': must be at least 1, got '0'"),
        (["scale", "s", "-1"], "'REPLICAS': must be at least 0, got '-1'"),
        (["resize", "j", "--gpus", "x"], "'--gpus': must be a whole number, got 'x'"),
    ],
)
def test_wrong_usage(cli: CLI, args: list[str], problem: str) -> None:
    ran = cli(*args)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err


def test_without_a_stack_it_says_how_to_start_one(
    cli: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_STATE_DIR", str(tmp_path))
    for args in (["jobs"], ["submit", "--", "true"], ["ui"], ["watch"]):
        ran = cli(*args)
        assert (ran.code, ran.out) == (69, "")
        assert ran.err.startswith(f"error: no local stack in {tmp_path}")
        assert "`longshore up`" in ran.err


def test_a_server_that_is_not_there(
    cli: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    ran = cli("nodes")
    assert ran.code == 69
    assert ran.err == (
        "error: Temporal at 127.0.0.1:1 does not answer (Connection refused). "
        "Check TEMPORAL_ADDRESS and the server behind it.\n"
    )


def test_a_setting_that_is_wrong(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSHORE_TEMPORAL_PORT", "x")
    ran = cli("nodes")
    assert ran.code == 65
    assert ran.err.startswith("error: LONGSHORE_TEMPORAL_PORT")
    assert "must be a whole number" in ran.err


def test_the_schema_of_a_job_knows_every_field(cli: CLI) -> None:
    schema = json.loads(cli("schema", "job").out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "Longshore job"
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["gpus"]["minimum"] == 1
    assert "Memory needed" in schema["properties"]["vram_per_gpu"]["description"]


def test_the_defaults_in_the_schema_are_taken_by_the_loader(cli: CLI) -> None:
    schema = json.loads(cli("schema", "job").out)
    defaults = {
        name: field["default"]
        for name, field in schema["properties"].items()
        if field.get("default") is not None
    }
    document = json.dumps({**defaults, "name": "a", "command": "b"})
    assert load_document(document, "defaults", JobSpec) == JobSpec(name="a", command="b")


def test_the_schema_has_no_words_that_json_schema_does_not_know(cli: CLI) -> None:
    known = {
        "$schema", "$defs", "$ref", "additionalProperties", "anyOf", "const", "default",
        "description", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items",
        "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
        "minProperties", "minimum", "pattern", "patternProperties", "properties", "propertyNames",
        "required", "title", "type",
    }  # fmt: skip
    for document in Document:
        assert _words(json.loads(cli("schema", document).out)) <= known, document


def test_a_tenant_a_pool_and_the_times_of_a_schedule_have_schemas(cli: CLI) -> None:
    assert set(json.loads(cli("schema", "pool").out)["properties"]) == set(PoolSpec.model_fields)
    tenant = json.loads(cli("schema", "tenant").out)
    assert tenant["$defs"]["Quotas"]["properties"]["gpu_hours"]["anyOf"][0]["maximum"] > 0
    times = json.loads(cli("schema", "schedule").out)["properties"]
    assert times["cron"]["maxItems"] == MOST_LINES
    assert times["cron"]["items"]["maxLength"] == LONGEST_LINE


def test_the_schema_of_budgets_is_of_one_and_of_a_list(cli: CLI) -> None:
    schema = json.loads(cli("schema", "budgets").out)
    one, many = (schema["$defs"][form["$ref"].rpartition("/")[2]] for form in schema["anyOf"])
    assert {"tenant", "envelopes", "caps", "money"} <= set(one["properties"])
    assert set(many["properties"]) == {"budgets"}
    assert many["properties"]["budgets"]["maxItems"] > 1


def test_the_schema_of_a_state(cli: CLI) -> None:
    schema = json.loads(cli("schema", "state").out)
    assert set(schema["properties"]) == set(ClusterState.model_fields)


def test_help_names_every_weight_of_the_score_of_a_node(
    cli: CLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (weights,) = [line for line in cli("pool", "set", "--help").out.splitlines()
                  if " --weights " in line]  # fmt: skip
    assert [name for name in ScoreWeights.model_fields if name not in weights] == []


def test_place_as_json(cli: CLI) -> None:
    ran = cli(
        "place",
        "--state",
        str(EXAMPLES / "state.yaml"),
        "--job",
        str(EXAMPLES / "job.yaml"),
        "--json",
    )
    placed = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert placed["decision"]["node_id"] == "half-full"
    assert placed["now"] == "2026-11-20T12:00:00+00:00"


def test_place_puts_every_rule_beside_the_others(cli: CLI) -> None:
    files = ("--state", str(EXAMPLES / "state.yaml"), "--job", str(EXAMPLES / "job.yaml"))
    shown = cli("place", *files, "--rules", "all").out
    rows = shown[shown.index("By rule") :].splitlines()[2:]
    assert [row.split()[0] for row in rows] == list(PackingRule)
    assert "seed-score (used)" in shown
    some = json.loads(cli("place", *files, "--rules", "tight, fgd", "--json").out)
    assert list(some["by_rule"]) == ["tight", "fgd"]
    assert all(each["node_id"] for each in some["by_rule"].values())
    wrong = cli("place", *files, "--rules", "best")
    assert wrong.code == 2
    assert "--rules takes all, or some of" in wrong.err


def test_the_program_leaves_with_the_exit_code_of_its_command() -> None:
    ran = _program("submit", "no-such.yaml")
    assert (ran.returncode, ran.stdout) == (65, "")


@pytest.mark.parametrize(
    "args",
    [
        ("x\u202ey",),
        ("--x\u202ey",),
        ("jobs", "x\u202ey"),
        ("jobs", "--x\u202ey"),
        ("market", "caps", "--x\u202ey"),
    ],
)
def test_wrong_usage_is_told_with_hidden_characters_written_out(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    assert run(args) == 2
    said = capsys.readouterr().err
    assert "\u202e" not in said
    assert "x\\u202ey" in said


@pytest.mark.parametrize(
    "args",
    [
        ("cordon", "local-2", "--reason", b"bad\xff"),
        ("job", b"bad\xff"),
        ("submit", "--", "echo", b"bad\xff"),
        (b"bad\xff",),
    ],
)
def test_an_argument_that_is_no_utf_8_is_wrong_usage(args: tuple[str | bytes, ...]) -> None:
    ran = _program(*args)
    said = "error: the argument 'bad\\xff' is not valid UTF-8\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)


def test_the_reader_of_a_pipe_may_leave_early() -> None:
    command = f"{shlex.quote(sys.executable)} -m longshore.client.cli schema job | head -1"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert (ran.stdout, ran.stderr) == ("{\n", "")


def _program(*args: str | bytes) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longshore.client.cli", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=180, env=dict(os.environ),
    )  # fmt: skip


_NAMED = ("properties", "patternProperties", "$defs")


def _words(schema: Any, *, names: bool = False) -> set[str]:
    """Return the keywords of a schema; the keys of `properties` and the like are names."""
    if isinstance(schema, list):
        return set().union(*(_words(inner) for inner in schema))
    if not isinstance(schema, dict):
        return set()
    found = set() if names else set(schema)
    for key, inner in schema.items():
        if key != "default" or names:
            found |= _words(inner, names=not names and key in _NAMED)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("market", "history", "--since", "LONG"),
        ("market", "history", "--instance-type", "LONG"),
        ("submit", "job.yaml", "--set", "LONG"),
        ("submit", "--set", "gpus=LONG", "--", "true"),
        ("pool", "set", "main", "--weights", "LONG"),
        ("console", "--address", "LONG"),
    ],
)
def test_a_refused_value_is_not_repeated_in_full_length(cli: CLI, arguments: tuple[str, ...]):
    ran = cli(*(each.replace("LONG", "x" * 5000) for each in arguments))
    assert ran.code != 0
    assert "characters)" in ran.err
    assert ran.err.count("x") < 300
