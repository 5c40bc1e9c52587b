"""Who may look, and what a browser is told."""

import asyncio
import re
import stat

import httpx
import pytest
import websockets

from longshore.console.security import local_path
from tests.support.console import RunningConsole
from tests.support.http_client import http_client

PAGE = {"Accept": "text/html"}
HALF_OPEN = 900
EVERYTHING = (
    "/orderbook?instance_type=8xH100", "/market/history?instance_type=8xH100",
    "/market/providers", "/docs", "/openapi.json", "/", "/nothing-here",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _a_stranger(console: RunningConsole) -> None:
    """Nobody whom an earlier test has signed in."""
    console.stranger.cookies.clear()


@pytest.mark.parametrize("path", EVERYTHING)
def test_a_program_needs_the_token(console: RunningConsole, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic Og=="},
                    {"Authorization": console.token}):  # fmt: skip
        refused = console.stranger.get(path, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert refused.json()["error"]["type"] == "unauthorized"
    assert console.http.get(path).status_code != 401


async def test_requests_of_strangers_that_never_end_hold_up_nobody(
    console: RunningConsole,
) -> None:
    target = httpx.URL(console.url)
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(HALF_OPEN):
            _, writer = await asyncio.open_connection(target.host, target.port)
            writers.append(writer)
            writer.write(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n")
            await writer.drain()
        for path in EVERYTHING:
            answer = await asyncio.to_thread(console.http.get, path, timeout=30)
            assert answer.status_code in (200, 307, 404), path
    finally:
        for writer in writers:
            writer.close()
    assert console.process.poll() is None


def test_anybody_may_ask_whether_it_is_well(console: RunningConsole) -> None:
    assert console.stranger.get("/healthz").json() == {"ok": True}


@pytest.mark.parametrize("path", ["/orderbook?instance_type=8xH100", "/", "/nothing-here"])
def test_a_browser_is_sent_to_the_form(console: RunningConsole, path: str) -> None:
    sent = console.stranger.get(path, headers=PAGE)
    assert sent.status_code == 303
    target = httpx.URL(sent.headers["Location"])
    assert (target.path, target.params["next"]) == ("/login", path)


def test_the_parts_of_pages_need_the_token_as_well(console: RunningConsole) -> None:
    page = console.http.get("/orderbook", headers=PAGE).text
    [script] = set(re.findall(r'src="(/_nicegui/[^"]+/nicegui.js)"', page))
    assert console.http.get(script).status_code == 200
    assert console.stranger.get(script).status_code == 401
    socket = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert console.stranger.get(socket).status_code == 401


@pytest.mark.parametrize("cookie", [None, "", "x.y.z"])
async def test_the_socket_of_a_page_is_closed_to_other_sites(
    console: RunningConsole, cookie: str | None
) -> None:
    """A browser sends no cookie of the console's from there (SameSite=Strict)."""
    address = console.url.replace("http", "ws", 1)
    sent = {} if cookie is None else {"Cookie": f"{_cookie_of(console)}={cookie}"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with websockets.connect(
            f"{address}/_nicegui_ws/socket.io/?EIO=4&transport=websocket",
            origin=websockets.Origin("http://evil.example"), additional_headers=sent, proxy=None,
        ):  # fmt: skip
            pass
    assert refused.value.response.status_code in (401, 403)


def _cookie_of(console: RunningConsole) -> str:
    with http_client(console.url, PAGE) as browser:
        browser.get("/orderbook", params={"token": console.token})
        (name,) = browser.cookies
    return name


def test_a_link_with_the_token_signs_in_and_leaves_no_token(console: RunningConsole) -> None:
    with http_client(console.url, PAGE) as browser:
        entered = browser.get("/orderbook", params={"token": console.token, "node_count": "8"})
        assert entered.status_code == 200
        assert 'url=/orderbook?node_count=8"' in entered.text
        assert console.token not in entered.text
        cookie = entered.headers["Set-Cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert console.token.lower() not in cookie
        assert browser.get("/orderbook").status_code == 200


def test_a_program_that_shows_the_token_is_not_sent_in_by_a_link(console: RunningConsole) -> None:
    known = console.http.get("/market/providers", params={"token": "of another"})
    assert known.json().keys() == {"providers"}
    refused = console.stranger.get(
        "/market/providers",
        params={"token": console.token},
        headers={"Authorization": "Bearer no"},
    )
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "unauthorized")


def test_the_form_signs_in_and_the_button_signs_out(console: RunningConsole) -> None:
    with http_client(console.url, PAGE) as browser:
        wrong = browser.post("/login?next=/orderbook", data={"token": "wrong"})
        assert wrong.status_code == 401
        assert "This is not the token" in wrong.text
        entered = browser.post("/login?next=/orderbook", data={"token": console.token})
        assert 'url=/orderbook"' in entered.text
        assert browser.get("/orderbook").status_code == 200
        assert browser.post("/logout").status_code == 303
        assert browser.get("/orderbook").status_code == 303


def test_a_cookie_that_was_changed_opens_nothing(console: RunningConsole) -> None:
    with http_client(console.url, PAGE) as browser:
        browser.get("/", params={"token": console.token})
        [(name, value)] = browser.cookies.items()
        until, _, proof = value.partition(".")
        for forged in (f"{int(until) + 1}.{proof}", f"{until}.{proof[:-1]}", "9999999999.", "x"):
            answer = console.stranger.get(
                "/orderbook", headers={**PAGE, "Cookie": f"{name}={forged}"}
            )
            assert answer.status_code == 303, forged


@pytest.mark.parametrize(
    "target", ["https://elsewhere.example", "//elsewhere.example", "/\\elsewhere", "x", "/a\nb"]
)
def test_nobody_is_sent_elsewhere(console: RunningConsole, target: str) -> None:
    assert local_path(target) == "/"
    entered = console.stranger.post(
        "/login", params={"next": target}, data={"token": console.token}
    )
    assert 'url=/"' in entered.text


def test_pages_load_nothing_from_elsewhere(console: RunningConsole) -> None:
    page = console.http.get("/orderbook", headers=PAGE)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["Cache-Control"] == "no-store"
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page.text)
    docs = console.http.get("/docs").text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', docs)
    assert "GET /orderbook" in docs


def test_the_token_is_for_its_owner_alone_and_in_no_log(console: RunningConsole) -> None:
    file = console.log.parent / "console-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    console.stranger.get("/", params={"token": console.token}, headers=PAGE)
    console.get("/orderbook", instance_type="nonsense")
    assert console.token not in console.log.read_text()
