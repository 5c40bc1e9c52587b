"""Engines that load: on one GPU one after the other, whoever is killed; at the first question, for
as long as they may."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from longshore.activities.node.launch import LOADING_FOLDER
from longshore.activities.node.run import Run
from longshore.activities.serving import engine as engine_module
from longshore.activities.serving.engine_command import LOADING
from longshore.activities.serving.load_turns import Turn
from longshore.models.placement import Placement
from longshore.models.serving import EngineStage, Runtime
from tests.agent.conftest import LocalNode
from tests.agent.test_engines import an_engine, ask, ready, tiny
from tests.support.waiting import eventually

__all__ = ["tiny"]


def loads_until(folder: Path) -> Runtime:
    """Return a runtime whose engine answers once there is a file of its model's name."""
    script = folder / "slow.py"
    script.write_text(_SLOW)
    return Runtime(
        name="slow", command=(sys.executable, str(script), str(folder / "{name}"), "{port}")
    )


_SLOW = """
import http.server, os, sys, time
go, port = sys.argv[1:]
open(go + ".loads", "w").write(str(os.getpid()))
while not os.path.exists(go):
    time.sleep(0.02)
class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [{}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(port)), Answers).serve_forever()
"""


_LOADS_WHEN_ASKED = """
import http.server, sys
class Loads(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        open(sys.argv[2], "a").write("asked\\n")
        self.rfile.read(int(self.headers["Content-Length"]))
        self.rfile.read(1)  # nothing comes: until who asks hangs up
        open(sys.argv[2], "a").write("hung up\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Loads).serve_forever()
"""
"""As Ollama: it loads for who asks, and gives that up when they hang up."""
_SOON = 20
"""Seconds, less than any answer was waited for before (30)."""


class Loads:
    """Engines whose loads take as long as the test wants."""

    def __init__(self, box: LocalNode, model: Path, folder: Path) -> None:
        self.box, self.model, self.folder = box, model, folder
        self.runtime = loads_until(folder)

    def start(self, name: str, gpus: tuple[int, ...] = (0,), **model: object) -> Run:
        engine = an_engine(self.model, self.runtime, name=name, memory=1, **model)
        request = self.box.request(None, job=name, engine=engine, gpus=len(gpus))
        here: Placement = request.placement.model_copy(update={"gpu_indices": gpus})
        return self.box.processes.start(request.model_copy(update={"placement": here}))

    def begun(self, name: str) -> bool:
        """Return whether the program of an engine has been started."""
        return (self.folder / f"{name}.loads").exists()

    async def begins(self, name: str) -> None:
        await eventually(lambda: self.begun(name))

    def program(self, name: str) -> psutil.Process:
        return psutil.Process(int((self.folder / f"{name}.loads").read_text()))

    def finish(self, name: str) -> None:
        (self.folder / name).touch()

    async def waits(self, run: Run, words: str) -> None:
        """Wait until an engine says that it waits, as its job does too."""

        def says() -> bool:
            assert not run.done.done(), self.box.output(run.record.key, "stderr")
            said = run.progress()
            return said.engine is not None and said.engine.message == said.message == words

        await eventually(says)


@pytest.fixture
def loads(box: LocalNode, tiny: Path, tmp_path: Path) -> Loads:
    """A node, and engines that load until they are let go; 0.02 s."""
    return Loads(box, tiny, tmp_path)


async def test_one_loads_at_a_time_on_a_gpu(loads: Loads):
    first = loads.start("one", start_limit="20s")
    await loads.begins("one")
    second = loads.start("two", start_limit="3s")
    third = loads.start("three", gpus=(1,))
    await loads.waits(second, "waits for one to load on gpu 0")
    await loads.begins("three")
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 3.1)  # longer than the limit of the second
    assert not loads.begun("two")
    loads.finish("two")
    loads.finish("one")
    await ready(loads.box, first)
    said = await ready(loads.box, second)
    assert (said.message, said.load_seconds < 20) == ("", True)
    assert second.progress().message == ""
    assert not third.done.done()


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("victim", ["program", "its keeper"])
async def test_the_next_loads_where_one_is_killed(loads: Loads, victim: str):
    first = loads.start("one")
    await loads.begins("one")
    second = loads.start("two")
    await loads.waits(second, "waits for one to load on gpu 0")
    program = loads.program("one")
    (program if victim == "program" else psutil.Process(program.ppid())).kill()
    await loads.begins("two")
    assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
    await first.done
    loads.finish("two")
    assert (await ready(loads.box, second)).stage is EngineStage.READY


