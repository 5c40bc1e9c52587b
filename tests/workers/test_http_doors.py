"""No web page starts a job: what a browser may send to the ports of a stack is refused."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest

from longshore.console.connections import MOST_WAITING
from longshore.workers.local import WEB_UI, start_web_ui
from longshore.workers.stack import Stack
from longshore.workers.temporal_server import NAME
from longshore.workers.web_ui import door
from tests.support.http_client import http_client

WORKFLOW = "/api/v1/namespaces/default/workflows/job-by-a-web-page"
START = {
    "workflow_type": {"name": "JobWorkflow"},
    "task_queue": {"name": "longshore"},
    "input": [{"spec": {"name": "x", "command": "true"}}],
}


def ports_of(stack: Stack) -> list[int]:
    running = stack.processes.running(NAME)
    server = running and running.find()
    assert server
    return [
        each.laddr.port
        for each in server.net_connections("tcp")
        if each.laddr and each.status == psutil.CONN_LISTEN
    ]


@pytest.mark.parametrize("host", [None, "evil.example", "localhost", "", "127.0.0.1", "%2f"])
def test_no_port_of_the_server_takes_what_any_web_page_can_send(stack: Stack, host: str | None):
    ports = ports_of(stack)
    assert len(ports) > 2
    for port in ports:
        if port == stack.temporal.ui_port:
            continue  # the Web UI: below
        headers = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
        if host is not None:
            headers["Host"] = host
        try:
            answer = httpx.post(
                f"http://127.0.0.1:{port}{WORKFLOW}", content=json.dumps(START), headers=headers,
                timeout=30, trust_env=False,
            )  # fmt: skip
        except httpx.HTTPError:
            continue  # it speaks another protocol
        assert answer.status_code in (403, 404, 405), (port, answer.text)


@pytest.fixture
def web_ui(stack: Stack) -> Iterator[str]:
    """Starts the door of the stack's Web UI, at its address; 0.7 s."""
    start_web_ui(stack, lambda line: None)
    yield stack.temporal.ui
    stack.processes.stop(WEB_UI)


def test_the_web_ui_answers_to_the_names_of_this_machine_alone(stack: Stack, web_ui: str):
    port = web_ui.rpartition(":")[2]
    api = "/api/v1/namespaces/default"
    with http_client(web_ui) as http:
        page = http.get("/namespaces/default/workflows")
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert http.get(api).json()["namespaceInfo"]["name"] == "default"
        others = ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "")
        near = ("[::2]", "[::]", "[::ffff:127.0.0.1]", "[::1].evil.example", "::1", "127.0.0.2")
        for host in (*others, *near):
            assert http.get(api, headers={"Host": host}).status_code == 400, host
        for name in ("localhost", "127.0.0.1", "[::1]"):
            host = {"Host": f"{name}:{port}"}
            assert http.get(api, headers=host).is_success, name
            of_its_own = {"Origin": f"http://{name}:{port}"}
            assert http.get(api, headers=host | of_its_own).is_success, name


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"Origin": "http://evil.example"}),
        ("POST", {"Origin": "null"}),
        ("POST", {"Origin": "http://["}),
        ("POST", {"Origin": "http://127.0.0.1:1"}),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
        ("GET", {"Origin": "http://evil.example"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
        (
            "GET",
            {
                "Sec-Fetch-Site": "cross-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "iframe",
            },
        ),
    ],
)
def test_the_web_ui_takes_nothing_that_another_site_sends(
    web_ui: str, method: str, headers: dict[str, str]
):
    with http_client(web_ui) as http:
        sent = {"Content-Type": "text/plain", **headers}
        answer = http.request(method, WORKFLOW, headers=sent, content=json.dumps(START))
    assert (answer.status_code, answer.text) == (403, "this came from another site\n")


@pytest.mark.parametrize("site", ["none", "same-origin", "same-site", "cross-site"])
def test_a_link_from_any_site_leads_into_the_web_ui(web_ui: str, site: str):
    with http_client(web_ui) as http:
        headers = {
            "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document",
        }  # fmt: skip
        assert http.get("/namespaces/default/workflows", headers=headers).status_code == 200


