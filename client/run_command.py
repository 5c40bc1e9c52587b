"""`longshore run`: a script of the folder that one is in, on a node, as if it ran here."""

import inspect
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from longshore.client.submit_command import COMMAND, SCRIPT, WithCommand, submit
from longshore.client.terminal import note
from longshore.models.visible import shown

_BY_SUFFIX = {".py": ("python3", "-u"), ".sh": ("sh",)}
"""Python keeps back what it prints into a file, and who waits for a script reads as it prints."""
_PACKAGES = ("uv.lock", "requirements.txt")
"""In this order: a lock has all versions."""
_LEFT_OUT = ("file", "wait", "follow", "upload", "no_upload")
"""Flags of `submit` that `run` decides itself."""


_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""The base of all errors of usage, which typer does not export."""


class _WithScript(WithCommand):
    """Says where what a script gets stands: who runs `python` puts it behind the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except _WrongUsage as error:
            script = next((word for word in given if Path(word).is_file()), None)
            of_script = type(error).__name__ == "NoSuchOption" or "extra argument" in error.message
            if script is not None and of_script and "--" not in given:
                error.message += f". What {shown(script)} gets stands behind --: longshore run "
                error.message += f"{shlex.quote(script)} -- --its-flag"
            raise


def register(app: typer.Typer) -> None:
    app.command(
        cls=_WithScript,
        rich_help_panel="Jobs",
        options_metavar="[OPTIONS]",
        epilog="It stores the folder as `longshore submit --upload .` does, and takes its flags.",
    )(run)


def run(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(help="A script of this folder: .py, .sh, or a file with a #! line."),
    ],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for it.")] = False,
    **flags: Any,
) -> None:
    """Run a script of this folder as a job, and print what it writes.

    longshore run train.py --gpus 2

    longshore run train.py --gpus 2 -- --epochs 3

    The folder that you are in comes along, without what Git ignores (or .longshoreignore says).
    Its uv.lock, or else its requirements.txt, says which Python packages the job gets.
    Ctrl-C leaves the job running.
    """
    arguments: tuple[str, ...] = context.meta.get(COMMAND, ())
    words = command_for(script)
    context.meta[COMMAND], context.meta[SCRIPT] = (*words, *arguments), words[-1]
    silent = bool(flags.get("as_json"))
    set_ones = {each.partition("=")[0].partition(".")[0] for each in flags.get("values") or ()}
    chosen = {name for name, value in flags.items() if value is not None} | set_ones
    found = environment_of(Path())
    if found is not None and not {"environment", "image"} & chosen:  # an image has its packages
        flags["environment"] = found
        if not (silent or flags.get("quiet")):
            note(f"Environment: {found} (--environment says another, or none)")
    submit(context, wait=not detach, follow=not (detach or silent), upload=".", **flags)


def environment_of(folder: Path) -> str | None:
    """Return the file that says which packages a script of this folder needs; None without."""
    return next((name for name in _PACKAGES if (folder / name).is_file()), None)


def command_for(script: str) -> tuple[str, ...]:
    """Return how a script of the current folder is run there. Raises BadParameter."""
    here, path = Path.cwd().resolve(), Path(script).resolve()
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {shown(script)} here")
    if not path.is_relative_to(here):
        raise typer.BadParameter(
            f"{shown(script)} is not in this folder, which is what the job gets: go to a folder "
            "that it is in"
        )
    within = str(path.relative_to(here))
    if program := _BY_SUFFIX.get(path.suffix):
        return (*program, within)
    with path.open("rb") as file:
        has_program = file.read(2) == b"#!"
    if has_program and os.access(path, os.X_OK):
        return (f"./{within}",)
    raise typer.BadParameter(
        f"{shown(script)} says not what runs it: give a .py or .sh file, or one with a #! line "
        "that may be executed; or longshore submit --upload . -- COMMAND"
    )


def _with_flags_of_submit() -> None:
    """Give `run` the options of `submit`: typer reads them from the signature."""
    own = [each for name, each in inspect.signature(run).parameters.items() if name != "flags"]
    theirs = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(submit).parameters.items()
        if name not in ("context", *_LEFT_OUT)
    ]
    run.__signature__ = inspect.Signature([*own, *theirs])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *theirs)}


_with_flags_of_submit()
