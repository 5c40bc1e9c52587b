"""What of a folder comes along with a job, and what in it is refused."""

import os
import socket
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore.client import code_files
from longshore.client.code_files import FoundFiles, find_files
from longshore.client.code_walk import Walked, walk
from longshore.models.errors import SpecError
from longshore.models.snapshot import SnapshotLink

ABSOLUTE = ": ignore it; a job can use that path itself, where nodes have it"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git without the settings of whoever runs the tests."""
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "gitconfig").write_text(
        '[user]\nname = T\nemail = t@example.com\n[protocol "file"]\nallow = always\n'
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    return made


def git(folder: Path, *asked: str) -> str:
    ran = subprocess.run(["git", *asked], cwd=folder, capture_output=True, check=True, text=True)
    return ran.stdout.strip()


def put(folder: Path, path: str, text: str = "x") -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def fill(folder: Path, *paths: str) -> None:
    for path in paths:
        put(folder, path)


def names(found: FoundFiles) -> list[str]:
    return [file.path for file in found.files]


def refused(folder: Path, **options: object) -> list[str]:
    """Return what is wrong with a folder, without the name of the folder."""
    with pytest.raises(SpecError) as caught:
        find_files(folder, **options)  # pyright: ignore[reportArgumentType]
    before = f"{folder}: "
    assert all(each.startswith(before) for each in caught.value.problems)
    return [each.removeprefix(before) for each in caught.value.problems]


def committed(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return git(folder, "rev-parse", "HEAD")


def test_a_folder_without_git_is_walked(folder: Path) -> None:
    fill(folder, "train.py", "src/a.py", "src/a.pyc", "build/x", "src/keep/b.pyc")
    put(folder, ".gitignore", "*.pyc\nbuild/\n")
    put(folder, "src/keep/.gitignore", "!*.pyc\n")
    (folder / "out" / "empty").mkdir(parents=True)
    (folder / "train.py").chmod(0o755)
    found = find_files(folder)
    assert names(found) == [
        ".gitignore", "src/a.py", "src/keep/.gitignore", "src/keep/b.pyc", "train.py",
    ]  # fmt: skip
    assert found.folders == ("out/empty",)
    assert (found.commit, found.changed) == (None, False)
    train = found.files[-1]
    assert (train.executable, train.size) == (True, 1)
    assert Path(train.source).read_text() == "x"
    assert not found.files[1].executable


def test_the_commit_of_a_work_tree_and_whether_it_is_changed(folder: Path) -> None:
    fill(folder, "train.py", "lib/a.py")
    put(folder, ".gitignore", "*.log\n")
    commit = committed(folder)
    fill(folder, "a.log")
    found = find_files(folder)
    assert (found.commit, found.changed) == (commit, False)
    assert names(found) == [".gitignore", "lib/a.py", "train.py"]
    below = find_files(folder / "lib")
    assert (names(below), below.commit, below.changed) == (["a.py"], commit, False)

    put(folder, "train.py", "other")
    assert find_files(folder).changed
    assert not find_files(folder / "lib").changed  # what differs lies elsewhere
    fill(folder, "lib/new.py")
    assert find_files(folder / "lib").changed


def test_what_git_tracks_comes_along_though_it_is_ignored_and_what_is_deleted_does_not(
    folder: Path,
) -> None:
    fill(folder, "weights/a.bin", "gone.py", "here.py")
    committed(folder)
    put(folder, ".gitignore", "weights/\n")
    (folder / "gone.py").unlink()
    fill(folder, "weights/b.bin")
    assert names(find_files(folder)) == [".gitignore", "here.py", "weights/a.bin"]


def test_files_that_a_link_hides_are_gone(folder: Path) -> None:
    fill(folder, "a/tracked.py", "b/other.py")
    committed(folder)
    (folder / "a" / "tracked.py").unlink()
    (folder / "a").rmdir()
    fill(folder, "b/tracked.py")
    (folder / "a").symlink_to("b")
    found = find_files(folder)
    assert names(found) == ["b/other.py", "b/tracked.py"]
    assert found.links == (SnapshotLink(path="a", target="b"),)


def test_submodules_and_repositories_within(folder: Path, tmp_path: Path) -> None:
    module = tmp_path / "module"
    fill(module, "m.py")
    put(module, ".gitignore", "*.tmp\n")
    committed(module)
    fill(folder, "train.py")
    put(folder, ".gitignore", "*.dat\n")
    git(folder, "init", "-q")
    git(folder, "submodule", "--quiet", "add", str(module), "mod")
    committed(folder)
    assert not find_files(folder).changed
    fill(folder, "mod/new.py", "mod/a.tmp", "mod/a.dat", "own/x.py", "own/x.dat", "own/x.log")
    put(folder, "own/.gitignore", "*.log\n")
    git(folder / "own", "init", "-q")
    found = find_files(folder)
    assert names(found) == [
        ".gitignore", ".gitmodules", "mod/.gitignore", "mod/a.dat", "mod/m.py", "mod/new.py",
        "own/.gitignore", "own/x.dat", "own/x.py", "train.py",
    ]  # fmt: skip
    assert found.changed
    git(folder, "submodule", "--quiet", "deinit", "--force", "mod")
    assert not [each for each in names(find_files(folder)) if each.startswith("mod/")]


def test_a_repository_that_git_does_not_open_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk would leave behind what is tracked though it is ignored."""
    fill(folder, "train.py", "m.pt")
    committed(folder)
    put(folder, ".gitignore", "*.pt\n")
    assert names(find_files(folder)) == [".gitignore", "m.pt", "train.py"]
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    (told,) = refused(folder)
    assert told.startswith("is in a Git repository of another user, which Git does not open. If ")
    assert f"git config --global --add safe.directory {folder}. Or say in a file" in told
    put(folder, ".longshoreignore", "")
    found = find_files(folder)
    assert names(found) == [".gitignore", ".longshoreignore", "m.pt", "train.py"]
    assert found.commit is None


