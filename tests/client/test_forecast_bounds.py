"""How long a submit looks at a queue."""

import pytest

from longshore.client.forecast import looks_at_queue


@pytest.mark.parametrize(
    ("waiting", "nodes", "looks"),
    [
        (0, 100_000, True), (1000, 1000, True), (1001, 1, False), (100, 10_000, True),
        (101, 10_000, False),
    ],
)  # fmt: skip
def test_a_submit_looks_at_a_queue_where_that_takes_a_moment(
    waiting: int, nodes: int, looks: bool
) -> None:
    assert looks_at_queue(waiting, nodes) is looks
