"""The script that signals the processes of a container, on a /proc that is made up."""

import subprocess
from pathlib import Path

import pytest

from longshore.activities.node.container_signals import signal_command, with_signal

STAND_INS = """
kill() { echo "kill $*"; [ "$1" != -STOP ] || [ "$may_hold" ]; }
sleep() { echo "sleep $1"; }
"""
"""In place of what the shell has: nothing is signalled here."""
TERM_HANDLED = "4000"


@pytest.mark.parametrize(
    ("may_hold", "state", "said"),
    [
        ("1", "T", ["kill -STOP 5", "kill -15 -1", "kill -CONT 5"]),
        ("", "S", ["kill -STOP 5", "kill -15 -1"]),
        ("1", "S", ["kill -STOP 5", *["sleep 0.1"] * 9, "kill -15 -1", "kill -CONT 5"]),
    ],
    ids=["held", "refused", "never seen as held"],
)
def test_a_stop_is_sent_whether_the_first_process_can_be_held_or_not(
    tmp_path: Path, may_hold: str, state: str, said: list[str]
) -> None:
    _process(tmp_path, 5, parent=1, state=state, handles="0")
    _process(tmp_path, 6, parent=5, state="Z", handles=TERM_HANDLED)
    inside = signal_command("podman", "name")[-1]
    guard = '[ "$PPID" = 0 ] || exit 126'
    assert guard in inside
    assert "/proc/" in inside
    script = STAND_INS + inside.replace(guard, "").replace("/proc/", f"{tmp_path}/")
    ended = subprocess.run(
        ["sh", "-c", script, "sh", "15", "stop"], check=True, timeout=60,
        capture_output=True, text=True, env={"may_hold": may_hold},
    )  # fmt: skip
    assert ended.stdout.splitlines() == said


def test_a_stop_reaches_the_container_of_an_older_agent() -> None:
    older = ["podman", "kill", "--signal", "longshore-job-1"]
    told = ["podman", "kill", "--signal", "15", "longshore-job-1"]
    assert with_signal(older, 15, stop=True) == with_signal(older, 15, stop=False) == told
    newer = signal_command("kill", "kill")
    assert with_signal(newer, 10, stop=True) == [*newer, "10", "stop"]
    assert with_signal(newer, 10, stop=False) == [*newer, "10", "go-on"]


def _process(proc: Path, pid: int, *, parent: int, state: str, handles: str) -> None:
    fields = {"State": f"{state} (as told)", "PPid": parent, "SigIgn": "0", "SigCgt": handles}
    (proc / str(pid)).mkdir()
    lines = "".join(f"{name}:\t{value}\n" for name, value in fields.items())
    (proc / str(pid) / "status").write_text(lines)
