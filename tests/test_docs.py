"""The documents tell the truth where a machine can see it: links, commands, options, variables."""

import inspect
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.core import TyperGroup

import longshore
from longshore.activities.node import launch
from longshore.client.cli import command_line
from longshore.client.dag_file import read_dag
from longshore.console import problems
from longshore.models.document import read_document
from longshore.models.job import JobSpec
from longshore.models.orderbook_response import OrderbookResponse
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.models.service import ServiceFile
from longshore.workers import schedules
from longshore.workers.schedules import Recurring
from longshore.workers.versioning import WORKFLOWS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page
    for folder in (".", "docs", "deploy", "examples", "benchmarks")
    for page in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOR_COMMANDS = {
    "database", "known_dag", "let_go", "refuse_newer", "replica_to_explain", "reset_after_end",
    "say_away", "say_back", "with_live",
}  # fmt: skip
"""Of the client, for the command line and the console, or an earlier name: not on the page."""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings(page: Path):
    broken = [link for link in links_of(page) if not resolves(page, link)]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_options_exist(page: Path):
    group = command_line()
    wrong = [line for line in commands_of(page) if (why := mistake_in(line, group)) and why]
    assert wrong == []


def test_every_command_is_named_on_a_page():
    pages = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    named = {" ".join(path) for path in commands_in(command_line())}
    assert len(named) > 80
    assert [
        each for each in sorted(named) if not re.search(rf"longshore {each}(?![\w-])", pages)
    ] == []


def test_options_that_stand_in_no_example_are_named_on_their_page():
    for page, options in (
        ("docs/job-file.md", ["--key"]), ("docs/operations.md", ["--purge"]),
        ("deploy/README.md", ["--token-file"]),
    ):  # fmt: skip
        text = (ROOT / page).read_text()
        assert [option for option in options if option not in text] == []


def test_the_job_page_names_every_variable_that_a_process_gets():
    given = set(re.findall(r'"(LONGSHORE_[A-Z_]+)"', inspect.getsource(launch)))
    page = (ROOT / "docs" / "job-file.md").read_text()
    assert len(given) > 10
    assert {name for name in given if f"`{name}`" not in page} == set()


def test_the_temporal_page_names_every_workflow_type_and_attribute():
    page = (ROOT / "docs" / "temporal-ui.md").read_text()
    types = [kind.__name__ for kind in WORKFLOWS]
    assert {name for name in [*types, *SEARCH_ATTRIBUTES] if f"`{name}`" not in page} == set()


def test_the_deployment_page_names_every_schedule():
    page = (ROOT / "deploy" / "README.md").read_text()
    made = [each.schedule for each in vars(schedules).values() if isinstance(each, Recurring)]
    assert len(made) >= 3
    assert [name for name in made if f"`{name}`" not in page] == []


def test_the_deployment_page_counts_the_search_attributes():
    page = (ROOT / "deploy" / "README.md").read_text()
    kinds = Counter(SEARCH_ATTRIBUTES.values())
    assert f"these take {kinds['Keyword']}, {kinds['KeywordList']} and {kinds['Int']})" in page


def test_every_decision_that_is_named_exists():
    """Anywhere in the tree: pages, code, packaging, workflows of the forge."""
    there = {file.name for file in (ROOT / "docs" / "decisions").glob("*.md")}
    listed = git("grep", "-hoIE", r"decisions/[0-9]{4}-[a-z0-9-]+(\.md)?")
    named = {line.removeprefix("decisions/") for line in listed.splitlines()}
    assert len(named) > 10
    assert {name for name in named if f"{name.removesuffix('.md')}.md" not in there} == set()


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(file.name for file in folder.glob("0*.md"))


def test_files_that_the_development_page_names_exist():
    page = (ROOT / "docs" / "development.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|yaml))`", page))
    assert len(named) > 50
    there = [name for name in named if (ROOT / name).exists() or (ROOT / "tests" / name).exists()]
    assert named - set(there) == set()


def test_commits_that_are_shown_as_examples_exist():
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("the history is cut off")
    page = (ROOT / "docs" / "development.md").read_text()
    shown = re.findall(r"`([A-Z][a-z]+(?: [^` ]+){3,})`", page)
    assert len(shown) >= 7
    subjects = set(git("log", "--format=%s").splitlines())
    assert [subject for subject in shown if subject not in subjects] == []


def test_the_page_of_the_api_has_what_a_program_imports():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^::: longshore\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(longshore.__all__)


def test_the_page_of_the_api_has_each_method_of_the_client_once():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^::: longshore\.Longshore\.(\w+)$", page, re.MULTILINE)
    public = {name for name in dir(longshore.Longshore) if not name.startswith("_")}
    assert sorted(shown) == sorted(public - FOR_COMMANDS)


