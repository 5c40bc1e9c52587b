"""How the pages are read and compared, before anything runs."""

import re

import pytest

from tests.support.local_stack import ROOT
from tests.support.pages import RUN, blocks_of, pages
from tests.support.shown_output import differences

FENCE = "```"
STARTS_A_COMMAND = (
    "$ ", "longshore ", "curl ", "make ", "temporal ", "python ", "docker ", "podman ", "kubectl ",
    "pip ", "git ", "sudo ", "apt ", "systemctl ",
)  # fmt: skip


@pytest.mark.parametrize("page", pages())
def test_every_command_stands_in_a_block_that_is_run(page: str):
    loose = [
        f"{block.where}: {line}"
        for block in blocks_of(page)
        if block.language not in RUN
        for line in block.text.splitlines()
        if line.startswith(STARTS_A_COMMAND)
    ]
    assert loose == []


@pytest.mark.parametrize("page", pages())
def test_each_target_of_make_that_a_page_names_is_one(page: str):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^\$ |`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)
    assert set(named) <= set(targets)


def test_a_comment_marks_the_block_behind_it():
    text = f"<!-- not run: needs a real GPU node -->\n{FENCE}console\n$ nvidia-smi\n{FENCE}\n"
    (block,) = blocks_of("page", text)
    assert block.marks == {"not run": "needs a real GPU node"}
    (far,) = blocks_of("page", text.replace("-->\n", "-->\n\nText between.\n\n"))
    assert far.marks == {}


@pytest.mark.parametrize("comment", ["not run", "not run:", "not run: no", "notrun: needs a GPU"])
def test_a_mark_without_a_reason_is_refused(comment: str):
    with pytest.raises(ValueError, match="page:2"):
        blocks_of("page", f"<!-- {comment} -->\n{FENCE}sh\ntrue\n{FENCE}\n")


def test_commands_have_their_lines_and_outputs():
    text = f"{FENCE}console\n$ one \\\n    --more\nsaid\n$ two\n{FENCE}\n"
    first, second = blocks_of("page", text)[0].commands
    assert (first.line, first.text, first.shown) == (2, "one \\\n    --more", ("said",))
    assert (second.line, second.text, second.shown) == (5, "two", ())


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ("train-sk4xvbelym", "train-abcdefgh12"),
        ("06:23:12  23% epoch 7, accuracy 0.851", "11:00:01  7% epoch 2, accuracy 0.449"),
        ("paid $62.45 for 3h15m", "paid $1,000.10 for 45m"),
        ("at http://127.0.0.1:8484/jobs", "at http://127.0.0.1:38713/jobs"),
        ("first\n...\nlast", "first\nany\nlines\nlast"),
        ("value -1.319 (room ...)", "value -1.160 (room for 1 GPU -1.000)"),
        ("a   table", "a table\n\n"),
    ],
)
def test_what_varies_may_differ(shown: str, written: str):
    assert differences(shown.splitlines(), written) == []


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ("2 nodes", "3 nodes"),
        ("is ready", "is not ready"),
        ("first", "first\nsecond"),
        ("first\nsecond", "first"),
        ("first\n...\nlast", "first\nany"),
        ("$24.50", "24.50"),
    ],
)
def test_words_and_counts_may_not(shown: str, written: str):
    assert differences(shown.splitlines(), written) != []


def test_where_nothing_varies_numbers_count():
    assert differences(["score 0.719"], "score 0.720", exactly=True)
    assert not differences(["step 3 of 9"], "step 4 of 9", numbers=False)