@pytest.mark.exhaustive
async def test_one_that_waits_can_be_killed_or_stopped(loads: Loads):
    first = loads.start("one")
    await loads.begins("one")
    killed, stopped = loads.start("killed"), loads.start("stopped")
    for run in (killed, stopped):
        await loads.waits(run, "waits for one to load on gpu 0")
    os.kill((await killed.started)["pid"], signal.SIGKILL)
    await killed.done
    assert (await loads.box.stop(stopped)).stopped_for == "test"
    loads.finish("one")
    await ready(loads.box, first)
    loads.finish("two")
    await ready(loads.box, loads.start("two"))
    assert not loads.begun("killed")
    assert not loads.begun("stopped")


@pytest.mark.exhaustive
async def test_several_gpus_are_waited_for_without_a_circle(loads: Loads):
    on_both = [loads.start(name, gpus) for name, gpus in (("a", (1, 0)), ("b", (0, 1)))]
    alone = [loads.start(name, (gpu,)) for gpu, name in enumerate(("c", "d"))]
    for name in "abcd":
        loads.finish(name)
    for run in (*on_both, *alone):
        await ready(loads.box, run)


async def test_a_real_engine_waits_for_another(loads: Loads, tiny: Path):
    loads.start("one")
    await loads.begins("one")
    request = loads.box.request(None, job="real", engine=an_engine(tiny), gpus=1)
    here = request.placement.model_copy(update={"gpu_indices": (0,)})
    run = loads.box.processes.start(request.model_copy(update={"placement": here}))
    await loads.waits(run, "waits for one to load on gpu 0")
    loads.program("one").kill()
    assert ask((await ready(loads.box, run)).endpoint)["choices"]


async def loads_when_asked(box: LocalNode, model: Path, told: Path, limit: str) -> Run:
    """Return an engine that has been asked, and does not answer."""
    lazy = Runtime(
        name="lazy", command=(sys.executable, "-c", _LOADS_WHEN_ASKED, "{port}", str(told))
    )
    run = box.start(None, engine=an_engine(model, lazy, memory=1, start_limit=limit), gpus=1)
    await eventually(told.exists)
    return run


async def test_one_that_loads_when_it_is_asked_is_stopped_meanwhile(
    box: LocalNode, tiny: Path, tmp_path: Path
):
    run = await loads_when_asked(box, tiny, tmp_path / "told", "10m")
    async with asyncio.timeout(_SOON):
        report = await box.stop(run, grace=60)
    assert report.exit_code == 128 + signal.SIGTERM


async def test_one_that_loads_when_it_is_asked_is_asked_once_until_its_limit(
    box: LocalNode, tiny: Path, tmp_path: Path
):
    run = await loads_when_asked(box, tiny, told := tmp_path / "told", "2s")
    async with asyncio.timeout(_SOON):
        await run.done
    _, _, said = next(iter(box.processes.engines()))
    assert said.message == "it did not answer within 2 s"
    assert told.read_text() == "asked\n"


def test_a_question_is_open_for_as_long_as_the_engine_is_there(monkeypatch: pytest.MonkeyPatch):
    opened = list[float | None]()

    class Nobody:
        def open(self, request: object, timeout: float | None = None) -> None:
            opened.append(timeout)
            raise OSError

    monkeypatch.setattr(engine_module, "_DIRECT", Nobody())
    assert engine_module._no_token("http://127.0.0.1:1", "tiny") == ""  # pyright: ignore[reportPrivateUsage]
    assert opened == [None]


def test_locks_are_taken_in_one_order_and_told(tmp_path: Path):
    def environ(job: str, gpus: str) -> dict[str, str]:
        return {
            LOADING: str(tmp_path / LOADING_FOLDER), "LONGSHORE_JOB_ID": job,
            "LONGSHORE_GPU_INDICES": gpus,
        }  # fmt: skip

    nobody, unwanted = threading.Event(), threading.Event()
    unwanted.set()
    told: list[str] = []
    first, second = Turn(environ("one", "10,9")), Turn(environ("two", "9,10"))
    assert first.take(nobody, told.append)
    assert not second.take(unwanted, told.append)
    assert told == ["waits for one to load on gpu 9"]
    first.give_up()
    first.give_up()
    assert second.take(nobody, told.append)
    assert len(second.files) == 2
    second.give_up()
    assert Turn({}).take(nobody, told.append), "an agent that names no folder"