def test_what_a_method_of_the_client_takes_can_be_imported():
    taken = {
        part.__name__
        for name in dir(longshore.Longshore)
        if not name.startswith("_") and name not in FOR_COMMANDS
        for parameter in inspect.signature(getattr(longshore.Longshore, name)).parameters.values()
        for part in parts_of(parameter.annotation)
        if getattr(part, "__module__", "").startswith("longshore.models.")
    }
    assert len(taken) > 10
    # Of labels: `models.labels.parse_selector` makes them of text.
    assert taken - set(longshore.__all__) == {"Constraint"}


def test_the_order_book_of_the_console_page_has_the_fields_of_an_answer():
    text = (ROOT / "docs" / "console.md").read_text()
    example = re.search(r"```json\n(\{\n.*?)```", text, re.DOTALL)
    assert example
    OrderbookResponse.model_validate_json(example[1])


def test_the_console_page_has_each_status_of_an_error():
    page = (ROOT / "docs" / "console.md").read_text()
    told = {int(status) for status in re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE)}
    assert {status for _, status, _ in vars(problems)["_STATUSES"]} - told == set()


def test_every_test_that_is_named_exists():
    """By its file, or below `tests/`; on the page of security also by its name, or its begin."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    ends = {"/".join(file.split("/")[at:]) for file in files for at in range(file.count("/") + 1)}
    for page in PAGES:
        named = set(re.findall(r"[\w/]*\btest_\w+\.py\b", page.read_text()))
        assert named <= ends, page
    text = (ROOT / "docs" / "security.md").read_text()
    assert len(re.findall(r"`[\w/]*test_\w+\.py`", text)) > 100
    tests = re.findall(r"def test_(\w+)", "".join((ROOT / file).read_text() for file in files))
    begins: list[str] = re.findall(r"`([a-z]+(?:_[a-z]+){3,})(?:\.\.\.)?`", text)
    assert len(begins) > 20
    assert [each for each in begins if not any(test.startswith(each) for test in tests)] == []


def test_the_licence_lies_beside_what_it_is_of():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    (file,) = project["license-files"]
    assert "Apache License" in (ROOT / file).read_text()


def test_every_benchmark_that_is_named_can_be_started():
    named = {
        name for page in PAGES for name in re.findall(r"-m (benchmarks\.\w+)", page.read_text())
    }
    assert len(named) > 5
    assert {
        name for name in named if not (ROOT / f"{name.replace('.', '/')}.py").exists()
    } == set()


def test_every_job_file_of_the_examples_can_be_read():
    files = [
        file
        for file in (ROOT / "examples").glob("*.yaml")
        if not file.name.startswith(("state", "buying", "pipeline", "serve"))
    ]  # fmt: skip
    assert len(files) >= 7
    for file in files:
        read_document(file, JobSpec)
    assert read_dag(str(ROOT / "examples" / "pipeline.yaml"), most=1000).jobs
    assert read_document(ROOT / "examples" / "serve.yaml", ServiceFile).services


def test_mistakes_in_commands_are_found():
    group = command_line()
    assert mistake_in("longshore submti x.yaml", group)
    assert mistake_in("longshore submit --gpu 2", group)
    assert mistake_in("longshore pool sett default", group)
    assert not mistake_in("longshore submit --gpus 2 -- sh -c 'run --gpu'", group)


def git(*arguments: str) -> str:
    """Return what a command of git writes."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def commands_in(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the commands that help shows, without those that hold others."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands_in(command, (*path, name))
        elif not command.hidden:
            yield (*path, name)


def parts_of(annotation: Any) -> list[Any]:
    return [annotation, *chain.from_iterable(parts_of(part) for part in get_args(annotation))]


def links_of(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not link.startswith(("http://", "https://", "mailto:"))]


def resolves(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not heading:
        return target.exists()
    return heading in {slug(line) for line in target.read_text().splitlines() if line[:1] == "#"}


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    words = heading.lstrip("#").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def commands_of(page: Path) -> list[str]:
    """Return what follows `$ ` in blocks or stands in backticks, and begins with longshore."""
    text = page.read_text()
    in_blocks = re.findall(r"^\$ (longshore .*)$", text, re.MULTILINE)
    in_line = re.findall(r"`(longshore [^`]*)`", text)
    return [" ".join(line.split()) for line in in_blocks + in_line]


def mistake_in(line: str, group: TyperGroup) -> str:
    """Return what the command line does not know of a command line; empty when it knows all."""
    words = re.split(r" -- | \| |  +#| # | && ", line)[0].split()[1:]
    here: Any = group
    while words and isinstance(here, TyperGroup):
        name = words.pop(0)
        if name.startswith("-"):
            return "" if name in known_options(here) else f"{line}: no option {name}"
        if name not in here.commands:
            return f"{line}: no command {name}"
        here = here.commands[name]
    known = known_options(here)
    unknown = [w for w in words if w.startswith("-") and w.split("=")[0].rstrip(",.") not in known]
    return f"{line}: no option {unknown[0]}" if unknown else ""


def known_options(command: Any) -> set[str]:
    known = {"--help", "-h", "-", "--"}
    for param in command.params:
        known |= {*param.opts, *param.secondary_opts}
    return known
