"""Hypothesis profiles: `quick` for every run, `thorough` with HYPOTHESIS_PROFILE=thorough."""

import os

from hypothesis import HealthCheck, settings

_slow_inputs = [HealthCheck.too_slow]
settings.register_profile(
    "quick",
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_slow_inputs,
)
settings.register_profile(
    "thorough", max_examples=5_000, deadline=None, suppress_health_check=_slow_inputs
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
