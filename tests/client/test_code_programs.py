"""A folder may come with settings of Git that somebody else wrote: a submit runs none of the
programs that they name."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from longshore.client.code_files import find_files
from longshore.client.code_git import diff_to_commit


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git without the settings of whoever runs the tests."""
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "gitconfig").write_text("[user]\nname = T\nemail = t@example.com\n")


def git(folder: Path, *asked: str) -> str:
    ran = subprocess.run(["git", *asked], cwd=folder, capture_output=True, check=True, text=True)
    return ran.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A work tree with a file that differs from its commit."""
    made = tmp_path / "code"
    made.mkdir()
    git(made, "init", "-q")
    (made / "train.py").write_text("one\n")
    git(made, "add", ".")
    git(made, "commit", "-qm", "one")
    (made / "train.py").write_text("two\n")
    return made


def look(folder: Path) -> bytes:
    """Look at a folder as a submit does; return its diff."""
    assert find_files(folder).changed
    return diff_to_commit(folder, {"train.py"})


@pytest.mark.parametrize("kind", ["clean", "process"])
@pytest.mark.parametrize("name", ["x", "a=b.c"])
def test_filters_that_a_repository_sets_are_not_run(
    folder: Path, tmp_path: Path, kind: str, name: str
) -> None:
    (folder / ".gitattributes").write_text(f"* filter={name}\n")
    git(folder, "config", f"filter.{name}.{kind}", f"touch {tmp_path}/ran; cat")
    git(folder, "config", f"filter.{name}.required", "true")
    assert b"+two" in look(folder)
    assert not (tmp_path / "ran").exists()


def test_filters_of_the_user_are_run_and_not_what_a_repository_puts_in_their_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".gitattributes").write_text("* filter=mine\n")
    git(folder, "config", "--global", "filter.mine.clean", "sed s/two/three/")
    assert b"+three" in look(folder)
    git(folder, "config", "filter.mine.clean", f"touch {tmp_path}/ran; cat")
    assert b"+three" in look(folder)
    # Behind settings that variables give already, which stay.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "filter.mine.clean")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "sed s/two/four/")
    assert b"+four" in look(folder)
    assert not (tmp_path / "ran").exists()


def test_files_of_lfs_are_seen_through_its_own_filter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git-lfs").write_text('#!/bin/sh\n[ "$1" = clean ] && sed "s/^/pointer to /"\n')
    (programs / "git-lfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    (folder / ".gitattributes").write_text("* filter=lfs\n")
    # As `git lfs install --local` does, and with a program of somebody else.
    git(folder, "config", "filter.lfs.clean", f"touch {tmp_path}/ran; cat")
    git(folder, "config", "filter.lfs.required", "true")
    look(folder)
    assert not (tmp_path / "ran").exists()


def test_what_a_partial_clone_lacks_is_fetched_by_no_program_of_its_settings(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = git(folder, "rev-parse", "HEAD:train.py")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin",
        "remote.origin.promisor": "true", "remote.origin.url": "ssh://nowhere.example/x",
        "core.sshCommand": f"touch {tmp_path}/ran; false", "protocol.ssh.allow": "always",
    }.items():  # fmt: skip
        git(folder, "config", name, value)
    forbidden = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
    ran = subprocess.run(
        ["git", "diff"], cwd=folder, env=forbidden, capture_output=True, check=False
    )
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    look(folder)
    assert not (tmp_path / "ran").exists()
    # Before it connects, a `git fetch` may do more: what fetch.bundleURI names, with a helper.
    fetched = "built-in: git fetch" in (tmp_path / "trace").read_text()
    assert not fetched or b"lazy fetching disabled" not in ran.stderr, (
        "this Git knows the variable"
    )


@pytest.mark.parametrize(
    "lacks",
    ["unset GIT_CONFIG_COUNT", 'case "$*" in *--show-scope*) exit 129;; esac'],
    ids=["before 2.31", "before 2.26"],
)
def test_an_old_git_that_can_be_kept_from_no_filter_looks_at_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    (folder / ".gitattributes").write_text("* filter=x\n")
    git(folder, "config", "filter.x.clean", f"touch {tmp_path}/ran; cat")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\n{lacks}\nexec {shutil.which("git")} "$@"\n')
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert look(folder) == b""
    assert not (tmp_path / "ran").exists()
