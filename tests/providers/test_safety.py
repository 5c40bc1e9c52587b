"""No credential leaves, and nothing but loopback is talked to without leave."""

import json
import logging
import os
import traceback
from pathlib import Path

import pytest
from pydantic import SecretStr

from longshore.activities.providers import registry
from longshore.activities.providers.access import Access, access, check_allowed, is_loopback
from longshore.activities.providers.http import MarketHTTP
from longshore.activities.providers.prime import Prime
from longshore.activities.providers.sfcompute import SFCompute
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    MarketError,
    NotFoundError,
    RefusedError,
)
from longshore.models.settings import Settings
from tests.providers.told import TOKEN
from tests.support.scripted_http import Received, Reply, ScriptedHTTP

SCRIPT = "a start-up\nscript that says join"


def echo(request: Received) -> Reply:
    """Answer with whatever was sent, as a careless server does."""
    sent = f"bad header {request.headers['authorization']} and body {request.content.decode()}"
    return Reply({"detail": sent}, 422, {"X-Echo": request.headers["authorization"]})


async def test_a_server_that_repeats_the_token_does_not_get_it_into_errors(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("POST /pods/", echo)
    with pytest.raises(MarketError) as raised:
        await http.create("/pods/", {"script": SCRIPT}, secrets=[SCRIPT])
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert "bad header Bearer ***" in shown
    assert TOKEN not in shown
    assert "join" not in shown


async def test_a_token_where_an_error_is_cut_short_leaves_no_part_of_it(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("GET /x", Reply({"detail": "x" * 590 + TOKEN + "y" * 100}, 400))
    with pytest.raises(MarketError) as raised:
        await http.get("/x")
    assert "***" in str(raised.value)
    assert TOKEN[:6] not in str(raised.value)


async def test_a_field_that_holds_the_token_does_not_get_it_into_errors(
    server: ScriptedHTTP, sfcompute: SFCompute
):
    server.on("GET /preview/v2/instance_skus", {"data": TOKEN})
    with pytest.raises(AnswerError) as raised:
        await sfcompute.instance_types()
    assert "data must be a list" in str(raised.value)
    assert TOKEN not in str(raised.value)


async def test_debug_logs_of_the_http_library_hold_no_token(
    server: ScriptedHTTP, http: MarketHTTP, caplog: pytest.LogCaptureFixture
):
    server.on("GET /x", Reply({}, 200, {"X-Echo": f"Bearer {TOKEN}"}))
    with caplog.at_level(logging.DEBUG):
        await http.get("/x")
    lines = "\n".join(record.getMessage() for record in caplog.records)
    assert "receive_response_headers.complete" in lines  # the library did log
    assert "X-Echo" in lines
    assert TOKEN not in lines
    assert TOKEN not in "\n".join(str(record.__dict__) for record in caplog.records)


def test_nothing_shows_the_token_by_its_representation():
    found = Access("http://127.0.0.1:1", SecretStr(TOKEN), "simulated")
    for thing in (found, SFCompute(found), Prime(found), vars(SFCompute(found))):
        assert TOKEN not in repr(thing)


@pytest.mark.parametrize("token", ["two words", "new\nline", "schön", ""])
def test_a_token_that_no_header_can_hold_is_refused_without_showing_it(token: str):
    with pytest.raises(RefusedError) as raised:
        Prime(Access("http://127.0.0.1:1", SecretStr(token), "simulated"))
    assert "LONGSHORE_PRIME_TOKEN" in str(raised.value)
    assert not token or token not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.sfcompute.com",
        "http://127.0.0.1@example.com",
        "http://127.0.0.1.example.com",
        "http://10.0.0.1:80",
        "http://[::ffff:8.8.8.8]",
        "http://0.0.0.0",
        "https://localhost.example.com",
        "http://",
    ],
)
def test_only_loopback_is_talked_to_while_markets_are_simulated(url: str):
    with pytest.raises(RefusedError, match="LONGSHORE_MARKET=real"):
        SFCompute(Access(url, SecretStr(TOKEN), "simulated"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "http://localhost:80", "http://[::1]:80"])
