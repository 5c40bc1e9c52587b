"""The HTTP client of price series, against a real server that misbehaves."""

import gzip
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.activities import own_link
from longshore.activities.prices import fetch
from longshore.activities.prices.fetch import fetch_series
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.price_file import MOST_BYTES
from tests.support.scripted_http import Reply, Reset, ScriptedHTTP, Silence, Trickle

HOUR = timedelta(hours=1)
CSV = b"time,price\n2026-11-20T08:00:00Z,2.10\n2026-11-20T09:00:00Z,2.60\n"
HOLES = CSV + b"2026-11-20T13:00:00Z,2.00\n"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
    async with ScriptedHTTP() as running:
        yield running


async def test_it_reads_csv_and_json_and_sends_no_more_than_it_has_to(server: ScriptedHTTP):
    server.on("GET /prices.csv", Reply(CSV))
    server.on("GET /prices", [["2026-11-20T08:00:00Z", 2.1]])
    found = await fetch_series(f"{server.url}/prices.csv", HOUR)
    assert [price for _, price in found.points] == [2_100_000, 2_600_000]
    assert found.whence == "prices of 127.0.0.1"
    assert (await fetch_series(f"{server.url}/prices", HOUR)).points[0][1] == 2_100_000
    (asked,) = server.seen("GET /prices.csv")
    assert "authorization" not in asked.headers
    assert "cookie" not in asked.headers
    assert asked.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (Reply(HOLES), SpecError, "line 4: a hole of 4h between 2026-11-20T09:00:00Z"),
        (Reply(b"", 302, {"Location": "http://169.254.169.254/"}), SpecError, "was redirected"),
        (Reply(b"no", 404), SpecError, "answers with status 404"),
        (Reply(b"no", 401), SpecError, "answers with status 401"),
        (Reply(b"no", 503), UnavailableError, "answers with status 503"),
        (Reply(b"no", 429), UnavailableError, "answers with status 429"),
        (Reply(b"x" * (MOST_BYTES + 1)), SpecError, "has more than 2,000,000 bytes"),
        (Reply(gzip.compress(CSV), 200, {"Content-Encoding": "gzip"}), SpecError, "sent packed"),
        (Reply(CSV[:9]), SpecError, "line 1: expected a time"),
        (Reset(), UnavailableError, "broke off"),
        (Silence(), UnavailableError, "has not answered within 0.5 s"),
        (Trickle(), UnavailableError, "has not answered within 0.5 s"),
    ],
    ids=["holes", "redirect", "404", "401", "503", "429", "huge", "packed", "cut", "reset",
         "silence", "slow"],
)  # fmt: skip
async def test_what_is_no_series_in_time_is_refused(
    server: ScriptedHTTP, answer: object, error: type[Exception], told: str
):
    server.on("GET /prices", answer)
    # Only who says nothing is waited for; a busy machine takes its time for all else.
    silent = isinstance(answer, Silence | Trickle)
    with pytest.raises(error, match=told):
        await fetch_series(f"{server.url}/prices", HOUR, within=0.5 if silent else 60.0)
    asked = len(server.requests)
    # A busy machine may not have sent it in half a second; a GET that breaks off is sent again.
    assert asked == (2 if isinstance(answer, Reset) else 1) or (silent and not asked)


async def test_what_nobody_serves_cannot_be_reached(server: ScriptedHTTP):
    url = server.url
    await server.__aexit__()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await fetch_series(f"{url}/prices", HOUR)


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://[::ffff:169.254.1.1]/"]
)
async def test_the_machines_own_link_is_not_asked(url: str):
    with pytest.raises(SpecError, match="address of the machine's own link"):
        await fetch_series(url, HOUR)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https://me:secret@127.0.0.1/p"])
async def test_a_url_that_may_not_be_one_is_not_asked(url: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SpecError) as refused:
        await fetch_series(url, HOUR)
    assert "secret" not in str(refused.value)
    assert "secret" not in caplog.text


async def test_a_name_that_leads_to_the_own_link_once_it_is_connected_to_is_refused(
    server: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch
):
    """It was looked up once to be checked, and once to connect (DNS rebinding)."""
    server.on("GET /prices", Reply(CSV))
    monkeypatch.setattr(own_link, "is_of_link", lambda address: True)
    monkeypatch.setattr(fetch, "is_own_link", lambda host: False)
    with pytest.raises(SpecError, match="address of the machine's own link"):
        await fetch_series(f"{server.url}/prices", HOUR)
    assert not server.requests


async def test_no_password_of_this_machine_is_sent(
    server: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Whoever names a series would get what a .netrc has of the host, or has of any."""
    (tmp_path / "netrc").write_text("default login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.on("GET /prices", Reply(CSV))
    await fetch_series(f"{server.url}/prices", HOUR)
    (asked,) = server.requests
    assert not {"authorization", "proxy-authorization"} & asked.headers.keys()


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
async def test_a_proxy_of_the_environment_is_asked(
    server: ScriptedHTTP, monkeypatch: pytest.MonkeyPatch, name: str
):
    for each in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
        monkeypatch.delenv(each.upper(), raising=False)
    monkeypatch.setenv(name, server.url.replace("http://", "http://me:word@"))
    server.on("GET /prices", Reply(CSV))
    await fetch_series("http://prices.invalid/prices", HOUR)
    (asked,) = server.requests
    assert asked.headers["host"] == "prices.invalid"
    assert "proxy-authorization" in asked.headers
    assert "authorization" not in asked.headers
    monkeypatch.setenv("no_proxy", ".invalid")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await fetch_series("http://prices.invalid/prices", HOUR)
