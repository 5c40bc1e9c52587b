"""What an agent is started with, and who it is by that and by its folder."""

import contextlib
import socket
import uuid
from pathlib import Path

from pydantic import Field

from longshore.activities.node.inventory import SimulatedGPUs
from longshore.client.connection import server_address
from longshore.models.base import Frozen, Instant, Name
from longshore.models.bounds import Word
from longshore.models.errors import UnavailableError
from longshore.models.job import Tier
from longshore.models.node import Address, Labels, NodeIdentity
from longshore.models.settings import Settings

_NAME_FILE = "node-name"


class AgentOptions(Frozen):
    """What an agent is told about its node."""

    node_id: Name
    other_ids: tuple[Name, ...] = ()
    """Names of the machines beside it, where all were given the same start-up script: it has the
    first name that no live agent has."""
    work_dir: Path
    token: str
    pool: Name = "default"
    tier: Tier = Tier.FAST
    provider: Word = "own"
    block_id: Word | None = None
    expires_at: Instant | None = None
    labels: Labels = Field(default_factory=dict)
    simulated: SimulatedGPUs | None = None
    cpus: float | None = None
    ram: float | None = None
    storage_bandwidth: float | None = None
    """GB/s; not limited when left out."""
    power: float | None = None
    """Watts that its jobs may draw together; not limited when left out."""
    address: Address | None = None
    """Where other nodes reach this one; found out when left out."""


def names_of(options: AgentOptions) -> list[str]:
    """Return the names that the node may have, the one that it had before in front."""
    names = [options.node_id, *options.other_ids]
    with contextlib.suppress(OSError):
        before = (options.work_dir / _NAME_FILE).read_text().strip()
        names.sort(key=lambda name: name != before)
    return names


def keep_name(folder: Path, name: str) -> None:
    """Note which name the node has: its agent begins with it when it is started again."""
    file = folder / _NAME_FILE
    if file.exists() and file.read_text() == name:
        return  # an agent that is started again on a full disk can do its work
    temporary = file.with_suffix(".new")
    temporary.write_text(name)
    temporary.replace(file)


def identity_of(options: AgentOptions, name: str) -> NodeIdentity:
    return NodeIdentity(
        node_id=name,
        agent_id=_agent_id(options.work_dir),
        boot_id=uuid.uuid4().hex,
        pool=options.pool,
        tier=options.tier,
        provider=options.provider,
        block_id=options.block_id,
        expires_at=options.expires_at,
        labels=options.labels,
    )


def _agent_id(folder: Path) -> str:
    """Return the id that belongs to the folder, made when the first agent came."""
    path = folder / "agent-id"
    with contextlib.suppress(FileNotFoundError):
        if agent_id := path.read_text().strip():
            return agent_id
    agent_id = uuid.uuid4().hex
    temporary = path.with_suffix(".new")
    temporary.write_text(agent_id)
    temporary.replace(path)
    return agent_id


def own_address(settings: Settings) -> str:
    """Return the address of this machine on the way to the Temporal server.

    The hostname when there is no way to be seen: the gangs of other nodes may resolve it.
    """
    with contextlib.suppress(OSError, UnavailableError):
        host, _, port = server_address(settings).rpartition(":")
        family, kind, _, _, target = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: the system chooses the way
            return str(probe.getsockname()[0])
    return socket.gethostname()