def test_a_repository_is_walked_by_all_of_its_rules(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(
        folder, "train.py", "a.log", "b.tmp", "c.dat", "sub/d.py", "sub/own/a.log", "sub/own/e.py"
    )
    committed(folder)
    put(folder, ".gitignore", "*.log\n")
    put(folder, ".git/info/exclude", "/b.tmp\n")
    put(folder, "../config/git/ignore", "*.dat\n")
    git(folder / "sub" / "own", "init", "-q")
    monkeypatch.setenv("PATH", str(folder))  # no Git
    found = find_files(folder)
    assert (found.commit, found.changed) == (None, False)
    assert names(found) == [
        ".gitignore", "sub/d.py", "sub/own/a.log", "sub/own/e.py", "train.py",
    ]  # fmt: skip
    assert names(find_files(folder / "sub")) == ["d.py", "own/a.log", "own/e.py"]


def test_the_walk_without_a_git_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder, "train.py", "a.log")
    git(folder, "init", "-q")
    put(folder, ".gitignore", "*.log\n")
    monkeypatch.setenv("PATH", str(folder))
    assert names(find_files(folder)) == [".gitignore", "train.py"]


def test_an_ignore_file_that_is_a_link_counts_as_it_does_for_git(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, "train.py", "a.log")
    put(folder, "rules", "*.log\n")
    (folder / ".gitignore").symlink_to("rules")
    git(folder, "init", "-q")
    assert names(find_files(folder)) == ["a.log", "rules", "train.py"]  # Git does not follow it
    monkeypatch.setenv("PATH", str(folder))
    assert names(find_files(folder)) == ["a.log", "rules", "train.py"]
    (folder / ".gitignore").rename(folder / ".longshoreignore")
    assert names(find_files(folder)) == ["rules", "train.py"]


def test_a_second_work_tree_has_the_excludes_of_the_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, "train.py")
    committed(folder)
    put(folder, ".git/info/exclude", "*.tmp\n")
    git(folder, "worktree", "add", "-q", str(tmp_path / "second"))
    fill(tmp_path / "second", "a.tmp")
    assert names(find_files(tmp_path / "second")) == ["train.py"]
    monkeypatch.setenv("PATH", str(folder))
    assert names(find_files(tmp_path / "second")) == ["train.py"]


def test_a_longshoreignore_alone_says_what_is_left_out(folder: Path) -> None:
    fill(folder, "train.py", "a.log", "data/x.bin", "data/y.bin")
    put(folder, ".gitignore", "*.log\n")
    commit = committed(folder)
    put(folder, ".longshoreignore", "data/*\n!y.bin\n")
    put(folder, "data/.longshoreignore", "!x.bin\ny.bin\n")
    found = find_files(folder)
    assert names(found) == [
        ".gitignore", ".longshoreignore", "a.log", "data/x.bin", "train.py",
    ]  # fmt: skip
    assert (found.commit, found.changed) == (commit, True)


def test_includes_come_along_though_they_are_ignored(folder: Path) -> None:
    fill(folder, "train.py", "data/a/x.bin", "data/a/x.txt", "data/b.bin", "out/o", ".env")
    put(folder, ".gitignore", "data/\nout/\n.env\n")
    for _ in range(2):
        found = find_files(folder, include=["data/**/*.bin", "!b.bin", ".env"])
        assert names(found) == [".env", ".gitignore", "data/a/x.bin", "train.py"]
        assert names(find_files(folder, include=["out"])) == [".gitignore", "out/o", "train.py"]
        git(folder, "init", "-q")


