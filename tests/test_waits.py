"""The plugin that shows what the tasks of a test wait for that ran out of time."""

import subprocess
import sys
from pathlib import Path

from tests.support.local_stack import ROOT

TESTS = """
import asyncio
import pytest

@pytest.mark.timeout(1)
async def test_it():
    await asyncio.gather(nobody_answers(), asyncio.sleep(60))

async def nobody_answers():
    await asyncio.Event().wait()

@pytest.mark.timeout(1)
def test_without_a_loop():
    while True:
        pass
"""


def test_each_task_is_shown_with_its_lines(tmp_path: Path):
    file = tmp_path / "test_late.py"
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider",
         "-p", "tests.support.waits", "-o", "asyncio_mode=auto", "-c", "/dev/null",
         f"--rootdir={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "2 failed" in done.stdout
    shown = done.stdout.partition("what its tasks wait for")[2]
    assert "await asyncio.Event().wait()" in shown
    assert "in nobody_answers" in shown
