"""Detached processes: recorded, stopped in time, and never mistaken for somebody else's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.models.errors import StackError
from longshore.workers.processes import LOG_LIMIT, Processes, wait_until, write_atomically

SLEEPER = (sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()")
SAVER = (
    sys.executable,
    "-c",
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
    "print('up', flush=True); signal.sigwait([signal.SIGTERM]); print('saved')",
)
STUBBORN = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True));"
    "print('up', flush=True)\nwhile True: signal.pause()",
)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    ours = Processes(tmp_path / "run")
    yield ours
    ours.stop(*(entry.name for entry in ours.recorded()), grace=0.0)


def is_up(processes: Processes, name: str) -> bool:
    return wait_until(lambda: "up" in processes.log(name).read_text(), 60.0)


def test_a_process_is_detached_recorded_and_stopped(processes: Processes):
    entry = processes.spawn("sleeper", SLEEPER, {"EXTRA": "1"}, address="here")
    assert os.getsid(entry.pid) == entry.pid != os.getsid(0)
    assert processes.running("sleeper") == entry
    assert Processes(processes.folder).recorded() == (entry,)
    assert is_up(processes, "sleeper")
    assert processes.stop("sleeper") == ("sleeper",)
    assert processes.running("sleeper") is None
    assert processes.recorded() == ()
    assert processes.stop("sleeper") == ()


def test_one_name_runs_once(processes: Processes):
    processes.spawn("sleeper", SLEEPER)
    with pytest.raises(StackError, match="sleeper runs already"):
        processes.spawn("sleeper", SLEEPER)


def test_who_does_not_stop_is_asked_once_and_then_killed(processes: Processes):
    processes.spawn("stubborn", STUBBORN)
    assert is_up(processes, "stubborn")
    assert processes.stop("stubborn", grace=5.0) == ("stubborn",)
    assert processes.log("stubborn").read_text() == "up\nasked\n"


def test_a_paused_process_is_asked_as_any_other(processes: Processes):
    entry = processes.spawn("saver", SAVER)
    assert is_up(processes, "saver")
    os.kill(entry.pid, signal.SIGSTOP)
    assert processes.stop("saver", grace=60.0) == ("saver",)
    assert processes.log("saver").read_text() == "up\nsaved\n"


def test_a_process_with_another_start_time_is_left_alone(processes: Processes):
    bystander = subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL)
    try:
        entry = processes.record("sleeper", bystander.pid, SLEEPER)
        earlier = entry.model_copy(update={"started": entry.started - 60})
        write_atomically(processes.folder / "sleeper.json", earlier.model_dump_json())
        assert processes.running("sleeper") is None
        assert processes.stop("sleeper") == ()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_was_killed_is_not_running(processes: Processes):
    entry = processes.spawn("sleeper", SLEEPER)
    os.kill(entry.pid, signal.SIGKILL)
    assert wait_until(lambda: processes.running("sleeper") is None, 60.0)
    assert processes.spawn("sleeper", SLEEPER).pid != entry.pid


def test_last_words_are_the_end_of_the_log(processes: Processes):
    processes.spawn("talker", (sys.executable, "-c", "for n in range(50): print('line', n)"))
    assert wait_until(lambda: processes.running("talker") is None, 60.0)
    words = processes.last_words("talker", lines=2)
    assert words.splitlines()[1:] == ["    line 48", "    line 49"]
    assert str(processes.log("talker")) in words
    assert processes.last_words("nobody") == ""


def test_a_long_log_is_set_aside(processes: Processes):
    processes.folder.mkdir()
    processes.log("sleeper").write_bytes(b"x" * (LOG_LIMIT + 1))
    processes.spawn("sleeper", SLEEPER)
    assert is_up(processes, "sleeper")
    assert processes.log("sleeper").read_text() == "up\n"
    assert (processes.folder / "sleeper.log.1").stat().st_size == LOG_LIMIT + 1


def test_a_program_that_is_not_there_is_named(processes: Processes):
    with pytest.raises(StackError, match=r"cannot start ghost \(/no/such\): No such file"):
        processes.spawn("ghost", ("/no/such",))


def test_a_record_cut_short_counts_as_none(processes: Processes):
    processes.folder.mkdir()
    (processes.folder / "half.json").write_text('{"name": "half", "pi')
    assert processes.recorded() == ()
    assert processes.running("half") is None
