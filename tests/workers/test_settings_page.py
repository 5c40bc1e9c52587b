"""What is made from the settings: the page, the example file, and `longshore config`."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from longshore.models.settings import Settings
from longshore.workers.settings_page import PAGE, example_file, page
from tests.support.home import PROGRAM

SECRET = "hunter2-secret"


def test_the_page_is_what_the_settings_say():
    assert PAGE.read_text() == page(), "write it anew with `make docs`"


def test_the_page_has_lists_as_they_are_written():
    assert '`LONGSHORE_MARKET_WATCH`, default `["8xH100"]`' in page()
    assert "`LONGSHORE_IMAGE_FOLDERS`, default `[]`" in page()


def test_the_example_is_a_settings_file_with_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    entries = [
        line.removeprefix("# ") for line in example_file().splitlines() if " = " in line
    ]  # fmt: skip
    entries = [entry for entry in entries if entry.split(" = ")[0] in Settings.model_fields]
    assert len(entries) == len(Settings.model_fields)
    file = tmp_path / "longshore.toml"
    file.write_text("\n".join(entries))
    monkeypatch.setenv("LONGSHORE_CONFIG", str(file))
    assert Settings().model_fields_set == set(Settings.model_fields)


def config(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "config", *args],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_config_shows_value_and_origin_and_no_secret(tmp_path: Path):
    file = tmp_path / "longshore.toml"
    file.write_text(f'agent_token = "{SECRET}"\n\n[log]\nlevel = "debug"\n')
    env = {
        "LONGSHORE_CONFIG": str(file),
        "LONGSHORE_DATABASE_URL": f"postgresql://me:{SECRET}@db.example.com/x",
        "LONGSHORE_LOG_STORE": f"s3://key:{SECRET}@bucket/logs",
    }
    done = config("--json", **env)
    assert done.returncode == 0, done.stderr
    rows = {row["setting"]: (row["value"], row["from"]) for row in json.loads(done.stdout)}
    assert rows["log_level"] == ("DEBUG", f"{file}:4")
    assert rows["database_url"] == (
        "postgresql://me:***@db.example.com/x", "LONGSHORE_DATABASE_URL",
    )  # fmt: skip
    assert rows["agent_token"] == ("**********", f"{file}:1")
    assert rows["node_lost_after"] == ("12s", "default")
    table = config(**env)
    assert "s3://key:***@bucket/logs" in table.stdout
    assert re.search(r'^market_watch +\["8xH100"\] +default', table.stdout, re.MULTILINE)
    assert SECRET not in done.stdout + done.stderr + table.stdout + table.stderr


def test_a_mistake_in_the_settings_is_a_line_not_a_stack(tmp_path: Path):
    file = tmp_path / "longshore.toml"
    file.write_text("temporal_port = 0\n")
    done = config(LONGSHORE_CONFIG=str(file))
    assert (done.returncode, done.stdout) == (65, "")
    assert done.stderr == f"error: {file}:1: temporal_port: must be at least 1, got 0\n"
