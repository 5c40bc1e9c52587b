"""Whether an engine is in use: seen by its connections and its work, with a clock of the test."""

import json
import random
import socket
from collections.abc import Iterator

import pytest

from longshore.activities.serving.engine_use import Connections, EngineUse, Requests
from longshore.models.runtimes import METRICS


def test_it_is_idle_once_nobody_has_used_it_for_ten_seconds():
    use = EngineUse(work=5.0, now=100.0)
    assert not use.idle(109.9)
    assert use.idle(110.0)
    use.look(5.5, 111.0, connected=True)
    assert (use.uses, use.idle(120.9), use.idle(121.0)) == (1, False, True)


def test_who_only_stays_connected_does_not_use_it():
    use = EngineUse(work=5.0, now=100.0)
    use.look(5.001, 109.0, connected=True)
    assert (use.uses, use.idle(110.0)) == (0, True)


def test_the_least_work_that_the_system_tells_is_use_however_much_it_was_before():
    for ticks in range(2_000):
        use = EngineUse(work=ticks / 100, now=0.0)
        use.look((ticks + 1) / 100, 1.0, connected=True)
        assert use.uses == 1, ticks


def test_what_it_does_for_nobody_is_no_use():
    use = EngineUse(work=5.0, now=100.0)
    use.look(9.0, 109.0, connected=False)
    assert (use.uses, use.idle(110.0)) == (0, True)


def test_who_has_used_it_lately_finds_it_for_ten_seconds_more():
    use = EngineUse(work=0.0, now=0.0)
    assert use.quiet(1.0) == 1.0
    use.look(1.0, 2.0, connected=True)
    assert (use.quiet(11.9), use.quiet(12.0)) == (10.0, 1.0)


def test_that_it_is_idle_is_told_at_once_and_that_it_is_in_use_once_a_minute():
    use, told = EngineUse(0.0, 0.0), list[tuple[int, bool]]()
    idle, uses, work = False, 0, 0.0
    for now in range(10, 200):
        if now in {20, 40, 41, 100}:
            work += 1
        use.look(work, now, connected=True)
        if use.is_news(now, idle=idle, uses=uses):
            idle, uses = use.idle(now), use.uses
            told.append((now, idle))
    assert told == [(10, True), (20, False), (30, True), (100, False), (110, True)]


def test_requests_without_a_pause_between_them_are_one_use():
    use, work = EngineUse(work=0.0, now=0.0), 0.0
    for now in (1.0, 5.0, 12.0, 21.0):
        work += 1
        use.look(work, now, connected=True)
    assert use.uses == 1
    use.look(work, 32.0, connected=False)
    use.look(work + 1, 33.0, connected=True)
    assert use.uses == 2


def test_one_that_says_that_it_was_asked_is_in_use():
    use = EngineUse(work=0.0, now=0.0)
    use.asked(11.0)
    assert (use.uses, use.idle(20.9), use.idle(21.0)) == (1, False, True)
    use.asked(12.0)
    assert use.uses == 1


def test_one_that_was_seen_in_use_is_not_used_again_by_what_it_says_of_that():
    """It is asked every five seconds which requests it had: one of four seconds before is no use
    of now."""
    use = EngineUse(work=0.0, now=0.0)
    use.look(1.0, 101.0, connected=True)
    use.asked_since(100.0, 105.0)
    assert (use.idle(110.9), use.idle(111.0)) == (False, True)
    use.asked_since(105.0, 110.0)  # nobody saw that one
    assert (use.uses, use.idle(119.9), use.idle(120.0)) == (1, False, True)


def test_what_it_does_for_a_question_of_ours_is_no_use():
    use = EngineUse(work=0.0, now=0.0)
    use.leave_out(0.5)
    use.look(0.505, 10.0, connected=True)
    assert (use.uses, use.idle(10.0)) == (0, True)


def says(*slots: object) -> bytes:
    return json.dumps(slots).encode()


def a_slot(number: int, request: int | None = None, *, works: bool = False) -> dict[str, object]:
    said = {} if request is None else {"id_task": request}
    return {"id": number, "n_ctx": 512, "is_processing": works, **said}


def test_a_request_that_came_and_went_is_seen_by_its_number():
    answers = [
        says(a_slot(0), a_slot(1, 1)), says(a_slot(0), a_slot(1, 1)),
        says(a_slot(0), a_slot(1, 4)),
        says(a_slot(0, 9), a_slot(1, 4)), says(a_slot(0, 9), a_slot(1, 4)),
    ]  # fmt: skip
    requests = Requests(iter(answers).__next__)
    assert [requests.look() for _ in answers[1:]] == [False, True, True, False]


def test_one_that_is_answered_is_seen_each_time():
    answers = [says(a_slot(0, 5, works=True))] * 3
    requests = Requests(iter(answers).__next__)
    assert [(requests.look(), requests.at_work) for _ in answers[1:]] == [(True, True)] * 2


@pytest.mark.parametrize(
    "odd",
    [None, b"", b"[]", b"{}", b"[" * 100_000, b"\xff", says(5, "a"), says({"id": "a"}), b"nul"],
)
def test_what_is_no_list_of_slots_says_nothing(odd: bytes | None):
    answers = [odd, odd, says(a_slot(0, 7)), odd, says(a_slot(0, 7)), says(a_slot(0, 8))]
    requests = Requests(iter(answers).__next__)
    assert [requests.look() for _ in answers[1:]] == [False, False, False, False, True]


