"""How messages to and from a Temporal server travel."""

import pytest
from temporalio.service import GrpcCompression

from longshore.client.connection import compression


@pytest.mark.parametrize("address", ["127.0.0.1:7233", "localhost:7233", "[::1]:7233"])
def test_nothing_is_compressed_for_a_server_on_this_machine(address: str) -> None:
    assert compression(address) == GrpcCompression.NONE


@pytest.mark.parametrize("address", ["temporal:7233", "10.0.0.7:7233", "x.tmprl.cloud:7233"])
def test_what_crosses_a_network_is_compressed(address: str) -> None:
    assert compression(address) == GrpcCompression.GZIP
