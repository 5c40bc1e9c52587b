"""Code at a submit, with the real stack: which folder goes, what is said, and who keeps it."""

import re
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore.activities.artifacts.rows import sweep_artifacts
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.dag_views import DagViews
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.client.calls import known_job
from longshore.client.current_python import REQUIREMENTS
from longshore.models.code import Code
from longshore.models.environment import JobEnvironment
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from longshore.models.snapshot import Snapshot
from tests.client.conftest import Command
from tests.client.test_code_git import commit


@pytest.fixture
async def api(settings: Settings, longshore: Command) -> AsyncIterator[Longshore]:
    """A client beside the command line; starts nothing."""
    api = await Longshore.connect(settings)
    yield api
    await api.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, that the command line is in."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text(f"print({uuid.uuid4().hex[:5]!r})\n")
    (folder / "src" / "model.py").write_text(f"#{uuid.uuid4().hex[:7]}\n")
    monkeypatch.chdir(folder)
    return folder


async def spec_of(api: Longshore, job_id: str) -> JobSpec:
    """Return what is on record of a job, once it is."""
    return await api.spec((await known_job(api, job_id)).id)


def snapshot_of(settings: Settings, spec: JobSpec) -> Snapshot:
    assert spec.code is not None
    store = ArtifactStore(settings.resolve_artifact_store())
    return store.snapshot(spec.tenant, spec.code.snapshot or "")


def stored(settings: Settings) -> list[Path]:
    """Return all that the artifact store has."""
    return sorted(Path(settings.resolve_artifact_store().removeprefix("file://")).rglob("*"))


def paths(settings: Settings, spec: JobSpec) -> list[str]:
    return [file.path for file in snapshot_of(settings, spec).files]


