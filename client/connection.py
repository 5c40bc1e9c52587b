"""Connecting to Temporal: the standard settings, else the local stack."""

import asyncio
import os
import re

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import GrpcCompression

from longshore.activities.providers.access import is_loopback
from longshore.client.late_answers import AskAgain
from longshore.client.payloads import data_converter
from longshore.client.tracing import tracing
from longshore.models.errors import UnavailableError
from longshore.models.settings import Settings

ANSWERS_WITHIN = 10.0
"""Seconds that a server has to answer one that connects: it may be stopped, and its machine still
take connections."""


async def connect(
    settings: Settings, *, runtime: Runtime | None = None, service: str = "longshore-client"
) -> Client:
    """Return a client of the Temporal server that the settings name.

    `TEMPORAL_ADDRESS` or a profile of temporalio.envconfig comes first, then the local stack.
    `service` is what its spans say they come from. Raises UnavailableError when there is no
    server or it does not answer, StackError when traces are wanted and cannot be made.
    """
    config = ClientConfig.load_client_connect_config()
    address = config["target_host"] = server_address(settings)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await Client.connect(
                **config,
                data_converter=data_converter,
                grpc_compression=compression(address),
                runtime=runtime,
                interceptors=[AskAgain(), *tracing(settings, service)],
            )
    except TimeoutError as error:
        raise UnavailableError(
            f"Temporal at {address} has not answered for {ANSWERS_WITHIN:g} s. {_what_to_do()}"
        ) from error
    except RuntimeError as error:
        raise UnavailableError(
            f"Temporal at {address} does not answer ({_cause(error)}). {_what_to_do()}"
        ) from error


def server_address(settings: Settings) -> str:
    """Return HOST:PORT of the Temporal server. Raises UnavailableError when nothing names one."""
    config = ClientConfig.load_client_connect_config()
    return config.get("target_host") or settings.stack().temporal_address


def compression(address: str) -> GrpcCompression:
    """Return whether messages to and from a server are compressed.

    To a server on this machine it saves nothing, and takes both ends 4 to 7 % of their time of
    the processor.
    """
    return GrpcCompression.NONE if is_loopback(f"//{address}") else GrpcCompression.GZIP


def _cause(error: RuntimeError) -> str:
    """Return the innermost message of the SDK's nested ones, such as `Connection refused`."""
    messages = re.findall(r'message: "([^"]+)"', str(error))
    return messages[-1] if messages else str(error)


def _what_to_do() -> str:
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "Check TEMPORAL_ADDRESS and the server behind it."
    return "Start the local stack with `longshore up`."
