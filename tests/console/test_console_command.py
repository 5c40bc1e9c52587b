"""The process: `longshore console`, and `longshore up` and `down` with it."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from longshore.console.security import ensure_token
from longshore.models.settings import Settings
from tests.support.console import running_console
from tests.support.home import PROGRAM


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = longshore(tmp_path, "console", "--address", str(port))
    assert done.returncode == 71
    assert done.stderr.startswith(f"error: the console cannot listen at 127.0.0.1:{port}: ")
    assert "LONGSHORE_CONSOLE_ADDRESS" in done.stderr


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("address", "says"), [("nonsense", "--address must be a port"), ("off", "--address, such as")]
)
def test_an_address_that_is_none_is_said(tmp_path: Path, address: str, says: str) -> None:
    done = longshore(tmp_path, "console", "--address", address)
    assert done.returncode == 65
    assert says in done.stderr


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    with running_console(tmp_path) as console:
        assert console.stranger.get("/healthz").status_code == 200
        assert console.end() == 0
    assert "Traceback" not in console.log.read_text()


def test_a_token_is_made_once_and_a_setting_takes_its_place(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    made = ensure_token(settings)
    assert len(made) >= 32
    assert ensure_token(settings) == made
    assert list((tmp_path / "state").iterdir()) == [tmp_path / "state" / "console-token"]
    assert ensure_token(Settings(state_dir=tmp_path / "none", console_token="mine")) == "mine"  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "none").exists()


def longshore(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"LONGSHORE_STATE_DIR": str(folder)}
    return subprocess.run(
        [PROGRAM, *args], env=env, capture_output=True, text=True, timeout=60, check=False
    )
