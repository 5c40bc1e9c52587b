"""What `longshore up` starts beside the servers: the control worker and local agents."""

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import httpx

from longshore.models.addresses import LOOPBACK, url_of
from longshore.models.errors import StackError
from longshore.models.messages import CONTROL_TASK_QUEUE, node_task_queue
from longshore.workers import temporal_server
from longshore.workers.processes import Recorded, wait_until
from longshore.workers.programs import program
from longshore.workers.stack import AGENT_PREFIX, Progress, Stack, agent_process

CONTROL = "control"
"""Name of the control worker's process."""
CONTROL_ARGV = (sys.executable, "-P", "-m", "longshore.workers.control")
SIMULATED_NODE = "8xH100-80GB"
DEFAULT_SIMULATED_NODES = 2
HEALTHY_WITHIN = 60.0
ANSWERS_WITHIN = 10.0
"""A process that runs and answers nothing for so long hangs; a busy one answers in less."""
_GRACE = 20.0
CONSOLE = "console"
"""Name of the console's process."""
WEB_UI = temporal_server.DOOR
"""Name of the process before the Temporal Web UI."""
WEB_UI_ARGV = (sys.executable, "-P", "-m", "longshore.workers.web_ui")

_NO_ADDRESSES = {"LONGSHORE_METRICS_ADDRESS": "off", "LONGSHORE_HEALTH_ADDRESS": "off"}
"""The addresses of the settings are the control worker's here: two cannot listen at one."""

Flags = tuple[str, ...]


def choose_nodes(
    stack: Stack, count: int | None, has_gpus: Callable[[], bool] | None = None
) -> dict[str, Flags]:
    """Return the agents that should run here, by node id, with their flags.

    With a `count`: so many simulated nodes, named local-1 and so on. Without: those that ran
    before; else one agent with the GPUs of this machine; else two simulated nodes.
    """
    if count is None and (remembered := stack.remembered_nodes()):
        return remembered
    if count is None and (has_gpus or machine_has_gpus)():
        return {"local-1": ()}
    wanted = DEFAULT_SIMULATED_NODES if count is None else count
    return {f"local-{number}": ("--simulate", SIMULATED_NODE) for number in range(1, wanted + 1)}


def start_control_worker(
    stack: Stack, progress: Progress, argv: Sequence[str] = CONTROL_ARGV
) -> None:
    """Start the control worker unless it runs and answers, and wait until it takes tasks."""
    if running := _found(stack, CONTROL, "the control worker", progress):
        progress(f"the control worker runs already (process {running.pid})")
        return
    health = stack.settings.health_address or f"{LOOPBACK}:{_free_port()}"
    env = {**stack.child_env(), "LONGSHORE_HEALTH_ADDRESS": health}
    entry = stack.processes.spawn(CONTROL, argv, env, address=f"{url_of(health)}/healthz")
    _wait_for_polls(stack, entry, CONTROL_TASK_QUEUE)
    progress("the control worker is ready")


def start_web_ui(stack: Stack, progress: Progress) -> None:
    """Start the door of the Temporal Web UI unless it runs and answers, or the server is not the
    stack's."""
    if stack.processes.running(temporal_server.NAME) is None:
        return
    if _found(stack, WEB_UI, "what serves the Temporal Web UI", progress):
        return
    url = stack.temporal.ui
    command = [*WEB_UI_ARGV, url.rpartition(":")[2], stack.temporal.hidden_ui]
    entry = stack.processes.spawn(WEB_UI, command, address=url)
    if not wait_until(lambda: entry.find() is None or _answers(url), HEALTHY_WITHIN, 0.1):
        _give_up(stack, entry, "does not answer")
    if entry.find() is None:
        _give_up(stack, entry, "ended")
    progress(f"the Temporal Web UI is ready at {url}")


def start_console(stack: Stack, progress: Progress, argv: Sequence[str] = ()) -> None:
    """Start the console unless it runs and answers, or the settings want none, and wait until it
    answers."""
    address = stack.settings.console_address
    if address is None:
        return
    if running := _found(stack, CONSOLE, "the console", progress):
        progress(f"the console runs already (process {running.pid})")
        return
    url = url_of(address)
    # Of somebody else's console there the answer would be taken for the own one's.
    temporal_server.refuse_busy_port(int(address.rpartition(":")[2]), "LONGSHORE_CONSOLE_ADDRESS")
    command = [*(argv or (program("longshore"), "console")), "--address", address]
    entry = stack.processes.spawn(CONSOLE, command, stack.child_env(), address=url)
    if not wait_until(lambda: entry.find() is None or _is_well(url), HEALTHY_WITHIN, 0.2):
        _give_up(stack, entry, "does not answer")
    if entry.find() is None:
        _give_up(stack, entry, "ended")
    progress(f"the console is ready at {url}")