def test_the_web_ui_takes_what_its_own_page_sends(web_ui: str):
    own = {"Origin": web_ui, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    with http_client(web_ui) as http:
        http.get("/api/v1/settings").raise_for_status()
        token = {"X-CSRF-Token": http.cookies["_csrf"]}
        answer = http.post(f"{WORKFLOW}/cancel", json={}, headers=own | token)
    assert (answer.status_code, "not found" in answer.text) == (404, True)


def test_half_open_connections_keep_nobody_out_of_the_web_ui(web_ui: str):
    address = ("127.0.0.1", int(web_ui.rpartition(":")[2]))
    with ExitStack() as opened:
        halves = [
            opened.enter_context(socket.create_connection(address, timeout=5))
            for _ in range(MOST_WAITING + 1)
        ]
        assert halves[0].recv(1) == b""
        with http_client(web_ui) as http:
            assert http.get("/namespaces/default/workflows").status_code == 200


def test_the_web_ui_takes_no_more_than_the_server_would(web_ui: str):
    own = {"Origin": web_ui, "Content-Type": "application/json"}
    with http_client(web_ui) as http:
        answer = http.post(WORKFLOW, headers=own, content=b"x" * (4 * 2**20 + 1))
    assert (answer.status_code, "longer than" in answer.text) == (413, True)


def test_half_sent_bodies_keep_nobody_out_of_the_web_ui(web_ui: str):
    """The connections to the UI itself are fewer."""
    address = ("127.0.0.1", int(web_ui.rpartition(":")[2]))
    half = (
        f"POST {WORKFLOW} HTTP/1.1\r\nHost: {web_ui.partition('://')[2]}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    )
    with ExitStack() as opened:
        for _ in range(200):
            sending = opened.enter_context(socket.create_connection(address, timeout=5))
            sending.sendall(half.encode())
        with http_client(web_ui) as http:
            for _ in range(3):
                answer = http.get("/namespaces/default/workflows", timeout=8)
                assert answer.status_code == 200


def test_the_ui_itself_is_at_no_address_that_a_page_would_ask(stack: Stack, web_ui: str):
    port = int(web_ui.rpartition(":")[2])
    listening = {
        each.laddr.ip
        for each in psutil.net_connections("tcp")
        if each.laddr and each.status == psutil.CONN_LISTEN and each.laddr.port == port
    }
    assert "127.0.0.1" in listening
    (hidden,) = listening - {"127.0.0.1"}
    assert hidden.startswith("127.")
    assert stack.temporal.hidden_ui == f"http://{hidden}:{port}"


def test_a_path_that_is_none_is_refused(web_ui: str):
    port = int(web_ui.rpartition(":")[2])
    for path in ("//evil.example/x", "//[/x", "/" + "x" * 70_000):
        assert _sent(port, path).startswith(b"HTTP/1.1 400 "), path


@pytest.mark.parametrize("wanted", ["", "Accept-Encoding: gzip\r\n"])
def test_what_comes_back_is_coded_as_the_client_can_read_it(web_ui: str, wanted: str):
    answer = _sent(int(web_ui.rpartition(":")[2]), "/api/v1/settings", wanted)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert (b"content-encoding: gzip" in head.lower()) is bool(wanted)
    if not wanted:
        assert b'"' in body


def test_a_request_with_two_names_is_refused(web_ui: str):
    port = int(web_ui.rpartition(":")[2])
    answer = _sent(port, "/api/v1/settings", "Host: evil.example\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/", 400), ("http://evil.example", 400), ("HTTP://evil.example/", 400),
        ("http://127.0.0.1.evil.example:{port}/", 400), ("http://127.0.0.1@evil.example/", 400),
        ("http://evil.example@127.0.0.1/", 400), ("http:///", 400),
        ("http://127.0.0.1:{port}/", 200), ("http://localhost/", 200),
        ("http://[::1]:{port}/", 200),
    ],
)  # fmt: skip
def test_the_host_of_a_whole_url_counts_whatever_the_header_says(
    web_ui: str, target: str, status: int
):
    """RFC 9112, 3.2.2."""
    port = int(web_ui.rpartition(":")[2])
    url = target.format(port=port).removesuffix("/") + "/api/v1/settings"
    assert _sent(port, url).startswith(b"HTTP/1.1 %d " % status)


def _sent(port: int, path: str, headers: str = "") -> bytes:
    """Return the answer to a request as it is written, to its end."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sending:
        sending.sendall(request.encode())
        return b"".join(iter(lambda: sending.recv(65536), b""))


async def test_the_door_says_that_the_ui_is_away():
    app = door("http://127.0.0.1:9")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client,
    ):
        answer = await client.get("/")
    assert (answer.status_code, "does not answer" in answer.text) == (502, True)
