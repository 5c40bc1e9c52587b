"""The compiled pass is loaded beside the work, and is the same one for every plan then."""

from activities.warming import Warming
from scheduling import bulk
from scheduling.bulk import heaps, kernel, rests


async def test_a_long_plan_has_the_pass_loaded_and_nothing_is_compiled_twice() -> None:
    warming = Warming()
    warming.after(0.01)
    await warming.done()
    warming.after(1.0)
    await warming.done()
    assert bulk.is_loaded()
    assert bulk.is_worth(bulk.FEWEST)
    compiled = [
        found
        for module in (kernel, rests, heaps)
        for found in vars(module).values()
        if hasattr(found, "signatures")
    ]
    # A second signature would be compiled in the middle of a cycle.
    assert [len(found.signatures) for found in compiled] == [1] * len(compiled)
