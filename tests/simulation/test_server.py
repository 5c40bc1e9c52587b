"""The simulated market as a server: who opens connections and asks nothing keeps nobody out."""

import socket
from contextlib import ExitStack, suppress

import httpx
import pytest

from longshore.console import connections
from longshore.models.addresses import LOOPBACK
from tests.support.market import running_market


def test_half_open_connections_keep_nobody_out_of_the_market(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MOST_WAITING", 20)
    with running_market() as market, ExitStack() as opened:
        address = (LOOPBACK, int(market.url.rpartition(":")[2]))
        halves = [
            opened.enter_context(socket.create_connection(address, timeout=5)) for _ in range(21)
        ]
        for half in halves:
            half.sendall(b"GET / HTTP/1.1\r\nX-Half")
        with suppress(ConnectionResetError):  # where what it sent was not read yet
            assert halves[0].recv(1) == b""
        assert httpx.get(f"{market.url}/nothing").status_code == 404