def test_loopback_is_allowed(url: str):
    assert is_loopback(url)
    check_allowed(url, "simulated")


def test_off_is_off_and_real_needs_encryption():
    with pytest.raises(RefusedError, match="markets are off"):
        Prime(Access("http://127.0.0.1:1", SecretStr(TOKEN), "off"))
    with pytest.raises(RefusedError, match="unencrypted"):
        Prime(Access("http://example.com", SecretStr(TOKEN), "real"))
    check_allowed("https://example.com", "real")


async def test_what_does_not_say_that_it_is_simulated_is_not_believed(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("GET /x", Reply({"ok": True}, mark=False))
    with pytest.raises(AnswerError, match="is no simulated market"):
        await http.get("/x")


async def test_a_result_is_simulated_exactly_when_the_market_says_so(server: ScriptedHTTP):
    client = MarketHTTP("bazaar", Access(server.url, SecretStr(TOKEN), "real"), token_name="T")
    server.on("GET /x", Reply({}, mark=False), Reply({}, mark=True))
    assert [(await client.get("/x")).simulated for _ in range(2)] == [False, True]
    await client.aclose()


async def test_no_proxy_comes_between_us_and_a_simulated_market(
    server: ScriptedHTTP, http: MarketHTTP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    server.on("GET /x", {"ok": True})
    assert (await http.get("/x")).value == {"ok": True}


def settings_of(folder: Path, **changed: object) -> Settings:
    return Settings.model_validate({"state_dir": folder, **changed})


def announce(folder: Path, pid: int) -> None:
    said = {"url": "http://127.0.0.1:4711", "token": "sim", "pid": pid}
    (folder / "market.json").write_text(json.dumps(said))


def test_a_running_simulated_market_brings_its_address_and_token(tmp_path: Path):
    settings = settings_of(tmp_path)
    assert registry.configured(settings) == ()
    announce(tmp_path, os.getpid())
    assert registry.configured(settings) == ("prime", "sfcompute")
    found = access(settings, settings.prime_url, None)
    assert found is not None
    assert (found.url, found.token.get_secret_value()) == ("http://127.0.0.1:4711", "sim")


def test_a_simulated_market_that_has_ended_is_not_used(tmp_path: Path):
    announce(tmp_path, 2**22 + 1)
    assert registry.configured(settings_of(tmp_path)) == ()
    (tmp_path / "market.json").write_text("{")
    assert registry.configured(settings_of(tmp_path)) == ()


def test_a_simulated_market_is_not_taken_for_a_real_one(tmp_path: Path):
    announce(tmp_path, os.getpid())
    settings = settings_of(tmp_path, market="real")
    assert registry.configured(settings) == ()
    with pytest.raises(CredentialsError, match="set LONGSHORE_PRIME_TOKEN"):
        registry.connect(settings, "prime")


def test_a_token_of_a_real_market_is_not_sent_to_it_without_leave(tmp_path: Path):
    settings = settings_of(tmp_path, prime_token=TOKEN)
    with pytest.raises(RefusedError, match=r"api\.primeintellect\.ai is not this machine"):
        registry.connect(settings, "prime")
    assert registry.configured(settings) == ()
    assert registry.configured(settings_of(tmp_path, prime_token=TOKEN, market="real")) == (
        "prime",
    )


def test_names_that_nobody_knows_are_errors_with_the_known_ones(tmp_path: Path):
    with pytest.raises(NotFoundError, match=r"no provider acme \(known: prime, sfcompute\)"):
        registry.connect(settings_of(tmp_path), "acme")
    with pytest.raises(RefusedError, match="markets are off"):
        registry.connect(settings_of(tmp_path, market="off"), "prime")
    assert registry.configured(settings_of(tmp_path, market="off", prime_token=TOKEN)) == ()


async def test_every_configured_provider_is_connected(tmp_path: Path):
    announce(tmp_path, os.getpid())
    found = registry.connect_all(settings_of(tmp_path))
    assert {name: type(p).__name__ for name, p in found.items()} == {
        "prime": "Prime",
        "sfcompute": "SFCompute",
    }
    for provider in found.values():
        await provider.aclose()
