"""The plugin that fails a test which leaves something behind, on tests that do."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.support.local_stack import ROOT
from tests.support.marks import marked

TESTS = """
import socket, subprocess, tempfile
import pytest

@pytest.fixture(scope="module")
def kept():
    process = subprocess.Popen(["sleep", "60"])
    yield
    process.kill()
    process.wait()

def test_process():
    subprocess.Popen(["sleep", "60"])

def test_port():
    global listening
    listening = socket.create_server(("127.0.0.1", 0))

def test_file():
    tempfile.mkstemp(prefix="forgotten")

def test_of_a_fixture(kept):
    pass

def test_tidy(tmp_path):
    (tmp_path / "file").touch()
    subprocess.run(["true"])
"""
SHORT = (
    "import tests.support.leftovers as plugin, pytest, sys; plugin.PATIENCE = 0.5; "
    "sys.exit(pytest.main(sys.argv[1:], plugins=[plugin]))"
)


def test_what_a_test_leaves_behind_fails_it_and_what_a_fixture_keeps_does_not(tmp_path: Path):
    mark = uuid.uuid4().hex
    file = tmp_path / "test_untidy.py"
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-c", SHORT, str(file), "-q", "-rA", "-p", "no:cacheprovider",
         "-c", "/dev/null", f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'base'}"],
        cwd=ROOT, env=os.environ | {"MARK": mark}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    for process in marked(mark):
        process.kill()
    failed = [line for line in done.stdout.splitlines() if "left behind:" in line]
    kinds = [line.rpartition("left behind: ")[2].split()[0] for line in failed]
    assert sorted(kinds[-3:]) == ["file", "port", "process"], done.stdout
    assert "5 passed, 3 errors" in done.stdout
