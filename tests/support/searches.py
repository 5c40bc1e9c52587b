"""A plugin of the test suite: how many random cases a property is tried on.

`quick`, the same cases each time, for every run. `long`, 300 others each
time, for `make faults`. HYPOTHESIS_PROFILE=thorough tries 5,000.
A property that needs more, or bears fewer, names a number of its own (`examples`), and so
does a test that makes its scenes from seeds (`seeds`): `long` and `thorough` multiply both.
No case has a deadline: on a busy machine each would fail now and then.
"""

import os

from hypothesis import HealthCheck, settings

_slow_inputs = [HealthCheck.too_slow]
settings.register_profile(
    "quick",
    max_examples=15,
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
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
_TIMES = {"quick": 1, "long": 20, "thorough": 330}[_PROFILE]
settings.load_profile(_PROFILE)


def examples(number: int) -> settings:
    """Return settings of a property that is tried on so many cases in every run."""
    return settings(max_examples=number * _TIMES)


def seeds(number: int) -> range:
    """Return the seeds of a test that makes its own scenes: so many in every run."""
    return range(number * _TIMES)
