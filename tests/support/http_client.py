"""HTTP clients of tests that ask a server of their own now and then."""

from collections.abc import Mapping

import httpx

_TLS = httpx.create_ssl_context(trust_env=False)  # 30 ms for each client without
_EACH_ITS_OWN = httpx.Limits(max_keepalive_connections=0)
"""Connections. A server closes one that was idle for some seconds, at times just as it is used."""


def http_client(url: str, headers: Mapping[str, str] | None = None) -> httpx.Client:
    return httpx.Client(
        base_url=url, headers=headers, timeout=60, trust_env=False, limits=_EACH_ITS_OWN,
        verify=_TLS,
    )  # fmt: skip


def engine_client() -> httpx.AsyncClient:
    """llama.cpp says that it keeps a connection, and closes it after a stream all the same: a
    request that was sent on it by then gets no byte."""
    return httpx.AsyncClient(timeout=60, trust_env=False, limits=_EACH_ITS_OWN, verify=_TLS)
