"""A job that works a little, for a given time: hashes blocks for a share of it, sleeps the rest.

    python load.py --seconds 6 --share 0.05

It stands for real work where only shapes and times matter, as in `longshore demo`, and shows the
two things that every job may use: which GPUs it was given, and the file for its progress.
Standard library only, so that dozens of them are light.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

STEP = 0.25
"""Seconds between two reports of progress."""
BLOCK = bytes(64 * 1024)


def main() -> None:
    arguments = parse()
    print(f"{who_am_i()}: works {arguments.seconds:g} s on {which_gpus()}", flush=True)
    began, hashed = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < arguments.seconds:
        step = min(STEP, arguments.seconds - elapsed)
        hashed += work(step * arguments.share)
        report(elapsed / arguments.seconds, f"{hashed / 1e6:.0f} MB hashed")
        time.sleep(step * (1 - arguments.share))
    report(1.0, "done")
    print(f"{who_am_i()}: done, {hashed / 1e6:.0f} MB hashed", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Work a little, for a given time.")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long")
    parser.add_argument("--share", type=float, default=0.04, help="busy share of a core, 0 to 1")
    return parser.parse_args()


def who_am_i() -> str:
    job, attempt = os.environ.get("LONGSHORE_JOB_NAME"), os.environ.get("LONGSHORE_ATTEMPT")
    return f"{job}, attempt {attempt}" if job else "load"


def which_gpus() -> str:
    """Say which GPUs this process may use: those that Longshore gave it, and no others."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    node = os.environ.get("LONGSHORE_NODE_ID", "this machine")
    kind = "simulated GPUs" if os.environ.get("LONGSHORE_SIMULATED_GPUS") else "GPUs"
    return f"{node}, {kind} {visible or 'none'}"


def work(seconds: float) -> int:
    """Hash blocks for so long; return how many bytes."""
    until, hashed = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        hashlib.sha256(BLOCK).digest()
        hashed += len(BLOCK)
    return hashed


def report(fraction: float, message: str) -> None:
    """Write one line over the last one; `longshore job` shows it."""
    if path := os.environ.get("LONGSHORE_PROGRESS_FILE"):
        Path(path).write_text(f"{min(fraction, 1.0):.2f} {message}\n")


if __name__ == "__main__":
    main()
    sys.exit(0)
