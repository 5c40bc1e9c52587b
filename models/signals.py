"""Signals of Linux by name: on the machine that a job file is read on others may be known."""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from longshore.models.bounds import is_taken
from longshore.models.visible import shown

SIGNALS = (
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL",
    "SIGINT", "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT",
    "SIGRTMAX", "SIGRTMIN", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP",
    "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH",
    "SIGXCPU", "SIGXFSZ",
)  # fmt: skip


def _known(name: str, info: ValidationInfo) -> str:
    if name in SIGNALS:
        return name
    if is_taken(info):
        return "SIGTERM"  # agents have sent that for a name that they do not know
    raise ValueError(f"must be the name of a signal, such as SIGTERM, got {shown(name)}")


SignalName = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": list(SIGNALS)})
]
