"""Engines as processes of jobs: ready when a token came, drained when stopped, explained when
they fail."""

import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.activities.node.engines import REPORT, engine_argv, read_report
from longshore.activities.node.run import Run
from longshore.activities.serving import engine as engine_module
from longshore.activities.serving import llama_server
from longshore.activities.serving.engine import WHEEL
from longshore.activities.serving.engine_command import SPEC
from longshore.models.retry import FailureClass
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import (
    EngineReport,
    EngineSpec,
    EngineStage,
    ModelSpec,
    Runtime,
    fetched,
)
from longshore.workers.processes import wait_until
from tests.agent.conftest import LocalNode
from tests.support.gguf_models import Model, write, write_adapter
from tests.support.served import serving
from tests.support.waiting import eventually

LLAMA = BUILT_IN["llama.cpp"]
_STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 0.5 MB; 0.02 s."""
    return write(Model(), tmp_path_factory.mktemp("models") / "tiny.gguf")


def an_engine(source: Path | str, runtime: Runtime = LLAMA, **model: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"name": "tiny", "source": str(source), "runtime": runtime.name}
    # One thread: several wait for each other at each layer, and do little else on a busy machine.
    usual |= {"context": 1000, "concurrency": 2}
    if runtime is LLAMA:
        usual["args"] = ["--threads", "1"]
    spec = ModelSpec.model_validate(usual | model)
    return EngineSpec(model=spec, runtime=runtime, memory=900).model_dump(mode="json")


async def ready(box: LocalNode, run: Run) -> EngineReport:
    """Wait until an engine is ready; return what it says."""

    def is_so() -> bool:
        assert not run.done.done(), box.output(run.record.key, "stderr")
        said = run.progress().engine
        return said is not None and said.stage is EngineStage.READY

    await eventually(is_so)
    said = run.progress().engine
    assert said is not None
    return said


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def allows(endpoint: str, origin: str) -> str:
    """Return to which web pages an engine lets a browser give its answers."""
    request = urllib.request.Request(f"{endpoint}/models", headers={"Origin": origin})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers.get("Access-Control-Allow-Origin", "")


def ask(endpoint: str, **body: object) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{endpoint}/completions",
        json.dumps({"prompt": "abc", "max_tokens": 4, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


async def test_it_answers_once_it_is_ready_and_says_what_it_takes(box: LocalNode, tiny: Path):
    run = box.start(None, engine=an_engine(tiny, sha256=digest_of(tiny)), gpus=1)
    said = await ready(box, run)
    assert said.endpoint.startswith("http://127.0.0.1:")
    assert said.load_seconds > 0
    assert said.memory > 10**6
    assert len(ask(said.endpoint)["choices"]) == 1
    assert fetch(f"{said.endpoint}/models")["data"][0]["id"] == "tiny"
    assert allows(said.endpoint, "http://evil.example") == ""
    report = await box.stop(run)
    assert report.stopped_for == "test"
    with pytest.raises(OSError, match="refused"):
        ask(said.endpoint)


async def test_a_request_is_answered_with_the_adapters_that_it_wants(
    box: LocalNode, tiny: Path, tmp_path: Path
):
    adapters = {
        name: str(write_adapter(tmp_path / f"{name}.gguf", strength=strength))
        for name, strength in (("a", 1.0), ("b", -1.0))
    }
    run = box.start(None, engine=an_engine(tiny, adapters=adapters), gpus=1)
    endpoint = (await ready(box, run)).endpoint
    listed = fetch(f"{endpoint.removesuffix('/v1')}/lora-adapters")
    assert [Path(each["path"]).name for each in listed] == ["a.gguf", "b.gguf"]

    def answer(a: int, b: int) -> str:
        wanted = [{"id": 0, "scale": a}, {"id": 1, "scale": b}]
        said = ask(endpoint, max_tokens=20, temperature=0, ignore_eos=True, lora=wanted)
        return said["choices"][0]["text"]

    answers = {answer(0, 0), answer(1, 0), answer(0, 1)}
    assert len(answers) == 3
    assert answer(1, 0) in answers
    await box.stop(run)


@pytest.mark.exhaustive
async def test_what_it_has_begun_is_answered_though_it_is_stopped(box: LocalNode, tiny: Path):
    run = box.start(None, engine=an_engine(tiny, context=4000), gpus=1)
    endpoint = (await ready(box, run)).endpoint
    answers: list[dict[str, Any]] = []
    begun = threading.Thread(
        target=lambda: answers.append(ask(endpoint, max_tokens=800, ignore_eos=True))
    )
    begun.start()

    def works() -> bool:
        return any(slot["is_processing"] for slot in fetch(endpoint.replace("/v1", "/slots")))

    await eventually(works)
    await box.stop(run, grace=60)
    begun.join()
    assert answers[0]["usage"]["completion_tokens"] == 800


def test_who_asks_while_it_ends_is_told_at_once(tiny: Path):
    """The server out of the package waits for all who are connected, and answers nobody."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-I", "-m", WHEEL, "--model", str(tiny), "--alias", "tiny"]
    argv += ["--port", str(port), "--ctx-size", "4000", "--threads", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert b"listening" in server.stdout.readline()
            with socket.create_connection(("127.0.0.1", port)) as begun:
                begun.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
                # Who is answered came after that.
                assert ask(f"http://127.0.0.1:{port}/v1")["choices"]
                server.terminate()
                begun.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    assert begun.recv(1) == b""
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_what_a_model_says_in_args_reaches_the_server_of_the_package(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    xllamacpp: Any = importlib.import_module("xllamacpp")
    asked = list[Any]()

    def refuse(wanted: Any) -> None:
        asked.append(wanted)
        raise RuntimeError("enough")

    monkeypatch.setattr(xllamacpp, "Server", refuse)
    args = "--flash-attn off --batch-size 1024 --chat-template chatml --rope-freq-base 5e5"
    argv = ["x", "--model", str(tiny), "--alias", "tiny", "--port", "1", "--ctx-size", "256"]
    monkeypatch.setattr(sys, "argv", [*argv, *args.split()])
    assert llama_server.main() == 1
    (wanted,) = asked
    assert wanted.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert (wanted.n_batch, wanted.n_ubatch) == (1024, 512)
    assert (wanted.chat_template, wanted.rope_freq_base) == ("chatml", 5e5)
    monkeypatch.setattr(sys, "argv", argv)
    llama_server.main()
    usual, plain = xllamacpp.CommonParams(), asked[1]
    for name in ("flash_attn_type", "n_batch", "chat_template", "rope_freq_base"):
        assert getattr(plain, name) == getattr(usual, name)


async def test_what_the_server_of_the_package_does_not_take_is_told_with_who_refuses_it(
    box: LocalNode, tiny: Path
):
    report = await box.report(None, engine=an_engine(tiny, args=["--numa", "isolate"]), gpus=1)
    assert report.exit_code == 2
    _, _, said = next(iter(box.processes.engines()))
    assert "server out of the package xllamacpp takes few options" in said.message
    assert "--numa isolate" in said.message


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "_ENDS_WITHIN", 0.1)
    stubborn = [sys.executable, "-c", _STUBBORN]
    with subprocess.Popen(stubborn, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        spec = EngineSpec.model_validate(an_engine(tmp_path / "none.gguf"))
        engine_module.Engine(spec, tmp_path / "report", {})._end(process)  # pyright: ignore[reportPrivateUsage]
        assert process.returncode == -signal.SIGKILL


@pytest.mark.exhaustive
async def test_one_that_was_asked_before_it_was_idle_says_so(box: LocalNode, tiny: Path):
    """One that is prewarmed is taken for unused until then, and leaves for anybody."""
    run = box.start(None, engine=an_engine(tiny), gpus=1)
    endpoint = (await ready(box, run)).endpoint
    ask(endpoint)

    def is_told() -> bool:
        said = run.progress().engine
        return said is not None and said.uses == 1 and not said.idle

    await eventually(is_told)
    await box.stop(run)


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
async def test_one_that_others_ask_ends_what_its_connections_do_not_show(
    box: LocalNode, tmp_path: Path, name: str
):
    """Requests that came and went on another machine leave no connection behind here: the engine
    alone knows of them."""
    looked = tmp_path / "looked"
    command = (sys.executable, "-c", _TELLS_OF_REQUESTS, "{port}", str(looked))
    run = box.start(None, engine=an_engine("/bin/sh", Runtime(name=name, command=command)))
    await ready(box, run)
    await box.stop(run, grace=60)
    assert int(looked.read_text()) > _ASKED, "it stopped when the last request was over"


async def test_a_file_that_is_no_model_is_told_with_what_the_engine_said(
    box: LocalNode, tmp_path: Path
):
    bad = tmp_path / "bad.gguf"
    bad.write_text("garbage")
    run = box.start(None, engine=an_engine(bad), gpus=1)
    report = await run.done
    assert (report.failure, report.exit_code) == (FailureClass.USER, 1)
    _, _, said = next(iter(box.processes.engines()))
    assert said.stage is EngineStage.FAILED
    assert said.message.startswith("the engine ended with exit code 1\n")
    assert "invalid magic characters" in said.message
    assert list(box.processes.engines()) == [], "last words are told once"


async def test_one_that_is_killed_or_never_starts_has_failed(box: LocalNode, tiny: Path):
    """Nobody is left to say so but its agent."""
    run = box.start(None, engine=an_engine(tiny), gpus=1)
    await ready(box, run)
    os.kill((await run.started)["pid"], signal.SIGKILL)
    report = await run.done
    (last,) = box.processes.engines()
    assert last[2] == EngineReport(stage=EngineStage.FAILED, message=report.message)
    assert report.message.startswith("killed by signal 9"), report.message

    report = await box.report(None, engine=an_engine(tiny), gpus=1, workdir="none")
    (last,) = box.processes.engines()
    assert report.failure is FailureClass.START
    assert last[2] == EngineReport(stage=EngineStage.FAILED, message=report.message)


async def test_one_that_is_stopped_has_not_failed(box: LocalNode, tiny: Path):
    run = box.start(None, engine=an_engine(tiny), gpus=1)
    await ready(box, run)
    await box.stop(run)
    (last,) = box.processes.engines()
    assert last[2].stage is not EngineStage.FAILED


async def test_another_file_than_was_named_is_not_served(box: LocalNode, tiny: Path):
    report = await box.report(None, engine=an_engine(tiny, sha256="0" * 64), gpus=1)
    assert report.failure is FailureClass.USER
    _, _, said = next(iter(box.processes.engines()))
    assert "it is damaged, or another file" in said.message


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("sha256", [None, "0" * 64], ids=["", "with-digest"])
async def test_what_is_no_file_and_no_folder_is_refused_at_once(
    box: LocalNode, tmp_path: Path, sha256: str | None
):
    """Whoever opened the pipe would wait for ever, and no limit counts before the engine runs."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for place in (tmp_path / "pipe.gguf", Path("/dev/zero")):
        await box.report(None, engine=an_engine(place, sha256=sha256), gpus=1)
        _, _, said = next(iter(box.processes.engines()))
        assert said.message == f"{place} is no file and no folder"


async def test_a_folder_has_no_digest(box: LocalNode, tmp_path: Path):
    await box.report(None, engine=an_engine(tmp_path, sha256="0" * 64), gpus=1)
    _, _, said = next(iter(box.processes.engines()))
    assert said.message == f"{tmp_path} is no file, and a digest is of one"


async def test_a_file_that_is_not_there_is_named(box: LocalNode, tmp_path: Path):
    await box.report(None, engine=an_engine(tmp_path / "none.gguf"), gpus=1)
    _, _, said = next(iter(box.processes.engines()))
    assert said.message == f"this node has no {tmp_path / 'none.gguf'}"


@pytest.mark.exhaustive
async def test_a_model_of_several_files_behind_a_url_is_served(box: LocalNode, tmp_path: Path):
    """Each is a data set of its own, and the engine looks for the others beside the first."""
    first = write(Model(), tmp_path / "tiny.gguf", tensors=8)
    with serving(tmp_path) as served:
        engine = an_engine(f"{served.url}{first.name}")
        wanted = fetched(ModelSpec.model_validate(engine["model"]))
        assert len(wanted) > 2
        data = {name: {"from": url, "start_at": 1.0} for name, url in wanted.items()}
        run = box.start(None, engine=engine, data=data, gpus=1)
        said = await ready(box, run)
        assert len(ask(said.endpoint)["choices"]) == 1
        await box.stop(run)


async def test_why_a_model_was_not_fetched_is_said(box: LocalNode, tmp_path: Path):
    """The node has started the engine without its files, and knows why they lack."""
    with serving(tmp_path) as served:
        (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
        served.refused.add("tiny.gguf")
        source = f"{served.url}tiny.gguf"
        data = {"model": {"from": source, "start_at": 1.0}}
        await box.report(None, engine=an_engine(source), data=data, gpus=1)
    _, _, said = next(iter(box.processes.engines()))
    assert said.message.startswith(f"{source} could not be fetched: "), said.message
    assert "503" in said.message


async def test_one_that_never_answers_has_failed_after_its_limit(box: LocalNode, tiny: Path):
    silent = Runtime(name="silent", command=("sh", "-c", "echo hello {port}; exec sleep 600"))
    run = box.start(None, engine=an_engine(tiny, silent, memory=1, start_limit="300ms"), gpus=1)
    report = await run.done
    assert report.exit_code == 1
    _, _, said = next(iter(box.processes.engines()))
    assert said.message.startswith("it did not answer within 0.3 s\nhello ")


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize(
    ("writes", "says"),
    [("self.send_error(501)", "status 501"),
     ("self.send_response(200); self.end_headers()", "status 200, without a token")],
)  # fmt: skip
async def test_one_that_answers_and_gives_no_token_has_failed_with_what_it_answered(
    box: LocalNode, tiny: Path, writes: str, says: str
):
    server = (
        "import http.server, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        f"    def do_POST(self): {writes}\n"
        "    def log_message(self, *_): pass\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()"
    ).replace("{", "{{").replace("}", "}}")  # fmt: skip
    odd = Runtime(name="odd", command=(sys.executable, "-c", server, "{port}"))
    run = box.start(None, engine=an_engine(tiny, odd, memory=1, start_limit="5s"), gpus=1)
    await run.done
    _, _, said = next(iter(box.processes.engines()))
    assert said.message == f"it gave no token within 5 s, and answered last with {says}"


@pytest.mark.parametrize("start", ["sleep 300", "setsid sleep 300"])
async def test_what_an_engine_leaves_running_does_not_hold_its_gpu_for_the_grace(
    box: LocalNode, tiny: Path, start: str
):
    """A server may start workers and not end them, in a session of their own too; they have the
    memory."""
    script = f"{start} & echo begun; wait"
    command = ("sh", "-c", script, "{port}")
    run = box.start(None, engine=an_engine(tiny, Runtime(name="own", command=command)), gpus=1)

    def has_begun() -> bool:
        return "begun" in box.output(run.record.key)

    await eventually(has_begun)
    async with asyncio.timeout(30):
        await box.stop(run, grace=300)


async def test_a_program_that_the_node_does_not_have_is_named(box: LocalNode, tiny: Path):
    absent = Runtime(name="absent", command=("no-such-engine", "{port}"))
    report = await box.report(None, engine=an_engine(tiny, absent, memory=1), gpus=1)
    assert report.exit_code == 127
    _, _, said = next(iter(box.processes.engines()))
    assert "no-such-engine" in said.message


async def test_a_proxy_of_the_node_is_not_asked_for_its_own_engine(
    box: LocalNode, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    run = box.start(None, engine=an_engine(tiny), gpus=1)
    assert (await ready(box, run)).endpoint


@pytest.mark.exhaustive
def test_a_full_disk_does_not_keep_an_engine_from_answering(tiny: Path, tmp_path: Path):
    """What it writes has nowhere to go, and more than a pipe holds."""
    report = tmp_path / "engine"
    environ = {**os.environ, SPEC: json.dumps(an_engine(tiny)), "LONGSHORE_SIMULATED_GPUS": "1"}
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            [*engine_argv(tmp_path)], env=environ, stdout=full, stderr=subprocess.DEVNULL
        )
    try:
        assert wait_until(lambda: report.exists() and '"ready"' in report.read_text(), 60)
        endpoint = EngineReport.model_validate_json(report.read_bytes()).endpoint
        for _ in range(200):
            assert ask(endpoint, max_tokens=1)["choices"]
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.exhaustive
def test_what_writes_without_end_of_line_takes_no_memory(tmp_path: Path):
    asked, report = tmp_path / "asked", tmp_path / "engine"
    writes = f"head -c 300000000 /dev/zero; touch {asked}; exec sleep 600"
    endless = Runtime(name="endless", command=("sh", "-c", writes, "{port}"))
    spec = an_engine("/bin/sh", endless, memory=1)
    process = subprocess.Popen(
        [*engine_argv(tmp_path)], env={**os.environ, SPEC: json.dumps(spec)},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert wait_until(asked.exists, 60)
        assert psutil.Process(process.pid).memory_info().rss < 200_000_000
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert not report.exists() or '"failed"' not in report.read_text()


def test_what_a_disk_does_not_take_is_told_once_it_does(tmp_path: Path):
    """An engine that could not say that it is ready was loading for ever, and its process hung."""
    asked, public = tmp_path / "asked", tmp_path / "public"
    answers = Runtime(
        name="answers", command=(sys.executable, "-c", _ANSWERS, "{port}", str(asked))
    )
    spec = an_engine(sys.executable, answers, memory=1)
    environ = {**os.environ, SPEC: json.dumps(spec)}
    process = subprocess.Popen([*engine_argv(public)], env=environ)
    try:
        assert wait_until(asked.exists, 60)
        assert process.poll() is None
        public.mkdir()
        assert wait_until(lambda: '"ready"' in _text_of(public / REPORT), 60)
        public.rename(tmp_path / "gone")
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()


def _text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


_ANSWERS = """
import http.server, pathlib, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"choices": [1]}}')
        pathlib.Path(sys.argv[2]).touch()

    do_GET = do_POST

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


