"""The walk of a folder against Git itself, on random trees with random ignore files."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.client.code_walk import walk
from tests.support.searches import examples

NAMES = ("a", "b", "ab", "b.txt", "a.log", "#a", "!b", "a b", "a*", "ä", "a-b", "a]", "a ", "a\t")
SEGMENTS = (
    *("a", "b", "ab", "b.txt", "a.log", "\\#a", "\\!b", "a b", "a\\*", "ä"),
    *("*", "?.*", "a*", "*b", "*.txt", "?b", "[ab]", "[a-b].*", "[!a]*", "\\a", "**b"),
    *(
        "a[!_]*",
        "a[--0]b",
        "*[z-a]*",
        "[z-ab]",
        "*[_-.]*",
        "[[:alpha:]]",
        "[![:upper:]]*",
        "[[:odd:]]",
    ),
    *(
        "a[[:space:]]b",
        "a[]-]*",
        "[]a]",
        "[\\a]",
        "[a-\\b]",
        "?[^[:punct:]]b",
        "[[:a]b",
        "[a:-b]*",
    ),
    *("[a/]b", "a[/]b", "[!/]b", "a**", "**a", "b**.txt", "?*", "[ä]", "[!b]", "[ä-ö]*", "??"),
    *("\\", "a\\/b", "a*\\/b", "**\\/b", "*?", "***", "a\t", "[a-/]b", "[\\/]", "\\**"),
)


@pytest.fixture(scope="module", autouse=True)
def no_settings() -> Iterator[None]:
    """Git without the settings of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("XDG_CONFIG_HOME", os.devnull)
        yield


@st.composite
def patterns(draw: st.DrawFn) -> str:
    segments = draw(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3))
    deep = draw(st.sampled_from(("", "", "", "first", "middle", "last")))
    if deep:
        at = {"first": 0, "middle": 1, "last": len(segments)}[deep]
        segments.insert(at, "**")
    before = draw(st.sampled_from(("", "", "", "/", "!", "!", "!/")))
    ends = st.sampled_from(("", "", " ", "\r", "\t", " \t", "\\ ", "\\  ", "\\\\ "))
    return before + "/".join(segments) + draw(st.sampled_from(("", "", "/"))) + draw(ends)


odd = ("", "# *", "!", "/", "[a", "**/", "!/", "//", " ", "a**/b")
lines = st.lists(st.one_of(patterns(), patterns(), st.sampled_from(odd)), max_size=6)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
trees = st.fixed_dictionaries(
    {
        "files": st.lists(paths, min_size=1, max_size=25),
        "ignore": st.lists(st.tuples(paths, lines), max_size=4),
        "top": lines,
        "exclude": lines,
        "user": lines,
        "at": st.integers(min_value=0, max_value=9),
    }
)


def build(root: Path, tree: dict) -> list[Path]:
    """Make a work tree, by hand as `git init` takes longer; return its folders."""
    git = root / ".git"
    for each in ("objects", "refs", "info"):
        (git / each).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text(f'[core]\n\texcludesFile = "{git}/user"\n')
    (git / "user").write_text("\n".join(tree["user"]))
    (git / "info" / "exclude").write_text("\n".join(tree["exclude"]))
    folders = [root]
    for path in tree["files"]:
        file = root / path
        if any(each.is_file() for each in file.parents) or file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        folders += [each for each in file.parents if each.is_relative_to(root)]
    for path, said in [*tree["ignore"], (".", tree["top"])]:
        if (root / path).is_dir():
            (root / path / ".gitignore").write_text("\n".join(said), newline="")
    return sorted(set(folders))


@examples(100)
@given(tree=trees)
def test_it_takes_what_git_would_track(tree: dict) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        folders = build(root, tree)
        for folder in (root, folders[tree["at"] % len(folders)]):
            said = subprocess.run(
                ["git", "ls-files", "-z", "--others", "--exclude-standard"],
                cwd=folder, capture_output=True, check=True,
            ).stdout  # fmt: skip
            expected = {os.fsdecode(each) for each in said.split(b"\0")[:-1]}
            assert walk(folder).files.keys() == expected, f"{folder.relative_to(root)} of {tree}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("pattern", "ignored"),
    [
        ("*[_-.]*", ""), ("[z-a]", ""), ("[z-ab]", "b"), ("[[:alpha:]]", "ab"), ("[[:odd:]]", ""),
        ("[[:space:]]*", ""), ("build[!_]*", ""), ("build[.-0]xy", ""), ("[!a-b]", "5"),
        ("[[:digit:]b]", "b5"), ("[a", ""), ("[a/b]", "ab"), ("[/]", ""),
    ],
)  # fmt: skip
def test_brackets_are_read_as_git_reads_them(tmp_path: Path, pattern: str, ignored: str) -> None:
    (tmp_path / ".longshoreignore").write_text(f"{pattern}\n")
    (tmp_path / "build").mkdir()
    files = {"a", "b", "5", "build/xy", ".longshoreignore"}
    for name in files:
        (tmp_path / name).touch()
    assert walk(tmp_path).files.keys() == files - set(ignored)
    assert walk(tmp_path, include=[pattern]).included == set(ignored)
