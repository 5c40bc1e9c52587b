"""How long a submit looks for whom to stop."""

import pytest

from longshore.client.forecast import finds_whom_to_stop


@pytest.mark.parametrize(
    ("waiting", "nodes", "looks"),
    [
        (0, 100_000, True), (1000, 1000, True), (1001, 1, False), (100, 10_000, True),
        (101, 10_000, False),
    ],
)  # fmt: skip
def test_a_submit_looks_for_whom_to_stop_where_that_takes_a_moment(
    waiting: int, nodes: int, looks: bool
) -> None:
    assert finds_whom_to_stop(waiting, nodes) is looks