_ASKED = 5
_TELLS_OF_REQUESTS = f"""
import http.server, json, pathlib, sys

looks = 0

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global looks
        self.send_response(200)
        self.end_headers()
        if self.path in ("/slots", "/metrics"):
            looks += 1
            pathlib.Path(sys.argv[2]).write_text(str(looks))
            asked = min(looks, {_ASKED})
            slots = json.dumps([{{{{"id": 0, "id_task": asked, "is_processing": False}}}}])
            counted = "vllm:request_success_total " + str(asked)
            self.wfile.write((slots if self.path == "/slots" else counted).encode())
        else:
            self.wfile.write(b'{{{{"choices": [1]}}}}')

    do_GET = do_POST

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


@pytest.mark.exhaustive
async def test_an_engine_that_hangs_has_failed(box: LocalNode, tiny: Path):
    run = box.start(None, engine=an_engine(tiny), gpus=1)
    await ready(box, run)
    (engine,) = [
        each for each in psutil.Process().children(recursive=True)
        if "longshore.activities.serving.llama_server" in each.cmdline()
    ]  # fmt: skip
    engine.suspend()
    report = await run.done
    assert report.exit_code == 1
    _, _, said = next(iter(box.processes.engines()))
    assert said.message.startswith("it has not answered 3 times in a row, each within 10 s")


@pytest.mark.parametrize(
    "wrong",
    [{"load_seconds": 1e300}, {"endpoint": "a\0b"}, {"memory": -1}, {"endpoint": "a" * 400}],
)
def test_a_report_beyond_its_bounds_is_none(wrong: dict[str, object], tmp_path: Path):
    """Whatever the process of a job writes there, no service has to store it."""
    (tmp_path / REPORT).write_text(json.dumps({"stage": "ready", **wrong}))
    assert read_report(tmp_path, None) is None
    (tmp_path / REPORT).write_text(json.dumps({"stage": "ready", "endpoint": "http://x/v1"}))
    assert read_report(tmp_path, None) is not None
