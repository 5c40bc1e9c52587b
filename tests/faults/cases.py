"""The cases of the tests that kill something at each point."""

from collections.abc import Collection

import pytest


def cases_of(
    cases: Collection[tuple[str, ...]], always: Collection[tuple[str, ...]]
) -> list[object]:
    """Return the parameters of a test: those in `always` run in every suite."""
    assert set(cases) >= set(always)
    return [
        pytest.param(
            *case, id="-".join(case), marks=() if case in always else pytest.mark.exhaustive
        )
        for case in cases
    ]
