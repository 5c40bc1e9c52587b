"""A plugin of the test suite: how many random cases a property is tried on.

`quick`, the same cases each time, for every run. `long`, 300 others each
time, for `make faults`. HYPOTHESIS_PROFILE=thorough tries 5,000.
A property that needs more, or bears fewer, names a number of its own.
No case has a deadline: on a busy machine each would fail now and then.
"""

import os

from hypothesis import HealthCheck, settings

_slow_inputs = [HealthCheck.too_slow]
settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_slow_inputs,
)
settings.register_profile(
    "long", max_examples=300, deadline=None, suppress_health_check=_slow_inputs
)
settings.register_profile(
    "thorough", max_examples=5_000, deadline=None, suppress_health_check=_slow_inputs
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
