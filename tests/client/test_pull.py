"""`longshore pull`, and what names the outputs of a job."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node.system import USERS_UMASK
from longshore.client.api import Longshore
from longshore.client.calls import known_job
from longshore.client.code_files import find_files
from longshore.client.pull import pull
from longshore.models.checkpoint import Manifest
from longshore.models.dag import DagSpec
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.output_pattern import OutputPatterns
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode

AT = datetime(2026, 11, 25, tzinfo=UTC)


@pytest.fixture
async def api(settings: Settings, longshore: Command) -> AsyncIterator[Longshore]:
    """A client beside the command line; starts nothing."""
    api = await Longshore.connect(settings)
    yield api
    await api.close()


def give_back(
    store: OutputStore, job_id: str, folder: Path, pattern: str, *, rank: int = 0, ranks: int = 1
) -> Manifest:
    """Store what of a folder matches, as of an attempt of a job."""
    draft = Manifest(
        job_id=job_id, attempt=1, rank=rank, ranks=ranks, number=1, prefix="", files=(), bytes=0,
        saved_at=AT, published_at=AT, node_id="node-a",
    )  # fmt: skip
    return store.keep(folder, OutputPatterns([pattern]), draft, threading.Event())


async def test_outputs_come_into_a_folder_of_the_job(
    longshore: Command,
    api: Longshore,
    settings: Settings,
    pool: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ("--pool", pool, "--name", "give", "--output", "*.txt", "--output", "out", "--hold")
    job_id = (await longshore("submit", "-q", *args, "--", "true")).out.strip()
    await known_job(api, job_id)
    none = await longshore("pull", job_id)
    assert none.code == 66
    assert "nothing of *.txt, out is stored: " in none.err
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.txt").write_text("one")
    (made / "b.log").write_text("two")
    store = OutputStore(settings.resolve_artifact_store())
    for rank in (0, 1):
        give_back(store, job_id, made, "*.txt", rank=rank, ranks=2)
    dry = await longshore("pull", job_id, "--dry-run")
    assert dry.out == f"{job_id}: 2 files, 6B of attempt 1: 2 files, 6B would be brought\n"
    assert not (tmp_path / job_id).exists()
    assert (await longshore("pull", job_id)).code == 0
    found = {str(p.relative_to(tmp_path / job_id)) for p in (tmp_path / job_id).rglob("*.*")}
    assert found == {".gitignore", ".longshoreignore", "a.txt", "rank-1/a.txt"}
    assert [file.path for file in find_files(tmp_path).files if job_id in file.path] == []
    again = await longshore("pull", job_id)
    assert again.out == f"{job_id}: 2 files, 6B of attempt 1: nothing differs\n"
    to = await longshore("pull", job_id, "--to", "there", "--json")
    assert json.loads(to.out)["fetched"] == ["a.txt", "rank-1/a.txt"]
    assert not (tmp_path / "there" / ".gitignore").exists()
    assert (await longshore("pull", job_id, "--attempt", "2")).code == 66


def test_no_later_job_brings_along_what_was_pulled(tmp_path: Path) -> None:
    """Not where ignore files of its own count, and not where the outputs have such a file."""
    made = tmp_path / "made"
    (made / "deep").mkdir(parents=True)
    for name in (".gitignore", ".longshoreignore", "deep/.gitignore", "a.txt"):
        (made / name).write_text("!*\n")
    store = OutputStore((tmp_path / "store").as_uri())
    kept = give_back(store, "job-a", made, "*")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").touch()
    for job in ("job-a", "job-b"):
        brought = pull(store, (kept,), code / job, ignored=True)
        assert brought.left_out == (".gitignore", ".longshoreignore")
        assert brought.fetched == ("a.txt", "deep/.gitignore")
        (code / "job-b" / ".longshoreignore").unlink(missing_ok=True)  # as of an earlier version
    assert pull(store, (kept,), code / "job-b", ignored=True).fetched == ()
    assert {file.path for file in find_files(code).files} == {"train.py"}
    (code / ".longshoreignore").touch()
    assert {file.path for file in find_files(code).files} == {".longshoreignore", "train.py"}


@pytest.mark.parametrize(("given", "brought"), [(0o6777, 0o755), (0o4700, 0o755), (0o622, 0o644)])
def test_no_program_of_a_job_runs_as_whoever_pulls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int, brought: int
) -> None:
    """And nobody else may write to what is brought."""
    monkeypatch.setenv(USERS_UMASK, "22")
    made = tmp_path / "made"
    made.mkdir()
    (made / "run").write_text("#!/bin/sh\n")
    (made / "run").chmod(given)
    store = OutputStore((tmp_path / "store").as_uri())
    kept = give_back(store, "job-a", made, "*")
    for fetched in (("run",), ()):
        assert pull(store, (kept,), tmp_path / "here").fetched == fetched
        assert stat.S_IMODE((tmp_path / "here/run").stat().st_mode) == brought


def test_no_settings_or_hooks_of_git_come_from_a_job(tmp_path: Path) -> None:
    """With them a job has whoever pulls run its programs, at their next command of Git."""
    made, here = tmp_path / "made", tmp_path / "here"
    of_git = (
        ".git. /a", ".git/hooks/pre-commit", ".git::$INDEX_ALLOCATION/a", ".g\u200cit/a",
        "deep/.GIT/config", "git~1/config",
    )  # fmt: skip
    for name in (*of_git, ".github/a", "x"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("theirs\n")
    (here / ".git" / "hooks").mkdir(parents=True)
    (here / ".git" / "hooks" / "pre-commit").write_text("mine\n")
    kept = give_back(OutputStore((tmp_path / "store").as_uri()), "job-a", made, "*")
    found = pull(OutputStore((tmp_path / "store").as_uri()), (kept,), here)
    assert found.fetched == (".github/a", "x")
    assert sorted(found.left_out) == sorted(of_git)
    assert (here / ".git" / "hooks" / "pre-commit").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("own", "of_user", "brought"),
    [("077", None, 0o700), ("002", None, 0o775), ("077", "2", 0o775)],
)
def test_what_is_pulled_is_for_whom_new_files_of_the_user_are(
    tmp_path: Path, own: str, of_user: str | None, brought: int
) -> None:
    """By the umask of a program that uses the library, and of a private one by its user's."""
    made = tmp_path / "made"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "run").touch(0o700)
    store = OutputStore((tmp_path / "store").as_uri())
    kept = give_back(store, "job-a", made, "*")
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o2755)
    code = (
        "import os, sys; os.umask(int(sys.argv[1], 8))\n"
        "from pathlib import Path\n"
        "from longshore.activities.artifacts.outputs import OutputStore\n"
        "from longshore.client.pull import pull\n"
        "from longshore.models.checkpoint import Manifest\n"
        "manifest = Manifest.model_validate_json(sys.argv[3])\n"
        "pull(OutputStore(sys.argv[2]), (manifest,), Path(sys.argv[4]), ignored=True)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != USERS_UMASK}
    env |= {USERS_UMASK: of_user} if of_user else {}
    args = (own, (tmp_path / "store").as_uri(), kept.model_dump_json(), str(above / "a" / "b"))
    subprocess.run([sys.executable, "-c", code, *args], env=env, check=True)
    modes = {
        str(each.relative_to(above)): stat.S_IMODE(each.stat().st_mode)
        for each in above.rglob("*")
    }
    folder = stat.S_ISGID | brought
    marks = {f"a/b/{name}": brought & 0o666 for name in (".gitignore", ".longshoreignore")}
    assert modes == {
        "a": folder, "a/b": folder, "a/b/deep": folder, "a/b/deep/run": brought, **marks,
    }  # fmt: skip


async def test_a_job_that_made_none_of_its_outputs_is_told_so(
    longshore: Command, api: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> None:
    args = ("--pool", pool, "--output", "*.txt", "--hold", "--", "true")
    job_id = (await longshore("submit", "-q", *args)).out.strip()
    await known_job(api, job_id)
    store = OutputStore(settings.resolve_artifact_store())
    give_back(store, job_id, tmp_path, "*.txt")
    found = await longshore("pull", job_id, "--to", str(tmp_path / "here"))
    assert found.code == 0
    assert found.out.endswith("attempt 1: the job made no file that `outputs` names\n")


async def test_a_job_that_ended_and_gave_nothing_back_is_told_where_it_says_why(
    longshore: Command, api: Longshore, pool: str, node: ScriptedNode
) -> None:
    args = ("--pool", pool, "--output", "out", "--", "true")
    job_id = (await longshore("submit", "-q", *args)).out.strip()
    await node.started(job_id)
    runs = await longshore("pull", job_id)
    assert runs.err.endswith("nothing of out is stored: that comes when an attempt has ended\n")
    await node.end(job_id)
    await api.wait(job_id)
    over = await longshore("pull", job_id)
    assert over.err.endswith(
        "attempt 1 has ended, and nothing of out is stored: "
        f"`longshore logs --stderr {job_id} --attempt 1` says why\n"
    )
    second = await longshore("pull", job_id, "--attempt", "2")
    assert second.err.endswith("in attempt 2: its last attempt is 1\n")


async def test_a_job_without_outputs_is_told_what_lacks(
    longshore: Command, api: Longshore, pool: str
) -> None:
    job_id = (await longshore("submit", "-q", "--pool", pool, "--hold", "--", "true")).out.strip()
    await known_job(api, job_id)
    found = await longshore("pull", job_id)
    assert "its job file names no `outputs`" in found.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("outputs: [../other]", "outputs[0]: '../other' leads out of the job's folder"),
        ("outputs: [/etc/passwd]", "outputs[0]: '/etc/passwd' leads out of the job's folder"),
        ("outputs: ['!~/x']", "outputs[0]: '!~/x' leads out of the job's folder"),
        ("outputs: ['']", "outputs[0]: "),
        ("outputs: [a]\narray: 0-3", "array: elements cannot have outputs"),
    ],
)
def test_outputs_outside_the_folder_are_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_document(f"name: a\ncommand: b\n{text}\n", "job.yaml", JobSpec)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "a\\",
        "[a",
        "./results",
        ".",
        "results/.",
        "results//",
        "#c",
        "  ",
        "!",
        "[[:digits:]]",
    ],
)
def test_a_name_that_matches_no_file_is_refused_at_the_submit_alone(pattern: str) -> None:
    job = {"name": "a", "command": "b", "outputs": ["results/", pattern]}
    dag = {"name": "d", "jobs": {"a": job}}
    for model, document in ((JobSpec, job), (DagSpec, dag)):
        with pytest.raises(SpecError, match=r"outputs\[1\]: .* matches no file: write it as in a"):
            load_document(json.dumps(document), "job.yaml", model)
    # An earlier version took it.
    assert JobSpec.as_known(job).outputs == ("results/", pattern)
    assert DagSpec.model_validate(dag).jobs["a"].spec.outputs == ("results/", pattern)