async def test_a_folder_comes_along_and_a_second_time_nothing_is_sent(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    args = ("submit", "--pool", pool, "--upload", ".", "--", "python", "train.py")
    first = await longshore(*args)
    assert first.code == 0, first.err
    assert "Code: 2 files, 24B: 2 files, 24B sent" in first.err
    spec = await spec_of(api, first.out.strip())
    assert paths(settings, spec) == ["src/model.py", "train.py"]
    assert spec.code is not None
    assert (spec.code.folder, spec.code.files, spec.code.bytes) == (None, 2, 24)
    second = await longshore(*args)
    assert "Code: 2 files, 24B: nothing sent, all of it is stored" in second.err
    again = await spec_of(api, second.out.strip())
    assert again.code == spec.code


async def test_the_packages_of_the_current_python_come_along(
    longshore: Command,
    api: Longshore,
    settings: Settings,
    pool: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of another one, where somebody is in it
    given = ("submit", "--pool", pool, "--environment", "current")
    refused = await longshore(*given, "--", "python", "train.py")
    assert refused.code == 65
    assert "`current` comes along with the code of the job: give `code` too" in refused.err
    ran = await longshore(*given, "--upload", ".", "--", "python", "train.py")
    assert ran.code == 0, ran.err
    assert re.search(rf"Environment: \d+ packages of {re.escape(sys.prefix)} \(Python", ran.err)
    spec = await spec_of(api, ran.out.strip())
    python = "{}.{}".format(*sys.version_info)
    assert spec.environment is not None
    assert spec.environment.as_asked == JobEnvironment(requirements=REQUIREMENTS, python=python)
    assert paths(settings, spec) == [REQUIREMENTS, "src/model.py", "train.py"]


@pytest.mark.parametrize(
    ("environment", "file", "why"),
    [
        ("req.txt", "numpy\n-e .\n", "req.txt names -e ., which is no package of an index"),
        ("req.txt", "-r gone.txt\n", "gone.txt of its code cannot be read: No such file"),
        ("env.yml", "channels: [defaults]\ndependencies: [numpy]\n", "defaults"),
        (
            "req.txt",
            "-r https://a.example/r\n",
            "names -r https://a.example/r: what is behind a URL",
        ),
        ("[numpy, ./lib]", "", "environment names ./lib, which is no package of an index"),
        ("[]", "", "names no package"),
    ],
)
async def test_an_environment_that_no_node_can_make_is_refused(
    longshore: Command, pool: str, folder: Path, environment: str, file: str, why: str
) -> None:
    if file:
        (folder / environment).write_text(file)
    given = ("submit", "--pool", pool, "--environment", environment)
    upload = ("--upload", ".") if file else ()
    refused = await longshore(*given, *upload, "--", "true")
    assert refused.code == 65
    assert why in " ".join(refused.err.split())


async def test_a_relative_workdir_of_a_job_file_comes_along_unless_it_is_not_to(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\npool: {pool}\ncommand: [ls]\nworkdir: project/src\n")
    ran = await longshore("submit", str(file))
    spec = await spec_of(api, ran.out.strip())
    assert spec.workdir is None
    assert paths(settings, spec) == ["model.py"]
    ran = await longshore("submit", str(file), "--no-upload")
    assert "Code:" not in ran.err
    spec = await spec_of(api, ran.out.strip())
    assert (spec.code, spec.workdir) == (None, str(folder / "src"))


async def test_a_workdir_lies_below_the_code_that_a_file_names(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    text_of = f"name: a\npool: {pool}\ncommand: [ls]\ncode: project\nworkdir: "
    file.write_text(text_of + "src\n")
    ran = await longshore("submit", str(file))
    spec = await spec_of(api, ran.out.strip())
    assert spec.workdir == "src"
    assert paths(settings, spec) == ["src/model.py", "train.py"]
    (folder / "link").symlink_to("src")
    (folder / "empty" / "in").mkdir(parents=True)
    for right in ("./src/", "link", "empty", "empty/in", "."):
        file.write_text(f"{text_of}{right}\n")
        ran = await longshore("submit", str(file))
        assert ran.code == 0, ran.err
    for wrong in ("other", "sr", "train.py", "link/other"):
        file.write_text(f"{text_of}{wrong}\n")
        ran = await longshore("submit", str(file))
        assert ran.code == 65
        assert f"workdir: there is no folder {wrong} in the code" in ran.err
    for wrong in ("/data", "../other"):
        file.write_text(f"{text_of}{wrong}\n")
        ran = await longshore("submit", str(file))
        assert ran.code == 65
        assert "workdir: " in ran.err


async def test_a_commit_of_a_repository_beside_the_file_is_resolved(
    longshore: Command, api: Longshore, settings: Settings, pool: str, tmp_path: Path
) -> None:
    found = commit(tmp_path / "repository", {"a.py": "1"})
    file = tmp_path / "job.yaml"
    code = "code: {git: repository, ref: REF}"
    file.write_text(f"name: a\npool: {pool}\ncommand: [ls]\n{code.replace('REF', 'main')}\n")
    ran = await longshore("submit", str(file))
    assert ran.code == 0, ran.err
    spec = await spec_of(api, ran.out.strip())
    assert spec.code is not None
    assert (spec.code.commit, spec.code.changed, spec.code.ref) == (found, False, "main")
    assert paths(settings, spec) == ["a.py"]
    file.write_text(f"name: b\npool: {pool}\ncommand: [ls]\n{code.replace('REF', 'v9')}\n")
    ran = await longshore("submit", str(file))
    assert ran.code == 65
    assert "has no branch, tag or commit 'v9'" in ran.err
    assert (await longshore("jobs", "--pool", pool, "--json")).out.count('"b-') == 0


async def test_jobs_of_a_dag_share_a_commit_whose_links_lead_to_their_folders(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    (repository / "src").mkdir(parents=True)
    (repository / "link").symlink_to("src")
    commit(repository, {"src/a.txt": "numpy\n"})
    file = tmp_path / "dag.yaml"
    job = "{workdir: link, environment: link/a.txt}"
    file.write_text(
        f"name: d\npool: {pool}\ndefaults: {{code: {{git: repository}}, command: [ls]}}\n"
        f"jobs:\n  a: {job}\n  b: {job}\n"
    )
    ran = await longshore("dag", "submit", str(file))
    assert ran.code == 0, ran.err
    file.write_text(file.read_text().replace(f"b: {job}", "b: {environment: b.txt}"))
    ran = await longshore("dag", "submit", str(file))
    assert "there is no b.txt" in ran.err


async def test_a_changed_checkout_is_recorded_with_its_commit_and_diff(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    found = commit(folder, {"train.py": "one\n"})
    (folder / "train.py").write_text("two\n")
    ran = await longshore("submit", "--pool", pool, "--upload", ".", "--", "ls")
    spec = await spec_of(api, ran.out.strip())
    assert spec.code is not None
    assert (spec.code.commit, spec.code.changed) == (found, True)
    snapshot = snapshot_of(settings, spec)
    (patch,) = [file for file in snapshot.files if file.path == ".longshore/diff.patch"]
    store = ArtifactStore(settings.resolve_artifact_store())
    (part,) = patch.parts
    diff = store.get(spec.tenant, part.object)[part.offset :][: part.size]
    assert b"-one\n+two\n" in diff


async def test_all_jobs_of_a_dag_share_what_is_sent_once(
    longshore: Command, settings: Settings, api: Longshore, pool: str, folder: Path
) -> None:
    (folder / "train.py").write_text("print('a job of a DAG')\n")
    (folder / "src" / "model.py").write_text("SIZE = 77\n")
    file = folder.parent / "dag.yaml"
    file.write_text(
        f"name: d\npool: {pool}\ndefaults: {{code: project}}\n"
        "jobs:\n  a: {command: [ls]}\n  b: {command: [ls], after: a}\n"
        "  c: {command: [ls], code: project/src}\n"
    )
    ran = await longshore("dag", "submit", str(file))
    assert ran.code == 0, ran.err
    assert re.findall("Code: (.*)", ran.err) == [
        "2 files, 34B: 2 files, 34B sent", "1 file, 10B: nothing sent, all of it is stored",
    ]  # fmt: skip
    shown = await api.known_dag(ran.out.strip())
    stored = await DagViews(api.database()).spec(shown.id)
    assert stored.jobs["a"].code == stored.jobs["b"].code != stored.jobs["c"].code
    assert paths(settings, stored.jobs["a"].spec) == ["src/model.py", "train.py"]


async def test_a_schedule_keeps_its_code_as_long_as_it_is_there(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    file = folder / "job.yaml"
    file.write_text(f"name: nightly\npool: {pool}\ncommand: [ls]\nworkdir: src\n")
    name = f"s-{pool}"
    ran = await longshore("schedule", "create", name, str(file), "--every", "6h")
    assert ran.code == 0, ran.err
    assert "Code: 1 file, 9B" in ran.err
    found = await api.schedule_spec(name)
    assert isinstance(found, JobSpec)
    await _lapse(api.database())
    store = ArtifactStore(settings.resolve_artifact_store())
    await sweep_artifacts(api.database(), store, timedelta(0))
    assert paths(settings, found) == ["model.py"]
    (folder / "src" / "model.py").write_text("SIZE = 8\n")
    ran = await longshore("schedule", "create", name, str(file), "--every", "6h", "--replace")
    assert ran.code == 0, ran.err
    assert await _held(api.database(), name) == 1
    assert (await longshore("schedule", "delete", name)).code == 0
    assert await _held(api.database(), name) == 0


async def test_the_python_api_stores_a_folder_itself(
    api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    given = JobSpec(name="p", pool=pool, command="true", code=Code(folder="src"))
    submission = await api.submit(given)
    spec = await spec_of(api, submission.job_id)
    assert paths(settings, spec) == ["model.py"]
    nowhere = given.model_copy(update={"code": Code(folder="nowhere")})
    with pytest.raises(SpecError, match="nowhere"):
        await api.submit(nowhere)


async def test_a_job_whose_code_has_gone_fails_and_says_so(
    longshore: Command, api: Longshore, pool: str
) -> None:
    code = Code(snapshot="0" * 64)
    submission = await api.submit(JobSpec(name="g", pool=pool, command="true", code=code))
    result = await api.wait(submission.job_id)
    assert result.state is JobState.FAILED
    assert "the snapshot 000000000000 is not stored for tenant default" in result.message


async def test_who_stores_code_where_no_node_looks_is_warned(
    longshore: Command,
    settings: Settings,
    pool: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = ("submit", "--pool", pool, "--upload", ".", "--", "true")
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", settings.resolve_database_url())
    monkeypatch.setenv("LONGSHORE_ARTIFACT_STORE", settings.resolve_artifact_store())
    assert "artifact_store" not in (await longshore(*args)).err
    monkeypatch.delenv("LONGSHORE_ARTIFACT_STORE")
    ran = await longshore(*args)
    assert ran.code == 0, ran.err
    assert "warning: the code lies in a folder of this machine, as `artifact_store` is" in ran.err


async def test_a_dry_run_looks_at_the_folder_and_sends_nothing(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    args = ("submit", "--dry-run", "--pool", pool, "--upload", ".", "--", "true")
    before = stored(settings)
    fine = await longshore(*args)
    assert fine.code == 0, fine.err
    assert "Code: 2 files, 24B would come along" in fine.err
    assert stored(settings) == before
    (folder / ".env").write_text("KEY=1")
    (folder / "out").symlink_to("/etc/passwd")
    refused = await longshore(*args)
    assert refused.code == 65
    assert ".env" in refused.err
    assert "out" in refused.err


async def test_run_brings_the_folder_along_with_all_flags_of_submit(
    longshore: Command, api: Longshore, settings: Settings, pool: str, folder: Path
) -> None:
    ran = await longshore(
        "run", "train.py", "--detach", "--gpus", "2", "--pool", pool, "--set", "priority=8",
        "--", "--epochs", "3",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    spec = await spec_of(api, ran.out.strip())
    assert spec.command == ("python3", "-u", "train.py", "--epochs", "3")
    assert (spec.name, spec.gpus, spec.priority) == ("train", 2, 8)
    assert paths(settings, spec) == ["src/model.py", "train.py"]


@pytest.mark.exhaustive
async def test_run_takes_the_packages_that_the_folder_names(
    longshore: Command, api: Longshore, pool: str, folder: Path
) -> None:
    (folder / "requirements.txt").write_text("numpy==2.1.0\n")

    async def environment(*flags: str) -> JobEnvironment | None:
        ran = await longshore("run", "train.py", "-d", "--pool", pool, *flags)
        assert ran.code == 0, ran.err
        assert ("Environment: " in ran.err) is not any(flag == "--environment" for flag in flags)
        found = (await spec_of(api, ran.out.strip())).environment
        return found and found.as_asked

    assert await environment() == JobEnvironment(requirements="requirements.txt")
    assert await environment("--environment", "none") is None
    (folder / "uv.lock").write_text("version = 1\n")
    (folder / "pyproject.toml").write_text("[project]\n")
    assert await environment() == JobEnvironment(lock="uv.lock")
    other = await environment("--environment", "requirements.txt")
    assert other == JobEnvironment(requirements="requirements.txt")
    for flags in (("--image", "x"), ("--set", "image=x"), ("--set", "environment=[numpy]")):
        ran = await longshore("run", "train.py", "-d", "--pool", pool, *flags)
        assert ran.code == 0, ran.err
        assert "Environment: " not in ran.err


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("nowhere.py", "there is no file 'nowhere.py' here"),
        ("../outside.py", "is not in this folder"),
        ("README", "says not what runs it"),
    ],
)
async def test_run_refuses_what_it_cannot_run(
    longshore: Command, folder: Path, script: str, says: str
) -> None:
    (folder.parent / "outside.py").write_text("")
    (folder / "README").write_text("text")
    ran = await longshore("run", script)
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.parametrize("words", [("--epochs", "3"), ("3",)])
async def test_what_a_script_gets_without_dashes_before_it_is_told_where_it_stands(
    longshore: Command, folder: Path, words: tuple[str, ...]
) -> None:
    ran = await longshore("run", "--gpus", "1", "train.py", *words)
    assert ran.code == 2
    assert (
        "What 'train.py' gets stands behind --: longshore run train.py -- --its-flag"
        in " ".join(ran.err.replace("│", "").split())
    )


async def test_what_a_job_needs_of_its_folder_has_to_come_along(
    longshore: Command, pool: str, folder: Path, settings: Settings
) -> None:
    args = ("run", "src/model.py", "-d", "-q", "--pool", pool)
    (folder / ".gitignore").write_text("src\nown.txt\n")
    (folder / "own.txt").write_text("numpy\n")
    (folder / "sub").symlink_to("src")
    before = stored(settings)
    for flag in ("--dry-run", "--quiet"):
        ran = await longshore(*args, flag, "--environment", "own.txt")
        assert ran.code == 65
        assert "script: src/model.py is ignored, and so left behind" in ran.err
        assert "environment: own.txt is ignored" in ran.err
        assert "--include /own.txt" in ran.err
    found = ("--include", "/own.txt", "--include", "src/")
    ran = await longshore(*args, *found, "--environment", "sub/uv.lock")
    assert "there is no sub/uv.lock in the code" in ran.err
    assert "there is no sub/pyproject.toml in the code" in ran.err
    assert "src/model.py" not in ran.err
    ran = await longshore(*args, *found, "--environment", "other.txt")
    assert "environment: there is no other.txt in the code that the job brings" in ran.err
    assert stored(settings) == before
    ran = await longshore(*args, *found, "--environment", "./own.txt")
    assert ran.code == 0, ran.err
    dag = folder.parent / "dag.yaml"
    dag.write_text(
        f"name: d\npool: {pool}\ndefaults: {{code: project, command: [ls]}}\n"
        "jobs:\n  a: {}\n  b: {environment: lacks.txt}\n"
    )
    ran = await longshore("dag", "submit", str(dag))
    assert ran.code == 65
    assert "there is no lacks.txt" in ran.err


async def test_run_starts_scripts_by_their_kind(
    longshore: Command, api: Longshore, pool: str, folder: Path
) -> None:
    (folder / "a.sh").write_text("true")
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\ntrue\n")
    tool.chmod(0o755)
    for script, command in (("a.sh", ("sh", "a.sh")), ("tool", ("./tool",))):
        ran = await longshore("run", script, "-d", "-q", "--pool", pool)
        assert ran.code == 0, ran.err
        assert (await spec_of(api, ran.out.strip())).command == command


@pytest.mark.parametrize("flags", [("--upload", ".", "--no-upload"), ("--no-upload",)])
async def test_code_and_no_upload_exclude_each_other(
    longshore: Command, folder: Path, flags: tuple[str, ...]
) -> None:
    (folder / "job.yaml").write_text("name: a\ncommand: [ls]\ncode: .\n")
    ran = await longshore("submit", "job.yaml", *flags)
    assert ran.code in (2, 65)
    assert "--no-upload" in ran.err


async def _lapse(database: Database) -> None:
    async with database.transaction() as connection:
        for table in ("artifact_objects", "snapshots"):
            await connection.execute(text(f"UPDATE {table} SET leased_until = now()"))


async def _held(database: Database, name: str) -> int:
    async with database.transaction() as connection:
        found = await connection.scalar(
            text("SELECT count(*) FROM snapshot_holders WHERE holder = :holder"),
            {"holder": f"schedule:{name}"},
        )
    return found or 0


async def test_a_folder_that_no_path_leads_to_is_refused(
    longshore: Command, pool: str, folder: Path
) -> None:
    (folder / "round").symlink_to("round")
    (folder / "job.yaml").write_text(f"name: a\npool: {pool}\ncommand: [ls]\nworkdir: round\n")
    upload = ("submit", "--pool", pool, "--upload")
    for given, why in (
        ((*upload, "round", "--", "ls"), "cannot be read: Too many levels of symbolic links"),
        (("submit", "job.yaml"), "cannot be read: Too many levels of symbolic links"),
        ((*upload, "~nobody-of-this-name/x", "--", "ls"), "there is no such folder"),
    ):
        refused = await longshore(*given)
        assert refused.code == 65, refused.err
        assert why in " ".join(refused.err.split())


async def test_a_file_in_the_place_of_the_folder_of_longshore_is_refused(
    longshore: Command, settings: Settings, pool: str, folder: Path
) -> None:
    commit(folder, {".longshore": "mine"})
    (folder / "train.py").write_text("changed")
    before = stored(settings)
    refused = await longshore("submit", "--pool", pool, "--upload", ".", "--", "ls")
    assert refused.code == 65
    said = " ".join(refused.err.split())
    assert ".longshore/diff.patch lies below .longshore, which is no folder" in said
    assert "Longshore puts files of its own into .longshore: rename what is there" in said
    assert stored(settings) == before
