"""The transport: retries, waits, timeouts, shapes of errors."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import pytest
from pydantic import BaseModel, SecretStr

from longshore.activities.providers.access import Access
from longshore.activities.providers.http import MarketHTTP, Patience
from longshore.models.errors import (
    AnswerError,
    CredentialsError,
    FundsError,
    GoneError,
    InvalidOrderError,
    LongshoreError,
    MarketAwayError,
    OrderConflictError,
)
from tests.providers.conftest import HASTY
from tests.providers.told import TOKEN, Sleeps
from tests.support.scripted_http import Reply, Reset, ScriptedHTTP, Silence, Trickle


class Shape(BaseModel):
    name: str
    count: int


async def test_the_token_is_sent_and_fractions_are_decimals(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("GET /x", Reply(b'{"price": 0.10}'))
    answer = await http.get("/x", {"a": ["1", "2"], "b": "c d"})
    assert answer.value == {"price": Decimal("0.10")}
    assert answer.simulated
    assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert server.requests[0].query == {"a": ["1", "2"], "b": ["c d"]}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_what_comes_later_is_asked_for_again(
    server: ScriptedHTTP, http: MarketHTTP, sleeps: Sleeps, status: int
):
    server.on("GET /x", Reply({}, status), Reply({}, status), {"ok": True})
    assert (await http.get("/x")).value == {"ok": True}
    assert len(server.requests) == 3
    assert len(sleeps) == 2
    assert 0 <= sleeps[0] <= HASTY.first_wait
    assert 0 <= sleeps[1] <= 2 * HASTY.first_wait


@pytest.mark.parametrize("trouble", [Reset(), Silence(), Trickle()])
async def test_what_breaks_off_or_hangs_is_asked_for_again(
    server: ScriptedHTTP, http: MarketHTTP, trouble: Reset | Silence | Trickle
):
    server.on("DELETE /x", trouble, Reply(status=204))
    assert (await http.delete("/x")).value is None
    assert len(server.requests) == 2


async def test_tries_have_an_end(server: ScriptedHTTP, http: MarketHTTP, sleeps: Sleeps):
    server.on("GET /x", Reply({"error": {"type": "api_error", "message": "on fire"}}, 500))
    with pytest.raises(MarketAwayError, match=r"bazaar: GET /x got status 500: on fire") as raised:
        await http.get("/x")
    assert len(server.requests) == HASTY.tries
    assert len(sleeps) == HASTY.tries - 1
    assert (raised.value.status, raised.value.uncertain) == (500, False)


async def test_a_market_that_nobody_answers_for_is_away_and_got_nothing(sleeps: Sleeps):
    async with ScriptedHTTP() as gone:
        access = Access(gone.url, SecretStr(TOKEN), "simulated")
    client = MarketHTTP("bazaar", access, token_name="T", patience=HASTY, sleep=sleeps)
    with pytest.raises(MarketAwayError, match="did not reach it") as raised:
        await client.create("/orders", {}, key="k")
    assert not raised.value.uncertain
    assert len(sleeps) == HASTY.tries - 1
    await client.aclose()


async def test_a_request_that_creates_is_sent_once_and_may_have_arrived(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("POST /pods/", Silence())
    with pytest.raises(MarketAwayError, match="not answered in time") as raised:
        await http.create("/pods/", {"a": 1})
    assert raised.value.uncertain
    assert len(server.requests) == 1
    assert "idempotency-key" not in server.requests[0].headers


async def test_a_request_with_a_key_is_sent_again_with_the_same_key(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("POST /orders", Reset(), Reply({}, 503), Reply({"id": "o"}, 201))
    assert (await http.create("/orders", {"a": 1}, key="key-1")).value == {"id": "o"}
    assert [r.headers["idempotency-key"] for r in server.requests] == ["key-1"] * 3
    assert [r.json for r in server.requests] == [{"a": 1}] * 3


@pytest.mark.parametrize(("last", "uncertain"), [(Reply({}, 429), True), (Reply({}, 500), True)])
async def test_one_try_that_may_have_arrived_makes_all_uncertain(
    server: ScriptedHTTP, http: MarketHTTP, last: Reply, uncertain: bool
):
    server.on("POST /orders", Reset(), last)
    with pytest.raises(MarketAwayError) as raised:
        await http.create("/orders", {}, key="k")
    assert raised.value.uncertain is uncertain


async def test_a_request_that_was_only_limited_has_not_arrived(
    server: ScriptedHTTP, http: MarketHTTP
):
    server.on("POST /orders", Reply({}, 429))
    with pytest.raises(MarketAwayError) as raised:
        await http.create("/orders", {}, key="k")
    assert not raised.value.uncertain


def _in_a_while() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "7"}, 7, 7.5),
        ({"Retry-After": "DATE"}, 8, 10.5),
        ({"RateLimit-Reset": "3"}, 3, 3.5),
        ({"Retry-After": "2", "RateLimit-Reset": "9"}, 2, 2.5),
        ({"Retry-After": "soon"}, 0, 0.5),
    ],
)
async def test_a_market_that_says_when_is_waited_for(
    server: ScriptedHTTP, http: MarketHTTP, sleeps: Sleeps,
    headers: dict[str, str], least: float, most: float,
):  # fmt: skip
    sent = {k: _in_a_while() if v == "DATE" else v for k, v in headers.items()}
    server.on("GET /x", Reply({}, 429, sent), {"ok": True})
    await http.get("/x")
    assert len(sleeps) == 1
    assert least <= sleeps[0] <= most


async def test_who_asks_for_more_than_there_is_time_is_left_alone(
    server: ScriptedHTTP, http: MarketHTTP, sleeps: Sleeps
):
    server.on("GET /x", Reply({}, 503, {"Retry-After": "3600"}))
    with pytest.raises(MarketAwayError) as raised:
        await http.get("/x")
    assert raised.value.retry_after == 3600
    assert sleeps == []
    assert len(server.requests) == 1


async def test_all_tries_together_end_in_time(
    server: ScriptedHTTP, access: Access, sleeps: Sleeps
):
    hasty = Patience(each=5, total=0.3, tries=100, first_wait=0.01)
    client = MarketHTTP("bazaar", access, token_name="T", patience=hasty, sleep=sleeps)
    server.on("GET /x", Silence())
    with pytest.raises(MarketAwayError):
        await client.get("/x")
    assert len(server.requests) == 1
    await client.aclose()


COMPLAINTS = [
    {"field": "node_count", "code": "min", "message": "must be positive"},
    {"code": "odd"},
]
WRAPPED = {"error": {"type": "t", "message": "no good", "details": COMPLAINTS}}
OLD = {"object": "error", "code": "order.not_found", "message": "no good", "details": {}}
PARAMS = {"errors": [{"param": "pod.gpuCount", "details": "must be positive"}]}
FASTAPI = {"detail": [{"loc": ["body", "pod"], "msg": "must be positive", "input": TOKEN}]}


@pytest.mark.parametrize(
    ("status", "said", "kind", "lines"),
    [
        (400, WRAPPED, InvalidOrderError, ["no good", "node_count: must be positive", "odd"]),
        (422, WRAPPED["error"], InvalidOrderError, ["no good", "node_count: must be positive"]),
        (422, PARAMS, InvalidOrderError, ["pod.gpuCount: must be positive"]),
        (422, FASTAPI, InvalidOrderError, ["body.pod: must be positive"]),
        (400, {"detail": "stale row"}, InvalidOrderError, ["stale row"]),
        (400, {"error": "plain"}, InvalidOrderError, ["plain"]),
        (400, OLD, GoneError, ["no good"]),
        (404, OLD, GoneError, ["no good"]),
        (410, None, GoneError, ["status 410"]),
        (404, b"<html>Not Found</html>", GoneError, ["Not Found"]),
        (401, {"detail": "who?"}, CredentialsError, ["who?", "set THE_TOKEN"]),
        (403, WRAPPED, CredentialsError, ["no good", "THE_TOKEN"]),
        (403, {"code": "account.frozen", "message": "frozen"}, FundsError, ["frozen"]),
        (426, {"detail": "old account"}, CredentialsError, ["old account"]),
        (402, WRAPPED, FundsError, ["no good", "too little money"]),
        (409, WRAPPED, OrderConflictError, ["no good"]),
        (400, {"error": {"type": "idempotency_error", "message": "other body"}},
         OrderConflictError, ["other body"]),
        (418, [1, 2], InvalidOrderError, ["status 418"]),
    ],
)  # fmt: skip
async def test_every_shape_of_error_becomes_one_of_ours(
    server: ScriptedHTTP, http: MarketHTTP,
    status: int, said: object, kind: type[LongshoreError], lines: list[str],
):  # fmt: skip
    server.on("GET /x", Reply(said, status))
    with pytest.raises(kind) as raised:
        await http.get("/x")
    assert type(raised.value) is kind
    assert str(raised.value).startswith("bazaar: GET /x was refused: ")
    assert [line for line in lines if line not in str(raised.value)] == []
    assert getattr(raised.value, "status", None) == status
    assert len(server.requests) == 1


@pytest.mark.parametrize("said", [b"{broken", b"<html>hello</html>", b'{"price": NaN}'])
async def test_an_answer_that_is_no_json_is_an_error(
    server: ScriptedHTTP, http: MarketHTTP, said: bytes
):
    server.on("GET /x", Reply(said))
    with pytest.raises(AnswerError, match="its answer to GET /x is no JSON"):
        await http.get("/x")


async def test_an_answer_of_another_shape_names_the_field(server: ScriptedHTTP, http: MarketHTTP):
    server.on("GET /x", {"name": "a", "count": "many", "new": 1})
    answer = await http.get("/x")
    with pytest.raises(AnswerError, match=r"GET /x is not as documented: count must be a whole"):
        answer.read(Shape)


@pytest.mark.parametrize("said", [b'{"name": "a", "cou', {"name": "a"}])
async def test_a_creation_whose_answer_cannot_be_read_is_uncertain(
    server: ScriptedHTTP, http: MarketHTTP, said: object
):
    server.on("POST /pods/", Reply(said, 201))
    with pytest.raises(MarketAwayError) as raised:
        (await http.create("/pods/", {})).read(Shape)
    assert raised.value.uncertain
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed(server: ScriptedHTTP, http: MarketHTTP):
    server.on("GET /x", Reply({}, 307, {"Location": "/y"}))
    with pytest.raises(AnswerError, match="redirected"):
        await http.get("/x")
    assert [r.path for r in server.requests] == ["/x"]