def counts(*, running: float = 0, waiting: float = 0, **figures: object) -> bytes:
    """What vLLM answers at /metrics, shortened to one of each kind."""
    of = 'engine="0",model_name="a {\\"b\\"} 7"'
    said = {"stop": 0, "abort": 0, "prompt": 0, "tokens": 0} | figures
    return f"""# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{{generation="0"}} {random.randrange(10**6)}.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{of}}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{of}}} {waiting}
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{{of}}} {said["prompt"]}
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{{{of}}} {random.random()}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{{of}}} {said["tokens"]}
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {said["stop"]}
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} {said["abort"]}
# TYPE http_requests_total counter
http_requests_total{{handler="/v1/models",method="GET",status="2xx"}} {random.randrange(10**6)}.0
""".encode()


def test_vllm_that_has_counted_another_request_was_asked():
    answers = [
        counts(), counts(), counts(stop=1.0), counts(stop=1.0), counts(stop=1.0, abort=1.0),
        counts(stop=1.0, abort=1.0, prompt=1.6e+06), counts(stop=1.0, abort=1.0, prompt=1.6e+06),
    ]  # fmt: skip
    requests = Requests(iter(answers).__next__, METRICS)
    assert [requests.look() for _ in answers[1:]] == [False, True, False, True, True, False]


@pytest.mark.parametrize("at_work", [{"running": 1.0}, {"waiting": 2.0}])
def test_vllm_that_has_a_request_is_in_use_however_long(at_work: dict[str, float]):
    answers = [counts(), counts(**at_work), counts(**at_work), counts(), counts()]
    requests = Requests(iter(answers).__next__, METRICS)
    assert [requests.look() for _ in answers[1:]] == [True, True, True, False]


@pytest.mark.parametrize(
    "odd",
    [
        None, b"", b"\xff", b"{}", b"a 1\n", b"vllm:request_success_total", b" 5",
        b"vllm:prompt_tokens_total x\n", b"vllm:prompt_tokens_total NaN\n",
    ],
)  # fmt: skip
def test_what_counts_nothing_of_vllm_says_nothing(odd: bytes | None):
    answers = [odd, odd, counts(stop=7.0), odd, counts(stop=7.0), counts(stop=8.0)]
    requests = Requests(iter(answers).__next__, METRICS)
    assert [requests.look() for _ in answers[1:]] == [False, False, False, False, True]


def test_a_number_of_no_kind_is_no_request():
    answers = [says({"id": 0}), says({"id": 0, "id_task": "x", "is_processing": 1})]
    requests = Requests(iter(answers).__next__)
    assert not requests.look()


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["4", "6"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Listens on a port of its own; no time."""
    family, host = request.param
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listening.listen()
        yield listening


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(server.getsockname()[:2])
    return client, server.accept()[0]


def test_a_connection_is_seen_while_it_is_open(server: socket.socket):
    connections = Connections(server.getsockname()[1])
    assert not connections.look()
    client, accepted = connect(server)
    with client, accepted:
        assert connections.look()
        assert connections.look()


@pytest.mark.parametrize("first", ["client", "server"])
def test_one_that_came_and_went_between_two_looks_is_seen_once(server: socket.socket, first: str):
    connections = Connections(server.getsockname()[1])
    client, accepted = connect(server)
    one, other = (client, accepted) if first == "client" else (accepted, client)
    one.close()
    assert other.recv(1) == b""
    other.close()
    assert connections.look()
    assert not connections.look()
    assert not Connections(server.getsockname()[1]).look(), "what was before it came is no use"


def close(client: socket.socket, accepted: socket.socket) -> int:
    """Close a connection, on the side of the engine first, which leaves its trace there; return
    the client's port."""
    port = client.getsockname()[1]
    accepted.close()
    assert client.recv(1) == b""
    client.close()
    return port


@pytest.mark.exhaustive(always=1)
def test_our_own_are_left_out(server: socket.socket):
    connections = Connections(server.getsockname()[1])
    client, accepted = connect(server)
    port = client.getsockname()[1]
    client.close()
    connections.leave_out(port)
    assert not connections.look(), "the engine has not closed it yet"
    accepted.close()
    assert not connections.look()


@pytest.mark.exhaustive(always=1)
def test_our_own_are_left_out_as_long_as_they_are_seen(server: socket.socket):
    """Two each second, for the minute in which what is closed is seen."""
    connections = Connections(server.getsockname()[1])
    for _ in range(300):
        connections.leave_out(close(*connect(server)))
        assert not connections.look()


def test_a_client_with_a_port_that_was_ours_is_seen(server: socket.socket):
    """The system gives a port anew, and the agent may have asked from it before."""
    connections = Connections(server.getsockname()[1])
    client, accepted = connect(server)
    with client, accepted:
        connections.leave_out(client.getsockname()[1])
        assert connections.look()


def test_a_port_is_not_ours_once_nothing_is_seen_of_it(server: socket.socket):
    connections = Connections(server.getsockname()[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    connections.leave_out(port)
    assert not connections.look()
    here = server.getsockname()[:2]
    client = socket.create_connection(here, source_address=(here[0], port))
    close(client, server.accept()[0])
    assert connections.look()
