"""The command line `longshore`.

Commands of the layers above are found through the entry-point group `longshore.commands`: each
names a function that gets `app` and adds its commands to it. Nothing slow is imported before a
command needs it, so that help and completion answer at once.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup, TyperOption

from longshore.activities.node.system import keep_private
from longshore.client import (
    accept_command,
    array_commands,
    budget_commands,
    buy_command,
    checkpoint_commands,
    dag_commands,
    deployment_commands,
    durations_command,
    file_commands,
    job_commands,
    log_commands,
    market_commands,
    market_group,
    model_commands,
    node_commands,
    pool_commands,
    preempt_command,
    pull_command,
    purchase_commands,
    queue_command,
    run_command,
    schedule_commands,
    service_commands,
    steer_commands,
    submit_command,
    use_commands,
    watch_command,
)
from longshore.client.process import leave
from longshore.client.terminal import note
from longshore.models.errors import LongshoreError, SpecError
from longshore.models.visible import visible

INTERRUPTED = 130
WRONG_USAGE = 2
"""As click has it."""
UNEXPECTED = 70
PLUGINS = "longshore.commands"
_OTHERS = "Setup"

_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""The base of all errors of usage, which typer does not export."""


@contextmanager
def _escaping_usage() -> Iterator[None]:
    """An error of usage repeats what was typed: with hidden characters written out. What pydantic
    finds, by which typer reads values, is said as of a document."""
    try:
        yield
    except _WrongUsage as error:
        error.message = visible(_in_our_words(error))
        raise


def _in_our_words(error: Any) -> str:
    from pydantic import ValidationError

    from longshore.models.problems import describe

    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return error.message
    return "; ".join(map(describe, cause.errors(include_url=False)))


class _Commands(TyperGroup):
    """All commands; those below are parsed within `invoke`."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _escaping_usage():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _escaping_usage():
            return super().invoke(ctx)


app = typer.Typer(
    name="longshore",
    cls=_Commands,
    help="Loads GPU jobs onto machines: submit them, follow them, and ask why they wait.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Jobs are named by id, or by name for the newest one; engines by id. "
    "LONGSHORE_DEBUG=1 shows where an error comes from.",
)


def main() -> NoReturn:
    """Run the command of this process, and leave with its exit code."""
    keep_private()
    leave(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; expected errors become lines on stderr."""
    for argument in args:
        # Here for all commands: what is no UTF-8 can be sent to no server, and printed by none.
        if (shown := _bytes_written_out(argument)) != argument:
            note(f"error: the argument '{shown}' is not valid UTF-8")
            return WRONG_USAGE
    try:
        command_line()(args, prog_name="longshore")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _report(error)
    return 0


@cache
def command_line() -> TyperGroup:
    """Return every command: our own, and those of the layers above."""
    _add_plugins()
    commands = typer.main.get_group(app)
    _mend_help(commands)
    return commands


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=lambda v: _version(v)
        ),
    ] = False,
) -> None:
    """Loads GPU jobs onto machines: submit them, follow them, and ask why they wait."""


submit_command.register(app)
job_commands.register(app)
queue_command.register(app)
durations_command.register(app)
log_commands.register(app)
pull_command.register(app)
steer_commands.register(app)
array_commands.register(app)
dag_commands.register(app)
schedule_commands.register(app)
checkpoint_commands.register(app)
run_command.register(app)
watch_command.register(app)
node_commands.register(app)
pool_commands.register(app)
accept_command.register(app)
file_commands.register(app)
budget_commands.register(app)
market_commands.register(app)
market_group.register(app)
model_commands.register(app)
service_commands.register(app)
purchase_commands.register(app)
buy_command.register(app)
preempt_command.register(app)
use_commands.register(app)
deployment_commands.register(app)


def _add_plugins() -> None:
    for entry in metadata.entry_points(group=PLUGINS):
        try:
            entry.load()(app)
        except ImportError as error:
            note(f"warning: the commands of {entry.value} cannot be loaded: {error}")
    for info in (*app.registered_commands, *app.registered_groups):
        if not isinstance(info.rich_help_panel, str):
            info.rich_help_panel = _OTHERS


def _mend_help(command: Any, parent: Any = None) -> None:
    """A flag takes no value: without this, help says <bool> beside each, `--help` included. And
    lines of a docstring are joined: of all paragraphs but the first they would be kept."""
    command.help = _with_joined_lines(command.help or "")
    context = command.context_class(command, parent=parent, **command.context_settings)
    for param in command.get_params(context):
        if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
            param.metavar = ""
    for inner in command.commands.values() if isinstance(command, TyperGroup) else ():
        _mend_help(inner, context)


def _with_joined_lines(text: str) -> str:
    """Return the text with each paragraph on a line of its own, for a terminal of any width."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"longshore {metadata.version('longshore')}")
        raise typer.Exit


def _bytes_written_out(argument: str) -> str:
    r"""Return the argument with each byte that is no UTF-8 as ``\xff``."""
    return argument.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _report(error: Exception) -> int:
    if os.environ.get("LONGSHORE_DEBUG"):
        traceback.print_exception(error)
    if not isinstance(error, LongshoreError):
        note(f"error: unexpected {type(error).__name__}: {error}")
        note("This is a fault in Longshore. LONGSHORE_DEBUG=1 shows where it happened.")
        return UNEXPECTED
    for problem in error.problems if isinstance(error, SpecError) else (str(error),):
        note(f"error: {problem}")
    return error.exit_code


if __name__ == "__main__":
    main()
