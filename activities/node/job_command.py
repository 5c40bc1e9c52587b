"""From a process that was just forked to the command of a job; from the standard library alone."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Sequence

from longshore.activities.node import element_runner
from longshore.activities.node.system import NOT_EXECUTABLE, NOT_FOUND, die_with_parent

_LONGEST_NAME = 200
_TOO_LONG = (
    "its arguments and environment variables are too long, one of them (Linux takes 131,071 bytes "
    "of each) or all together"
)


def become_job(plan: dict, parent: int, go: int, error: int, output: Sequence[int]) -> None:
    """In the child: wait to be let go, then turn into the job's command. Never returns.

    `output` is where stdout and stderr go.
    """
    code, message = NOT_FOUND, ""
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent or not os.read(go, 1):
            os._exit(NOT_FOUND)
        _reset_signals()
        _redirect(output)
        os.umask(plan["umask"])
        if plan.get("elements"):
            os.chdir(plan["cwd"])
            os.close(error)  # as it is where the command begins
            element_runner.run(plan["folder"], plan)
            os._exit(0)
        code, message = _execute(plan)
    except BaseException as problem:  # whatever it is, the child must not live on as a supervisor
        message = f"{type(problem).__name__}: {problem}"
    with contextlib.suppress(OSError):
        os.write(error, json.dumps({"code": code, "message": message}).encode())
    os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _redirect(output: Sequence[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for target, fd in enumerate((null, *output)):
        os.dup2(fd, target)


def _execute(plan: dict) -> tuple[int, str]:
    """Replace this process by the command; return exit code and reason where that fails."""
    try:
        os.chdir(plan["cwd"])
    except OSError as error:
        return NOT_FOUND, f"the working folder {plan['cwd']} cannot be entered: {error.strerror}"
    command = plan["argv"][0]
    try:
        os.execvpe(command, plan["argv"], plan["env"])
    except FileNotFoundError:
        return NOT_FOUND, f"command not found: {command}"
    except OSError as error:
        why = _TOO_LONG if error.errno == errno.E2BIG else error.strerror
        name = command if len(command) <= _LONGEST_NAME else f"{command[:_LONGEST_NAME]}…"
        return NOT_EXECUTABLE, f"{name} cannot be executed: {why}"
