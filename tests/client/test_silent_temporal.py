"""A Temporal server that takes connections and says nothing, as one that is stopped, and one that
goes away."""

import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from longshore.client import connection
from longshore.client.calls import quiet_runtime
from longshore.models.errors import UnavailableError
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.relay import Relay


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that says nothing; 0 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_who_connects_is_told_so_in_time(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", silent)
    monkeypatch.setattr(connection, "ANSWERS_WITHIN", 0.5)
    with pytest.raises(UnavailableError) as raised:
        await connection.connect(Settings())
    assert str(raised.value) == (
        f"Temporal at {silent} has not answered for 0.5 s. "
        "Check TEMPORAL_ADDRESS and the server behind it."
    )


async def test_the_sdk_writes_no_lines_of_its_own_about_a_server_that_is_away(
    stack: Stack, capfd: pytest.CaptureFixture[str]
) -> None:
    """It warns of the fifth try again and of each later one: commands say it once, in words."""
    relay = Relay(stack.temporal.address)
    await relay.open()
    client = await Client.connect(relay.address, runtime=quiet_runtime())
    await relay.close()
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    with pytest.raises(RPCError):
        await client.workflow_service.describe_namespace(
            asked, retry=True, timeout=timedelta(seconds=4)
        )
    assert "".join(capfd.readouterr()) == ""
