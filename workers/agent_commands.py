"""The command `longshore agent`.

Every command line has its options, so what runs the agent is imported when it runs: that has the
SDK of Temporal.
"""

import logging
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from longshore.client.process import leave, run
from longshore.models.bounds import GIVEN
from longshore.models.errors import LongshoreError, SpecError
from longshore.models.job import Tier
from longshore.models.problems import Problem, find
from longshore.models.settings import Settings
from longshore.models.units import (
    MOST,
    MOST_CPUS,
    parse_duration,
    parse_gb,
    parse_gb_per_second,
    parse_watts,
)
from longshore.models.visible import shown

if TYPE_CHECKING:
    from longshore.activities.node.inventory import SimulatedGPUs
    from longshore.workers.agent_options import AgentOptions


def register(app: typer.Typer) -> None:
    """Add the command of the node agent to the command line."""
    app.command()(agent)


def agent(
    node_id: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of this node, the same at every start; by default the hostname. Given more "
            "than once, it is the first that no other live agent has: for machines that are all "
            "started with one command."
        ),
    ] = None,
    pool: Annotated[str, typer.Option(help="The pool that may place jobs here.")] = "default",
    tier: Annotated[
        Tier,
        typer.Option(case_sensitive=False, help="Which jobs it takes: those of its tier."),
    ] = Tier.FAST,
    provider: Annotated[str, typer.Option(help="Provider of this machine.")] = "own",
    block: Annotated[
        str | None, typer.Option(help="Id of the block that this machine belongs to.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Expiry of the node, e.g. 2026-11-20T12:00:00Z.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="Expiry as a time from now, e.g. 8h.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of the node, KEY=VALUE. Repeatable.")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(help="Simulate these GPUs, e.g. 8xH100-80GB; jobs run without GPUs."),
    ] = None,
    mig: Annotated[
        str | None,
        typer.Option(help="Indices of the simulated GPUs in MIG mode, e.g. 0,1."),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.001, help="CPU cores to offer (default: those found).")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(help="Main memory to offer, e.g. 512GB (default: that found).")
    ] = None,
    storage_bandwidth: Annotated[
        str | None,
        typer.Option(help="Storage bandwidth to offer, e.g. 10GB/s (default: no limit)."),
    ] = None,
    power: Annotated[
        str | None,
        typer.Option(help="Power budget of its jobs, e.g. 5.6kW (default: no limit)."),
    ] = None,
    gpu_power: Annotated[
        str | None, typer.Option(help="Power limit of each simulated GPU, e.g. 700W.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address at which other nodes reach this one, for jobs that span nodes (default: "
            "its address towards the Temporal server)."
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of runs, logs and checkpoints (default: in the state folder)."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the join token, in place of LONGSHORE_AGENT_TOKEN."),
    ] = None,
) -> None:
    """Run the agent of this machine: it registers as a node and runs the jobs placed on it.

    Runs in the foreground until Ctrl-C or SIGTERM, then stops its jobs with their grace; a
    second one kills them. Ends with code 77 when the join token or the node id is refused.
    """
    from longshore.workers import logs
    from longshore.workers.agent import run_agent

    try:
        settings = Settings()
        name, *others = node_id or [node_id_from(socket.gethostname())]
        options = _options(
            {
                "node_id": name,
                "other_ids": others,
                "work_dir": (work_dir or settings.state_dir / "agents" / name).absolute(),
                "token": _token(settings, token_file),
                "pool": pool,
                "tier": tier,
                "provider": provider,
                "block_id": block,
                "expires_at": _end(expires_at, expires_in),
                "labels": _labels(label or []),
                "simulated": _simulated(simulate, mig, gpu_power),
                "cpus": _cores(cpus),
                "ram": _amount("--ram", ram, parse_gb, "GB"),
                "storage_bandwidth": _amount(
                    "--storage-bandwidth", storage_bandwidth, parse_gb_per_second, "GB/s"
                ),
                "power": _amount("--power", power, parse_watts, "W"),
                "address": address,
            }
        )
        logs.set_up(settings, node=name, pool=pool)
        run(run_agent(options, settings))
    except LongshoreError as error:
        typer.echo(f"longshore agent: {error}", err=True)
        leave(error.exit_code)
    except Exception:
        logging.getLogger(__name__).exception("the agent failed")
        leave(LongshoreError.exit_code)
    leave(0)


def node_id_from(hostname: str) -> str:
    """Return a node's name made from a hostname: ``GPU_Box-1.local`` is ``gpu_box-1.local``."""
    name = re.sub(r"[^a-z0-9._-]+", "-", hostname.lower())[:63].strip("._-")
    return name or "node"


def _simulated(
    simulate: str | None, mig: str | None, gpu_power: str | None
) -> "SimulatedGPUs | None":
    if simulate:
        from longshore.activities.node.inventory import parse_simulated

        power = _amount("--gpu-power", gpu_power, parse_watts, "W")
        return parse_simulated(simulate, mig, power or 0.0)
    for option, given, what in (("--mig", mig, "the mode"), ("--gpu-power", gpu_power, "it")):
        if given:
            problem = f"{option} is for simulated GPUs: of real ones the driver tells {what}"
            raise SpecError(option, (problem,))
    return None


def _end(expires_at: str | None, expires_in: str | None) -> str | datetime | None:
    if expires_in is None:
        return expires_at
    if expires_at is not None:
        raise SpecError("--expires-in", ("--expires-in: give this or --expires-at, not both",))
    try:
        return datetime.now(UTC) + parse_duration(expires_in)
    except (ValueError, OverflowError) as error:
        raise SpecError("--expires-in", (f"--expires-in {expires_in}: {error}",)) from None


def _options(values: dict[str, object]) -> "AgentOptions":
    from longshore.workers.agent_options import AgentOptions

    try:
        return AgentOptions.model_validate(values, context=GIVEN)
    except ValidationError as error:
        problems = tuple(f"--{_option(each)}: {each.message}" for each in find(error))
        raise SpecError("longshore agent", problems) from None


def _option(problem: Problem) -> str:
    """Return the option whose value a mistake is in, with the part of it: ``label rack``."""
    field, *part = map(str, problem.place)
    return " ".join([_OPTIONS.get(field, field.replace("_", "-")), *map(shown, part)])


_OPTIONS = {"labels": "label", "block_id": "block"}
"""Options by fields of another name."""


def _token(settings: Settings, token_file: Path | None) -> str:
    if token_file is None:
        return settings.resolve_agent_token()
    try:
        return token_file.read_text().strip()
    except OSError as error:
        raise SpecError(
            "--token-file", (f"--token-file: {token_file}: {error.strerror}",)
        ) from None


def _labels(pairs: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SpecError("--label", (f"--label: expected KEY=VALUE, not {shown(pair)}",))
        labels[key] = value
    return labels


def _amount(
    option: str, text: str | None, parse: Callable[[object], float], unit: str
) -> float | None:
    try:
        amount = None if text is None else parse(text)
    except ValueError as error:
        raise SpecError(option, (f"{option}: {error}",)) from None
    if amount is not None and amount > MOST:
        raise SpecError(
            option, (f"{option}: expected {MOST:,.0f} {unit} at most, not {shown(text)}",)
        )
    return amount


def _cores(cpus: float | None) -> float | None:
    if cpus is None or cpus <= MOST_CPUS:
        return cpus
    raise SpecError("--cpus", (f"--cpus: expected {MOST_CPUS:,} cores at most, not {cpus:g}",))
