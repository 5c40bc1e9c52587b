"""What a bought machine is told: where the servers are, the join token, which node it is.

Made when a machine is asked for, from the settings of the control worker; never stored.
"""

import os
from collections.abc import Sequence

from sqlalchemy import RowMapping
from temporalio.client import Client

from longshore.activities.providers.startup import Startup
from longshore.models.settings import Settings
from longshore.models.topology import labels_of_bought

_NOT_PASSED_ON = ("TEMPORAL_CONFIG_FILE", "TEMPORAL_PROFILE")


def script_for(
    names: Sequence[str], block: RowMapping, settings: Settings, temporal: Client
) -> str:
    """Return the start-up script of a machine of a block, `purchase_rows.block_to_start`.

    The machines of a cluster are all given one script, with the names of all: each has the first
    that no other has taken. Raises UnavailableError.
    """
    arguments = [word for name in names for word in ("--node-id", name)]
    arguments += [
        *("--pool", block["pool"]), *("--tier", block["tier"]),
        *("--provider", block["provider"]), *("--block", block["id"]),
    ]  # fmt: skip
    if block["ends_at"] is not None:
        arguments += ["--expires-at", block["ends_at"].isoformat()]
    # Nodes of one order share fast fabric where the market says so and it was asked for; nothing
    # else is taken to.
    domain = block["id"] if block["fast_fabric"] else names[0]
    labels = labels_of_bought(block["provider"], block["place"], domain)
    for label, value in labels.items():
        arguments += ["--label", f"{label}={value}"]
    return Startup(_environment(settings, temporal), tuple(arguments)).script()


def _environment(settings: Settings, temporal: Client) -> dict[str, str]:
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("TEMPORAL_") and name not in _NOT_PASSED_ON
    }
    stores = {}
    if settings.log_store is not None or settings.market == "simulated":
        # A simulated machine is this one: it finds the folder of the local stack.
        stores["LONGSHORE_LOG_STORE"] = settings.resolve_log_store()
    if settings.checkpoint_store is not None or settings.market == "simulated":
        stores["LONGSHORE_CHECKPOINT_STORE"] = settings.resolve_checkpoint_store()
    if settings.artifact_store is not None or settings.market == "simulated":
        stores["LONGSHORE_ARTIFACT_STORE"] = settings.resolve_artifact_store()
    return {
        **passed_on,
        **stores,
        "TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": temporal.namespace,
        "LONGSHORE_AGENT_TOKEN": settings.resolve_agent_token(),
    }