def test_git_runs_nothing_that_the_repository_names(folder: Path, tmp_path: Path) -> None:
    fill(folder, "train.py")
    committed(folder)
    hook = put(tmp_path, "hook", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(hook))
    assert not find_files(folder).changed
    assert not (tmp_path / "ran").exists()


def test_links_that_stay_in_the_folder_come_along_as_they_are(folder: Path) -> None:
    fill(folder, "a/b/c.py", "x")
    targets = {
        "broken": "nowhere", "round": "round", "a/b/up": "../../x", "a/./dot": "./b",
        "deep": "a/b", "through": "deep/../b/c.py",
    }  # fmt: skip
    for path, target in targets.items():
        (folder / path).symlink_to(target)
    found = find_files(folder)
    assert {link.path: link.target for link in found.links} == {
        path.replace("/./", "/"): target for path, target in targets.items()
    }
    assert names(found) == ["a/b/c.py", "x"]


def test_links_that_lead_out_are_refused(folder: Path) -> None:
    fill(folder, "a/b/c.py")
    put(folder.parent, "outside")
    targets = {
        "absolute": str(folder / "a"), "out": "../outside", "back": "../code/a",
        "top": "a/b/top", "a/b/top": "../..", "hidden": "a/b/top/../outside",
    }  # fmt: skip
    for path, target in targets.items():
        (folder / path).symlink_to(target)
    (folder / "latin").symlink_to(os.fsdecode(b"\xe9"))
    assert refused(folder) == [
        f"absolute is a symbolic link to an absolute path, {folder}/a{ABSOLUTE}",
        "back is a symbolic link that leads out of the folder, to ../code/a: ignore it",
        "hidden is a symbolic link that leads out of the folder, to a/b/top/../outside: ignore it",
        "latin is a symbolic link to a name that is not UTF-8",
        "out is a symbolic link that leads out of the folder, to ../outside: ignore it",
    ]


@pytest.mark.parametrize("asked", [False, True], ids=["walk", "git"])
def test_all_that_is_wrong_is_told_at_once(folder: Path, asked: bool) -> None:
    if asked:
        git(folder, "init", "-q")
    fill(folder, "train.py", "two\nlines", ".env", ".env.example", "keys/a.pem", ".ssh/config")
    fill(folder, "id_rsa", "ignored/b.key", ".env.local", "sub/credentials.json", "monkey")
    put(folder, ".gitignore", "ignored\nno*\n")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "nopipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(folder / "socket"))
    (folder / "out").symlink_to("/etc")
    put(folder, os.fsdecode(b"latin\xe9"))
    key = "looks like a key: ignore it, or name it with --include"
    assert refused(folder) == [
        f".env {key}",
        f".env.local {key}",
        f".ssh/config {key}",
        f"id_rsa {key}",
        f"keys/a.pem {key}",
        "latin\\udce9 has a name that is not UTF-8",
        f"out is a symbolic link to an absolute path, /etc{ABSOLUTE}",
        "pipe is a socket, a FIFO or a device",
        "socket is a socket, a FIFO or a device",
        f"sub/credentials.json {key}",
        "two\\nlines has the end of a line in its name",
    ]


def test_a_virtual_environment_is_told_in_one_line(folder: Path) -> None:
    venv.create(folder / ".venv", symlinks=True)
    put(folder, ".venv/lib/certifi/cacert.pem")
    fill(folder, "train.py", "tests/pyvenv.cfg")
    (said,) = refused(folder)
    assert said.startswith(".venv is a virtual environment, which works on this machine alone")
    put(folder, ".gitignore", ".venv/\n")
    assert names(find_files(folder)) == [".gitignore", "tests/pyvenv.cfg", "train.py"]


def test_twenty_are_named(folder: Path) -> None:
    fill(folder, *(f"{number:02}.pem" for number in range(23)))
    told = refused(folder)
    assert len(told) == 21
    assert told[-1] == "and 3 more like these"


def test_keys_that_are_named_come_along(folder: Path) -> None:
    fill(folder, "a.pem", "b.pem", ".aws/config")
    assert names(find_files(folder, include=["*.pem", ".aws/"])) == [
        ".aws/config", "a.pem", "b.pem",
    ]  # fmt: skip
    assert [each.split()[0] for each in refused(folder, include=["*.pem", "!b.pem"])] == [
        ".aws/config", "b.pem",
    ]  # fmt: skip


