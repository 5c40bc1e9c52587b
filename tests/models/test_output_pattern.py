"""Which files patterns of a job name, and that none takes long: they run on shared nodes."""

import time

import pytest

from longshore.models.output_pattern import OutputPatterns, can_match

DEEP = "/".join(["a" * 250] * 16)
NARROW = "a/" * 300 + "a"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 200), ("*a" * 2000 + "b", DEEP),
        ("**/*a*a*a/" * 300 + "b", DEEP), ("**/a/" * 800 + "b", NARROW),
        ("**/" + "*a*/" * 299 + "b", NARROW), ("**\\/*/" * 600 + "b", NARROW),
        ("[!b]*" * 800 + "b", DEEP), ("**/*/" * 800 + "b", NARROW),
    ],
)  # fmt: skip
def test_no_pattern_takes_more_than_a_moment(pattern: str, path: str):
    """An agent that matched one hung, and was taken for lost: so was the next one."""
    patterns = OutputPatterns([pattern])
    began = time.process_time()
    assert not patterns.matches(path)
    assert time.process_time() - began < 2  # it would not end in a day


@pytest.mark.parametrize(
    ("patterns", "taken", "left"),
    [
        (["results", "*.pt"], "results/a results/deep/b c.pt x/c.pt", "d resultsx x/cpt"),
        (["results/"], "results/a", "results"), (["/a"], "a a/b", "x/a"),
        (["results", "!*.tmp"], "results/a", "results/a.tmp"),
        (["results/", "!results/deep/"], "results/a", "results/deep/b"),
        (["!results/deep/b", "results"], "results/a", "results/deep/b"),
        (["results/**/"], "results/a results/deep/b", "a"), (["[[:digit:]]"], "1 a/2", "a"),
        (["*"], "a a/b", ""), (["a/**/b"], "a/b a/x/y/b", "b a/xb"),
        (["*ab*b"], "abb aabxb abab/x", "ab xab"), (["x*/**/*y/z"], "x1/y/z x/a/by/z", "x/a/z"),
        (["#a", "[a", "./b"], "", "#a a b"), (["\udce4?"], "\udce4b", "\udce4"),
    ],
)  # fmt: skip
def test_what_patterns_name(patterns: list[str], taken: str, left: str):
    found = OutputPatterns(patterns)
    assert [path for path in taken.split() if not found.matches(path)] == []
    assert [path for path in left.split() if found.matches(path)] == []


def test_those_that_name_none_of_the_files_are_told():
    found = OutputPatterns(["*.pt", "log", "results", "!x.pt", "[a"])
    assert [path for path in ("x.pt", "log", "b") if found.matches(path)] == ["log"]
    assert found.unused == ("*.pt", "results", "[a")


def test_what_can_match_no_path_is_known():
    written = ("a", "#a", "[a", "[[:b:]]", "a\\", "./a", "a//")
    assert [each for each in written if can_match(each)] == ["a"]
