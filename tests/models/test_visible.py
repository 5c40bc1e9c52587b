"""What others wrote is shown, and nothing in it is obeyed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.visible import name_of_place, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, Ünïcode, 日本語 and 🚢", "plain, Ünïcode, 日本語 and 🚢"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b]0;owned\x07\x1b[31mred", r"\x1b]0;owned\x07\x1b[31mred"),
        ("over\rwritten\x08\x7f", r"over\x0dwritten\x08\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("train\u202egpj.exe\u2066\u2069", r"train\u202egpj.exe\u2066\u2069"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
    ],
)
def test_what_steers_a_screen_is_written_out(text: str, shown: str):
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ("gpus", "gpus"),
        (3, "3"),
        ("A\nB\tC", r"A\nB\tC"),
        ("a\u202eb", r"a\u202eb"),
        ("x" * 201, "x" * 197 + "..."),
    ],
)
def test_a_name_that_anybody_writes_stays_in_its_line(part: str | int, shown: str):
    assert name_of_place(part) == shown


@given(st.text())
def test_nothing_that_steers_or_hides_is_left_and_the_rest_stays(text: str):
    shown = visible(text)
    assert not any(unicodedata.category(each) == "Cc" for each in shown if each not in "\n\t")
    assert not any(
        each in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" for each in shown
    )
    if text.isprintable():
        assert shown is text
    assert visible(shown) == shown