def test_keys_are_known_by_their_names_and_folders(folder: Path) -> None:
    keys = {
        ".azure/msal_token_cache.json", ".cache/huggingface/token", ".config/gcloud/a/legacy.db",
        ".docker/config.json", ".git-credentials", ".huggingface/token", "ID_RSA", "a/.Env",
        "application_default_credentials.json", "id_dsa", "id_ecdsa_sk", "id_ed25519_sk",
        "server.PEM", "sub/.docker/config.json",
    }  # fmt: skip
    fill(
        folder, *keys, ".docker/Dockerfile", ".config/app.toml", "id_rsa.pub", "docker/config.json"
    )
    assert {each.split()[0] for each in refused(folder)} == keys


def test_what_is_no_pattern_is_told_with_the_rest(folder: Path) -> None:
    fill(folder, "a.pem", "b")
    with pytest.raises(SpecError) as caught:
        find_files(folder, include=["[a", "b", "# b"])
    assert caught.value.problems == (
        "include '[a': is no pattern",
        "include '# b': is no pattern",
        f"{folder}: a.pem looks like a key: ignore it, or name it with --include",
    )


@contextmanager
def as_nobody() -> Iterator[None]:
    rights = os.geteuid()
    if rights == 0:
        os.seteuid(65534)  # root may read all
    try:
        yield
    finally:
        os.seteuid(rights)


def test_what_cannot_be_read_is_refused_unless_it_is_ignored() -> None:
    unread = "cannot be read: ignore it, or change its mode"
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # that of pytest is closed to others
        folder = Path(name)
        folder.chmod(0o755)
        fill(folder, "closed.py", "shut/a.py", "open.py")
        (folder / "closed.py").chmod(0o000)
        (folder / "shut").chmod(0o000)
        try:
            with as_nobody():
                assert refused(folder) == [f"closed.py {unread}", f"shut {unread}"]
                assert refused(folder / "shut") == ["cannot be read: change its mode"]
            put(folder, ".gitignore", "shut\nclosed.py\n")
            with as_nobody():
                for include in ([], ["a.py"]):
                    assert names(find_files(folder, include=include)) == [".gitignore", "open.py"]
                assert refused(folder, include=["shut"]) == [f"shut {unread}"]
        finally:
            (folder / "shut").chmod(0o755)


def test_a_path_that_is_too_long_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for _ in range(18):
        Path("d" * 220).mkdir()
        os.chdir("d" * 220)
    Path("f" * 220).touch()
    (told,) = refused(folder)
    assert told.endswith("f cannot be read: ignore it, or change its mode")


def test_a_link_that_goes_meanwhile_stays_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, "train.py")
    (folder / "link").symlink_to("train.py")

    def walked(root: Path, include: object) -> Walked:
        found = walk(root)
        (root / "link").unlink()
        return found

    monkeypatch.setattr(code_files, "walk", walked)
    assert find_files(folder).links == ()


def test_more_than_the_limit_names_the_largest(folder: Path) -> None:
    for number in range(1, 13):
        put(folder, f"f{number}", "x" * number * 1000)
    fill(folder, "a.pem")
    assert len(find_files(folder, include=["a.pem"], limit=78_001).files) == 13
    largest = ", ".join(f"f{number} ({number}.0kB)" for number in range(12, 2, -1))
    assert refused(folder, limit=78_000) == [
        "its 13 files are 78.0kB, more than the 78.0kB that may be sent; the largest: "
        f"{largest}. A file `.longshoreignore` leaves files out",
        "a.pem looks like a key: ignore it, or name it with --include",
    ]


def test_a_folder_that_cannot_be_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(folder / "none") == ["there is no such folder"]
    file = put(folder, "train.py")
    assert refused(file) == ["is a file; name the folder that it lies in"]
    assert refused(file / "below") == ["there is no such folder"]
    own = "put the code into a folder of its own"
    assert refused(Path("/")) == [f"is the root of the file system: {own}"]
    monkeypatch.setenv("HOME", str(folder))
    (folder.parent / "link").symlink_to(folder)
    assert refused(folder.parent / "link") == [f"is the home folder: {own}"]


def test_a_folder_of_which_all_is_ignored_is_refused(folder: Path) -> None:
    git(folder, "init", "-q")
    put(folder, ".gitignore", "build/\n")
    fill(folder, "build/train.py")
    assert refused(folder / "build") == [
        "all that it holds is ignored; a file `.longshoreignore` in it, which may be empty, "
        "says instead of Git what is left out"
    ]
    put(folder, "build/.longshoreignore", "")
    assert names(find_files(folder / "build")) == [".longshoreignore", "train.py"]


def test_an_index_that_git_cannot_read_is_told(folder: Path) -> None:
    fill(folder, "train.py")
    committed(folder)
    put(folder, ".git/index", "x" * 100)
    assert "Git cannot list its files: " in refused(folder)[0]


def test_an_empty_folder_is_no_mistake(folder: Path) -> None:
    assert find_files(folder) == FoundFiles(files=(), links=(), folders=())
