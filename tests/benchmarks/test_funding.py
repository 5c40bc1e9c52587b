"""Who pays, measured: a plain loop has the same answer."""

import json
import subprocess
import sys

from benchmarks.funding import measure
from tests.support.local_stack import ROOT

SMALL = {"placements": 1500, "envelopes": 150, "tenants": 30, "waiting": 200, "changes": 10}


def test_a_plain_loop_has_the_same_answer_and_takes_longer():
    made = measure(**SMALL)
    assert made.covered_anew > 0
    assert 0 < made.funded < made.waiting
    assert made.times_change > made.times_whole > 1


def test_it_is_told_as_json():
    asked = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.funding", *asked, "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["us_a_job"] > 0
    assert told["placements"] == 1500


def test_what_charges_add_to_a_commit():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.funding", "--commits", "--placements", "40",
         "--turns", "1", "--at-once", "4", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["without"] > 0
    assert told["of_the_rate"] > 0
    assert told["deadlocks"] == 0
