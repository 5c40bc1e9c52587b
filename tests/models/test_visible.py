"""What others wrote is shown, and nothing in it is obeyed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.visible import name_of_place, visible


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
        ("soft\u00adhyphen, times\u2062", r"soft\xadhyphen, times\u2062"),
        ("blank\u3164\u115f\u1160\uffa0\u034f", r"blank\u3164\u115f\u1160\uffa0\u034f"),
        ("tags\U000e0041\U000e0002", r"tags\U000e0041\U000e0002"),
        ("می\u200cخواهم, 👩\u200d🚀, ❤\ufe0f", "می\u200cخواهم, 👩\u200d🚀, ❤\ufe0f"),
        ("number \u0600\u0661", "number \u0600\u0661"),
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
    if text.isprintable() and text.isascii():
        assert shown is text
    seen = [each for each in text if unicodedata.category(each)[0] in "NPZ" and each > " "]
    assert all(each in shown for each in seen if each not in "\u2028\u2029")
    assert visible(shown) == shown
