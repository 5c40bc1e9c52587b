"""A Temporal server that takes connections and says nothing, as one that is stopped."""

import socket
from collections.abc import Iterator

import pytest

from longshore.client import connection
from longshore.models.errors import UnavailableError
from longshore.models.settings import Settings


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