def start_agents(
    stack: Stack,
    nodes: Mapping[str, Flags],
    progress: Progress,
    argv: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
) -> None:
    """Start the agents of `nodes` that do not run, remember them, and wait until they take work;
    let those that are paused go on.

    `argv` begins the command line of an agent; `longshore agent` by default. `more` is added to
    its environment. Agents that ran before and are neither running nor in `nodes` are forgotten.
    """
    _forget_others(stack, nodes)
    started: list[tuple[str, Recorded]] = []
    for node_id, flags in nodes.items():
        name = agent_process(node_id)
        if running := stack.processes.running(name):
            # Never ended here: its jobs run under it, and a slow server may be all that ails it.
            does = "was paused, and goes on" if stack.processes.resume(name) else "runs already"
            progress(f"the agent of {node_id} {does} (process {running.pid})")
            continue
        command = [*(argv or (program("longshore"), "agent")), *flags, "--node-id", node_id]
        env = {**stack.child_env(), **_NO_ADDRESSES, **(more or {})}
        entry = stack.processes.spawn(name, command, env, address=node_id)
        stack.remember_node(node_id, flags)
        started.append((node_id, entry))
    for node_id, entry in started:
        _wait_for_polls(stack, entry, node_task_queue(node_id))
        progress(f"the agent of {node_id} is ready")


def local_nodes(stack: Stack) -> tuple[str, ...]:
    """Return the ids of the nodes whose agents run here now."""
    names = (entry.name for entry in stack.processes.recorded() if entry.find())
    return tuple(
        name.removeprefix(AGENT_PREFIX) for name in names if name.startswith(AGENT_PREFIX)
    )


def machine_has_gpus() -> bool:
    """Return whether NVIDIA's library finds a GPU on this machine."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return pynvml.nvmlDeviceGetCount() > 0
    except pynvml.NVMLError:
        return False
    finally:
        pynvml.nvmlShutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _found(stack: Stack, name: str, what: str, progress: Progress) -> Recorded | None:
    """Return a process that runs and answers at its address; end one that runs and does not.

    Any answer counts: of a control worker whose database is away another would be no better.
    """
    running = stack.processes.running(name)
    if running is None or not running.address:
        return running
    if wait_until(lambda: _status(running.address) is not None, ANSWERS_WITHIN, 0.2):
        return running
    progress(f"{what} does not answer (process {running.pid}): it ends, and another starts")
    stack.processes.stop(name, grace=_GRACE)
    return None


def _forget_others(stack: Stack, nodes: Mapping[str, Flags]) -> None:
    for node_id in set(stack.remembered_nodes()) - set(nodes):
        if not stack.processes.running(agent_process(node_id)):
            stack.forget_node(node_id)


def _wait_for_polls(stack: Stack, entry: Recorded, task_queue: str) -> None:
    """Wait until the process asks Temporal for work. Raises StackError with its last words."""
    cli = stack.temporal_cli()

    def polls_or_ended() -> bool:
        return entry.find() is None or cli.polled_since(task_queue, entry.started)

    in_time = wait_until(polls_or_ended, HEALTHY_WITHIN, interval=0.2)
    if not in_time or entry.find() is None:
        _give_up(stack, entry, "takes no work" if entry.find() else "ended")


def _is_well(url: str) -> bool:
    return _status(f"{url}/healthz") == 200


def _answers(url: str) -> bool:
    status = _status(url)
    return status is not None and status < 500


def _status(url: str) -> int | None:
    """Return the HTTP status of what is there; None where nothing answers."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code
    except httpx.HTTPError:
        return None


def _give_up(stack: Stack, entry: Recorded, what: str) -> NoReturn:
    last_words = stack.processes.last_words(entry.name)
    stack.processes.stop(entry.name)
    raise StackError(f"{entry.name} was started and {what}.{last_words}")
