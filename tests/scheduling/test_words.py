"""Lists in sentences: the first few names, and how many more there are."""

import pytest

from longshore.scheduling.words import and_more, listed


@pytest.mark.parametrize(
    ("names", "says"),
    [("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcd", "a, b and 2 more")],
)
def test_of_many_names_the_first_few_and_the_number_of_the_rest(names: str, says: str):
    assert listed(list(names), 2) == says


def test_parts_with_commas_of_their_own_stand_between_semicolons():
    assert listed(["a, x", "b"], 2, between="; ") == "a, x; b"
    assert listed(["a, x", "b", "c"], 2, between="; ") == "a, x; b; and 1 more"


def test_what_the_rest_is_can_be_named():
    assert listed(list("abc"), 2, "node") == "a, b and 1 more node"
    assert and_more(1024, "node") == "and 1,024 more nodes"
    assert (and_more(0), and_more(-1, "node")) == ("", "")
