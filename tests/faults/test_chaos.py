"""The program behind `make chaos`: its moments follow from the seed, and a short run ends well."""

import subprocess
import sys

import pytest

from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.schedule import CALM_AT_END, moments
from tests.support.local_stack import ROOT


def test_the_same_seed_means_the_same_faults():
    names = list(FAULTS)
    first = moments(4711, 600, names, every=6)
    assert first == moments(4711, 600, names[::-1], every=6)
    assert first != moments(4712, 600, names, every=6)
    assert [moment.at for moment in first] == sorted(moment.at for moment in first)
    assert first[-1].at < 600 - CALM_AT_END


def test_every_fault_comes_about_as_often_as_the_others():
    counts = [0] * len(FAULTS)
    for moment in moments(1, 3600, list(FAULTS), every=5):
        counts[list(FAULTS).index(moment.fault)] += 1
    assert max(counts) - min(counts) <= 1


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_minute_of_chaos_ends_without_a_violation():
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.chaos", "--minutes", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "violations: 0" in run.stdout
