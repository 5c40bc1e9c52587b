"""Checks of this machine: state folder, disk, stores, join token, ports."""

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
from temporalio.envconfig import ClientConfig

from longshore.activities.storage import connect, make_folder
from longshore.models.addresses import host_and_port, url_of, without_secrets
from longshore.models.settings import Settings
from longshore.models.settings_file import find_settings_file
from longshore.workers import temporal_server
from longshore.workers.doctor.findings import Finding, fail, ok, warn
from longshore.workers.processes import Processes, listens

DISK_FAILS, DISK_WARNS = 1.0, 10.0
"""GB that must be free, and that should be."""


def look_at(settings: Settings) -> Iterator[Finding]:
    """Yield the findings. Blocks: a store may be far away."""
    yield _disk(settings.state_dir)
    yield _store(
        settings, "log store", "log_store", settings.resolve_log_store(),
        "jobs run without their logs",
    )  # fmt: skip
    yield _store(
        settings, "checkpoint store", "checkpoint_store", settings.resolve_checkpoint_store(),
        "checkpoints stay on their nodes",
    )  # fmt: skip
    yield _store(
        settings, "artifact store", "artifact_store", settings.resolve_artifact_store(),
        "jobs cannot bring their code",
    )  # fmt: skip
    yield _token(settings)
    yield from _settings_file()
    if not ClientConfig.load_client_connect_config().get("target_host"):
        yield from _ports_of_temporal(settings)
    yield _console(settings)
    yield from _own_addresses(settings)


def _disk(folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return fail(
            "disk",
            f"{there} cannot be written to",
            "Give it to this user, or choose another folder with LONGSHORE_STATE_DIR.",
        )
    free = shutil.disk_usage(there).free / 1e9
    says = f"{free:.1f} GB are free for the state folder {folder}"
    mend = "Make room, or choose another folder with LONGSHORE_STATE_DIR."
    if free < DISK_FAILS:
        return fail("disk", says, mend)
    return warn("disk", says, mend) if free < DISK_WARNS else ok("disk", says)


def _store(settings: Settings, name: str, setting: str, url: str, without: str) -> Finding:
    """Write to a store, read that back and remove it; `without` says what a job lacks else."""
    shown = without_secrets(url)
    if getattr(settings, setting) is None and not settings.state_dir.exists():
        return ok(name, f"will be made as {shown}")
    probe = os.urandom(16)
    try:
        fs, root = connect(url)
        path = f"{root}/doctor-{uuid.uuid4().hex}"
        make_folder(fs, root)
        fs.pipe_file(path, probe)
        same = fs.cat_file(path) == probe
        fs.rm_file(path)
    except Exception as error:  # a store may raise anything
        why = without_secrets(f"{type(error).__name__}: {error}")
        return fail(
            name,
            f"{shown} cannot be written and read ({why})",
            f"Check the setting {setting} and its credentials; {without} until then.",
        )
    if not same:
        return fail(
            name,
            f"{shown} returned other bytes than it was given",
            f"Choose another {setting}: this one does not keep what is written.",
        )
    return ok(name, f"{shown} can be written and read")


def _token(settings: Settings) -> Finding:
    if settings.agent_token:
        return ok("join token", "is set as agent_token")
    path = settings.state_dir / "agent-token"
    if not path.exists():
        return fail(
            "join token",
            f"none is set, and there is no {path}",
            "Set LONGSHORE_AGENT_TOKEN, or let `longshore up` make one.",
        )
    if _readable_by_others(path):
        return fail(
            "join token",
            f"others on this machine can read {path}",
            f"Run `chmod 600 {path}`; whoever read it can register nodes.",
        )
    return ok("join token", f"is in {path}, readable by its owner alone")


def _settings_file() -> Iterator[Finding]:
    path = find_settings_file()
    if path is None or not path.is_file():
        return
    secret = any(word in path.read_text() for word in ("agent_token", "database_url"))
    if secret and _readable_by_others(path):
        yield warn(
            "settings",
            f"{path} holds secrets, and others on this machine can read it",
            f"Run `chmod 600 {path}`.",
        )


def _ports_of_temporal(settings: Settings) -> Iterator[Finding]:
    processes = Processes(settings.state_dir / "run")
    if processes.running(temporal_server.NAME):
        return
    for port, setting in (
        (settings.temporal_port, "LONGSHORE_TEMPORAL_PORT"),
        (settings.temporal_ui_port, "LONGSHORE_TEMPORAL_UI_PORT"),
    ):
        if temporal_server.is_free(port):
            yield ok("ports", f"port {port} is free for `longshore up`")
            continue
        door = processes.running(temporal_server.DOOR)
        if door is not None and door.address.endswith(f":{port}"):
            continue  # the stack's own, which the next server finds
        yield fail(
            "ports",
            f"port {port} is in use by {temporal_server.user_of(port)}",
            f"End that, or choose another port with {setting}; else `longshore up` cannot start.",
        )


def _console(settings: Settings) -> Finding:
    """Say whether the console answers, or could be started where it is to listen."""
    address = settings.console_address
    if address is None:
        return ok("console", "console_address is off: no pages, no REST API")
    url = url_of(address)
    if _is_console(url):
        return ok("console", f"its pages and its REST API are at {url}")
    _, port = host_and_port(address)
    # As `longshore up` asks: a connection that is closing has its port too, and nobody listens.
    if temporal_server.is_free(port):
        return ok("console", f"{address} is free for `longshore up`")
    return fail(
        "console",
        f"port {port} is in use by {temporal_server.user_of(port)}, and that is no console",
        "End that, or choose another address with LONGSHORE_CONSOLE_ADDRESS (`off` for none).",
    )


def _is_console(url: str) -> bool:
    try:
        answer = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False)
        return answer.status_code == 200 and answer.json() == {"ok": True}
    except (httpx.HTTPError, ValueError):
        return False


def _own_addresses(settings: Settings) -> Iterator[Finding]:
    for name, address in (
        ("metrics_address", settings.metrics_address),
        ("health_address", settings.health_address),
    ):
        if address is None:
            continue
        if listens(address):
            yield ok("ports", f"somebody answers at {name} {address}")
        else:
            yield warn(
                "ports",
                f"{name} is {address}, and nobody listens there",
                "Start the control worker, or the agent, that has this setting.",
            )


def _readable_by_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
