"""Who asks an engine of llama.cpp, which closes a connection after each stream and has not said
so: a request that is sent on it meanwhile gets no byte."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.http_client import engine_client

_EVENTS = (
    b'data: {"choices":[{"text":"a","index":0,"finish_reason":"length"}],"id":"1"}\n\n',
    b"data: [DONE]\n\n",
    b"",
)
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Keep-Alive: timeout=5, max=100\r\n\r\n"
) + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in _EVENTS)
"""As llama.cpp sends it, and then closes."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """What closes a connection after its first answer as late as it can: when it is used again."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (piece := client.recv(65_536)):
                    return
                asked += piece
            client.sendall(_STREAM)
            client.recv(65_536)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    accepting.join(60)


async def test_a_test_that_asks_an_engine_again_is_answered(endpoint: str) -> None:
    async with engine_client() as http:
        for _ in range(3):
            async with http.stream("POST", f"{endpoint}/completions", json={}) as answer:
                lines = [line async for line in answer.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"


async def test_the_client_of_openai_asks_again_by_itself(endpoint: str) -> None:
    from openai import AsyncOpenAI  # 0.3 s for each worker that collects this module

    async with AsyncOpenAI(base_url=endpoint, api_key="none") as client:
        for _ in range(3):
            stream = await client.completions.create(model="a", prompt="a", stream=True)
            assert [chunk.choices[0].text async for chunk in stream] == ["a"]
