"""The code of a Git commit, with a real Git: refs, submodules, what is changed."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from longshore.client import code_git
from longshore.client.code_git import checked_out, diff_to_commit
from longshore.models.errors import SpecError
from tests.support.waiting import eventually

WHO = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always")


def git(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        ["git", *WHO, "-C", folder, *arguments], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def commit(folder: Path, files: dict[str, str], *more: str) -> str:
    if not (folder / ".git").exists():
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    for path, content in files.items():
        (folder / path).write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change", *more)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    commit(folder, {"train.py": "one"})
    git(folder, "tag", "v1")
    git(folder, "tag", "-a", "v1-annotated", "-m", "one")
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, {"train.py": "two", "side.py": ""})
    git(folder, "checkout", "-q", "main")
    commit(folder, {"train.py": "three"})
    return folder


def code_at(repository: Path | str, ref: str | None, tmp_path: Path) -> tuple[dict[str, str], str]:
    """Return the files of a commit, and the commit."""

    async def read() -> tuple[dict[str, str], str]:
        async with checked_out(str(repository), ref, tmp_path / "cache") as (folder, found):
            files = {
                str(path.relative_to(folder)): path.read_text()
                for path in folder.rglob("*")
                if path.is_file() and path.name != ".git"
            }
        assert not folder.exists()
        return files, found

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("ref", "train"),
    [(None, "three"), ("main", "three"), ("side", "two"), ("v1", "one"), ("v1-annotated", "one")],
)
def test_branches_and_tags_are_resolved_to_their_commit(
    repository: Path, tmp_path: Path, ref: str | None, train: str
) -> None:
    files, found = code_at(repository, ref, tmp_path)
    assert files["train.py"] == train
    assert found == git(repository, "rev-parse", f"{ref or 'main'}^{{commit}}")


def test_head_is_that_of_the_repository(repository: Path, tmp_path: Path) -> None:
    """The clone has one too: of `master`, or whatever a new repository begins with here."""
    begins = Path(tmp_path / "begins")
    begins.mkdir()
    git(begins, "init", "-q")
    git(repository, "branch", git(begins, "symbolic-ref", "--short", "HEAD"), "side")
    git(repository, "checkout", "-q", "-b", "develop", "main")
    commit(repository, {"train.py": "four"})
    for ref, train in (("HEAD", "four"), ("@", "four"), ("HEAD~1", "three"), ("@^^", "one")):
        assert code_at(repository, ref, tmp_path)[0]["train.py"] == train
    git(repository, "checkout", "-q", "--detach")
    commit(repository, {"train.py": "five"})
    assert code_at(repository, None, tmp_path)[0]["train.py"] == "five"
    with pytest.raises(SpecError, match="has no branch, tag or commit 'HEAD~9'; it has"):
        code_at(repository, "HEAD~9", tmp_path)


def test_a_commit_is_found_by_its_id_and_by_the_beginning_of_it(
    repository: Path, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "v1")
    assert code_at(repository, first, tmp_path)[0] == {"train.py": "one"}
    assert code_at(repository, first[:10], tmp_path)[1] == first


def test_what_is_not_committed_does_not_come_along(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("not committed")
    assert code_at(repository, None, tmp_path)[0] == {"train.py": "three"}


def test_a_branch_that_moved_is_fetched_again(repository: Path, tmp_path: Path) -> None:
    code_at(repository, "side", tmp_path)
    git(repository, "checkout", "-q", "side")
    commit(repository, {"train.py": "rewritten"}, "--amend")
    assert code_at(repository, "side", tmp_path)[0]["train.py"] == "rewritten"


def clones(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("left", ["begun", "locked", "checked out", "half checked out"])
def test_what_a_killed_submit_left_is_in_nobodys_way(
    repository: Path, tmp_path: Path, left: str
) -> None:
    code_at(repository, "main", tmp_path)
    (clone,) = clones(tmp_path)
    if left == "begun":
        git(clone, "remote", "remove", "origin")
    elif left == "locked":
        (clone / "refs" / "heads" / "main.lock").touch()
    elif left == "half checked out":  # Git locks it until that is done
        tree = clone.with_suffix(".tree")
        git(clone, "worktree", "add", "-q", "--lock", "--detach", str(tree), "v1")
    else:
        git(clone, "worktree", "add", "-qf", "--detach", str(clone.with_suffix(".tree")), "v1")
    commit(repository, {"train.py": "four"})
    assert code_at(repository, "main", tmp_path)[0] == {"train.py": "four"}
    assert clones(tmp_path) == [clone]


async def test_two_submits_of_a_repository_read_their_files_at_once(
    repository: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(60),
        checked_out(str(repository), "v1", tmp_path / "cache") as (first, _),
        checked_out(str(repository), "main", tmp_path / "cache") as (second, _),
    ):
        assert (first / "train.py").read_text() == "one"
        assert (second / "train.py").read_text() == "three"


async def test_a_clone_whose_files_are_read_is_not_made_anew(
    repository: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    async with checked_out(str(repository), "v1", cache) as (folder, _):
        (clone,) = [path for path in clones(tmp_path) if path.suffix != ".tree"]
        left = clone / "refs" / "heads" / "main.lock"
        left.touch()
        commit(repository, {"train.py": "four"})
        with pytest.raises(SpecError, match="cannot be read"):
            async with checked_out(str(repository), "main", cache):
                pass
        assert git(folder, "ls-files") == "train.py"
    async with checked_out(str(repository), "main", cache) as (folder, _):
        assert (folder / "train.py").read_text() == "four"


async def test_a_checkout_that_is_given_up_keeps_its_lock_until_it_is_done(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    update = code_git._update  # pyright: ignore[reportPrivateUsage]

    def slow(source: str, clone: Path) -> None:
        begun.set()
        assert may_end.wait(60)
        update(source, clone)

    monkeypatch.setattr(code_git, "_update", slow)
    task = asyncio.create_task(checked_out(str(repository), "v1", tmp_path / "cache").__aenter__())
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (lock,) = (tmp_path / "cache").glob("*.lock")
    with lock.open() as held, pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    may_end.set()

    async def is_removed() -> bool:
        return [path.suffix for path in clones(tmp_path)] == [""]

    await eventually(is_removed)


async def test_a_wait_for_a_submit_that_fetches_is_ended_at_once(
    repository: Path, tmp_path: Path
) -> None:
    async with checked_out(str(repository), "v1", tmp_path / "cache"):
        (clone,) = [path for path in clones(tmp_path) if path.suffix != ".tree"]
    with clone.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                checked_out(str(repository), "v1", tmp_path / "cache").__aenter__(), 0.5
            )
    assert clones(tmp_path) == [clone]


def test_a_clone_outlives_a_repository_that_cannot_be_read_for_a_while(
    repository: Path, tmp_path: Path
) -> None:
    code_at(repository, "main", tmp_path)
    (clone,) = clones(tmp_path)
    made = clone.stat().st_ino
    repository.rename(tmp_path / "away")
    with pytest.raises(SpecError, match="cannot be read"):
        code_at(repository, "main", tmp_path)
    (tmp_path / "away").rename(repository)
    code_at(repository, "main", tmp_path)
    assert [path.stat().st_ino for path in clones(tmp_path)] == [made]


def test_a_clone_that_nobody_uses_goes(repository: Path, tmp_path: Path) -> None:
    code_at(repository, "main", tmp_path)
    (lock,) = (tmp_path / "cache").glob("*.lock")
    other = tmp_path / "other"
    commit(other, {"train.py": "other"})
    code_at(other, "main", tmp_path)
    assert len(clones(tmp_path)) == 2
    (tmp_path / "cache" / "tree-of-before").mkdir()
    for old in (lock, tmp_path / "cache" / "tree-of-before"):
        os.utime(old, (0, 0))
    code_at(other, "main", tmp_path)
    (kept,) = clones(tmp_path)
    assert kept.name != lock.stem
    assert code_at(repository, "main", tmp_path)[0] == {"train.py": "three"}


def test_an_unknown_ref_is_refused_with_those_that_there_are(
    repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as error:
        code_at(repository, "v2", tmp_path)
    (problem,) = error.value.problems
    assert "has no branch, tag or commit 'v2'; it has " in problem
    assert "side" in problem
    assert "v1" in problem


@pytest.mark.parametrize("ref", ["--upload-pack=touch x", "-q", "main^{tree}", "a b", "v1..main"])
def test_a_ref_is_no_option_and_no_expression_of_something_else(
    repository: Path, tmp_path: Path, ref: str
) -> None:
    with pytest.raises(SpecError, match="has no branch, tag or commit"):
        code_at(repository, ref, tmp_path)


def test_a_repository_that_is_not_there_is_told_with_what_git_says(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not appear to be a git repository"):
        code_at(tmp_path / "nowhere", None, tmp_path)


def test_a_secret_of_a_url_is_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        code_at("http://me:hunter2@127.0.0.1:9/repository", None, tmp_path)
    assert "hunter2" not in str(error.value)


def test_submodules_come_along(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    commit(library, {"lib.py": "library"})
    git(repository, "submodule", "add", "-q", str(library), "vendor")
    commit(repository, {})
    assert code_at(repository, None, tmp_path)[0]["vendor/lib.py"] == "library"


@pytest.fixture
def large(repository: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that Git LFS keeps, in a submodule of a submodule: its content. Nobody has told Git
    of LFS but the repository."""
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    if shutil.which("git-lfs") is None:
        pytest.skip("git-lfs is not installed")
    content = f"large {uuid.uuid4().hex}"
    inner, outer = repository.parent / "inner", repository.parent / "outer"
    commit(inner, {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    git(inner, "lfs", "install", "--local")
    commit(inner, {"large.bin": content})
    commit(outer, {"lib.py": "library"})
    git(outer, "submodule", "add", "-q", str(inner), "in ner")
    commit(outer, {})
    git(repository, "submodule", "add", "-q", str(outer), "vendor")
    commit(repository, {"top.py": ""})
    assert git(inner, "show", "HEAD:large.bin").startswith("version https://git-lfs")
    return content


def test_files_of_lfs_come_along_also_of_submodules(
    repository: Path, large: str, tmp_path: Path
) -> None:
    assert code_at(repository.parent / "inner", None, tmp_path)[0]["large.bin"] == large
    files = code_at(repository, None, tmp_path)[0]
    assert files["vendor/in ner/large.bin"] == large
    assert files["vendor/lib.py"] == "library"


def test_without_git_lfs_no_pointer_comes_along_in_place_of_a_file(
    repository: Path, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    for program in Path(shutil.which("git") or "").parent.iterdir():
        if program.name != "git-lfs":
            (only / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(only))
    with pytest.raises(SpecError, match=r"large\.bin of .* is kept by Git LFS, and"):
        code_at(repository, None, tmp_path)
    assert code_at(repository, "v1", tmp_path)[0] == {"train.py": "one"}


def test_an_environment_that_names_another_repository_changes_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", os.devnull)
    assert code_at(repository, "v1", tmp_path)[0] == {"train.py": "one"}


def test_the_diff_is_that_of_the_folder_and_cut_where_it_is_long(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "sub").mkdir()
    commit(repository, {"sub/a.py": "a\n", "train.py": "x\n"})
    (repository / "sub/a.py").write_text("b\n" * 1000)
    (repository / "train.py").write_text("y\n")
    diff = diff_to_commit(repository / "sub", {"a.py"}).decode()
    assert "--- a/a.py" in diff
    assert "train.py" not in diff
    monkeypatch.setattr(code_git, "MOST_DIFF", 500)
    cut = diff_to_commit(repository, {"sub/a.py", "train.py"})
    assert len(cut) == 500
    assert b"+b" not in diff_to_commit(repository, {"train.py"}), "it was left out"
    assert diff_to_commit(repository, ()) == b""
    assert cut.endswith(b"the files themselves are whole)\n")


def test_the_diff_runs_nothing_that_a_repository_names(repository: Path, tmp_path: Path) -> None:
    commit(tmp_path / "library", {"lib.py": "library"})
    git(repository, "submodule", "add", "-q", str(tmp_path / "library"), "vendor")
    commit(repository, {})
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    monitor.chmod(0o755)
    for folder in (repository, repository / "vendor"):
        git(folder, "config", "core.fsmonitor", str(monitor))
    (repository / "train.py").write_text("changed")
    (repository / "vendor" / "lib.py").write_text("changed")
    diff = diff_to_commit(repository, {"train.py", "vendor/lib.py"})
    assert b"+changed" in diff
    assert b"vendor" not in diff
    assert not (tmp_path / "ran").exists()
