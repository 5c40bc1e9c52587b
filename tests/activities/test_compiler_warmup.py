"""The compiled pass is loaded beside the work, and is the same one for every plan then."""

import pytest

from longshore.activities.compiler_warmup import Warming
from longshore.scheduling import bulk
from longshore.scheduling.bulk import class_buckets, kernel, residuals
from longshore.scheduling.bulk.warm import warm
from tests.scheduling.conftest import COMPILING

pytestmark = pytest.mark.timeout(COMPILING)


async def test_a_long_plan_has_the_pass_loaded_and_nothing_is_compiled_twice() -> None:
    warming = Warming()
    warming.after(0.01)
    await warming.done()
    warming.after(1.0)
    await warming.done()
    assert bulk.is_loaded()
    assert bulk.is_worth(bulk.FEWEST)
    entries = (
        kernel.run, kernel.move_to_known, kernel.index_classes, class_buckets.index_buckets,
        class_buckets.refresh_all, class_buckets.has_capacity, residuals.idle_of_pool,
        residuals.value_residuals, residuals.index_residuals,
    )  # fmt: skip
    # None, or a second one, would be compiled in the middle of a cycle.
    assert [len(entry.signatures) for entry in entries] == [1] * len(entries)


def test_what_was_compiled_holds_for_the_same_sources_alone() -> None:
    warm()
    kept = kernel.run._cache._cache_file
    of_these = kept._load_index()
    before, kept._source_stamp = kept._source_stamp, "other sources"
    try:
        of_others = kept._load_index()
    finally:
        kept._source_stamp = before
    assert of_these
    assert not of_others
