"""The process of a job that serves a model: it starts the engine, sees that it answers, ends it.

It runs on a node as the command of the job. What it finds it writes into a file that the agent
reads (`EngineReport`); what the engine writes goes on to the job's logs.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from longshore.activities.node.public_files import replace_public
from longshore.activities.serving.engine_command import ADDRESS, SPEC, arguments, path_of_model
from longshore.activities.serving.engine_memory import memory_of, work_of
from longshore.activities.serving.engine_use import Connections, EngineUse, Requests
from longshore.activities.serving.load_turns import Turn
from longshore.models.runtimes import REQUESTS
from longshore.models.serving import LLAMA_CPP, EngineReport, EngineSpec, EngineStage
from longshore.models.visible import visible

WHEEL = "longshore.activities.serving.llama_server"
"""llama.cpp's server from a package of Python, where the node has no `llama-server`."""
_POLL_EVERY = 0.05
"""Seconds between two questions to an engine that loads; at most ten times that."""
_LOOK_EVERY = 0.1
"""Seconds between two looks whether it lives and is wanted, while a question is open."""
_MEASURE_EVERY = 5.0
_MOST_SILENT, _PROBE_WITHIN = 3, 10.0
"""Looks without an answer after which an engine counts as hung, and the seconds of each."""
_SAYS_WITHIN, _SAYS_EVERY, _MOST_SAID = 1.0, 0.5, 2**22
"""Of what an engine says of its requests: llama.cpp answers between two steps of its work."""
_ENDS_WITHIN = 10.0
"""Seconds after SIGTERM. It has answered what it had begun, and an engine may wait for ever for a
request that came after that."""
_IDLE = 0.02
"""Seconds of the processor, of which an engine that hangs takes less from look to look."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An engine is on this machine: no proxy leads there."""
_USE_EVERY = 0.25
_NEWS = 32_000_000
"""Bytes by which the memory of an engine has to change, and by a twentieth, to be told."""
_LINES, _LONGEST = 10, 200
_LONGEST_LINE = 2**16
_PIECE = 2**22
_CLOSED = {
    "LLAMA_ARG_CORS_ORIGINS": "localhost", "LLAMA_ARG_UI": "0", "LLAMA_ARG_WEBUI": "0",
}  # fmt: skip
"""llama.cpp lets every web page read its answers, and brings one of its own, unless it is told
otherwise. By variables: a version that does not know an option ends there."""
_FAILED = 1


class Engine:
    """One engine while it lives."""

    def __init__(self, spec: EngineSpec, report: Path, environ: Mapping[str, str]) -> None:
        self._spec = spec
        self._report = report
        self._environ = environ
        self._said = EngineReport(stage=EngineStage.LOADING)
        self._untold = False
        self._asked = threading.Event()
        self._last = deque[str](maxlen=_LINES)

    def stop(self, *_: object) -> None:
        """Have it end what it has begun, then stop."""
        self._asked.set()

    def run(self) -> int:
        """Serve until it is asked to stop, or the engine ends; return the exit code."""
        turn = Turn(self._environ)
        try:
            model = path_of_model(self._spec.model.source, self._environ, Path.cwd())
            self._check(model)
            if not turn.take(self._asked, lambda why: self._tell(message=why)):
                return 128 + signal.SIGTERM
            begun = time.monotonic()
            self._tell(stage=EngineStage.LOADING, message="")
            argv, port = self._command(model)
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**_CLOSED, **self._environ},
                start_new_session=True,  # the signal that stops the job is for this process alone
                pass_fds=turn.files,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return self._fail(str(error), 127)
        assert process.stdout is not None
        echo = threading.Thread(target=self._echo, args=(process.stdout,), daemon=True)
        echo.start()
        limit = self._spec.model.start_limit.total_seconds()
        wait, last = _POLL_EVERY, ""
        while (said := self._ask(process, port, begun + limit)) is not None:
            last = said or last
            if (code := process.poll()) is not None:
                return self._ended(process, echo, code)
            if self._asked.is_set():
                return self._end(process)
            if time.monotonic() - begun >= limit:
                _kill(process)
                echo.join(1)
                late = f"gave no token within {limit:g} s, and answered last with {last}"
                never = f"did not answer within {limit:g} s"
                return self._fail(f"it {late if last else never}{self._lines()}")
            self._asked.wait(wait)
            wait = min(wait * 1.5, 10 * _POLL_EVERY)
        turn.give_up()
        # Before anybody knows its address: what is there now is nobody's use.
        looked = time.monotonic()
        worked = work_of(process.pid)
        use, connections = EngineUse(worked, looked), Connections(port)
        requests = self._requests(port, connections.leave_out)
        endpoint = f"{self._address(port)}/v1"
        self._tell(
            stage=EngineStage.READY, endpoint=endpoint, load_seconds=time.monotonic() - begun,
            memory=memory_of(process.pid, self._environ),
        )  # fmt: skip
        silent = 0
        while (code := process.poll()) is None and not self._asked.wait(_USE_EVERY):
            use.look(work_of(process.pid), time.monotonic(), connected=connections.look())
            self._tell_use(use)
            if self._untold:
                self._tell()
            if time.monotonic() - looked < _MEASURE_EVERY:
                continue
            self._measure(memory_of(process.pid, self._environ))
            lives = _lives(_host(self._environ), port, connections.leave_out)
            if requests.look():
                now = time.monotonic()
                use.asked(now) if requests.at_work else use.asked_since(looked, now)
            before, worked = worked, work_of(process.pid)
            use.leave_out(worked)
            # One that has too much to do does not answer either, and works.
            silent = 0 if lives or worked - before > _IDLE else silent + 1
            if silent >= _MOST_SILENT and not self._asked.is_set():
                _kill(process)
                return self._fail(
                    f"it has not answered {_MOST_SILENT} times in a row, each within "
                    f"{_PROBE_WITHIN:g} s, and did nothing meanwhile{self._lines()}"
                )
            looked = time.monotonic()
        if code is not None:
            return self._ended(process, echo, code)
        self._tell(stage=EngineStage.DRAINING)
        if requests.look():
            use.asked(time.monotonic())
        _until_quiet(process, connections, requests, use.quiet(time.monotonic()))
        return self._end(process)

    def _ask(self, process: subprocess.Popen[bytes], port: int, until: float) -> str | None:
        """Ask for a token, and return what `_no_token` does. The question stays open for as long
        as the engine may load: some load for it, and stop where who asked hangs up (Ollama)."""
        question = _Question(self._address(port), self._spec.model.name)
        question.start()
        while question.is_alive() and process.poll() is None and not self._asked.is_set():
            if time.monotonic() >= until:
                break
            question.join(_LOOK_EVERY)
        return question.said

    def _check(self, model: Path) -> None:
        """Raise ValueError where a file is missing, or is another one than was named."""
        if not model.exists():
            raise ValueError(f"this node has no {visible(str(model))}")
        if not (model.is_file() or model.is_dir()):
            # Whoever opens a pipe or a device may wait for ever, as the engine would.
            raise ValueError(f"{visible(str(model))} is no file and no folder")
        expected = self._spec.model.sha256
        if expected is None:
            return
        hashed = hashlib.sha256()
        with _opened(model) as file:
            while piece := file.read(_PIECE):
                hashed.update(piece)
        if hashed.hexdigest() != expected:
            raise ValueError(
                f"{visible(str(model))} has the SHA-256 digest {hashed.hexdigest()}, and not "
                f"{expected}: it is damaged, or another file"
            )

    def _command(self, model: Path) -> tuple[Sequence[str], int]:
        port = _free_port(_host(self._environ))
        argv = arguments(self._spec, model, port, self._environ)
        if self._spec.runtime.name == LLAMA_CPP and shutil.which(argv[0]) is None:
            argv = [sys.executable, "-I", "-m", WHEEL, *argv[1:]]
        return argv, port

    def _requests(self, port: int, is_ours: Callable[[int], None]) -> Requests:
        """Return what the engine says of its requests; nothing, where its runtime does not."""
        path = REQUESTS.get(self._spec.runtime.name)
        if path is None:
            return Requests(lambda: None)
        host = _host(self._environ)
        return Requests(lambda: _got(host, port, path, is_ours, _SAYS_WITHIN, _MOST_SAID), path)

    def _address(self, port: int) -> str:
        host = _host(self._environ)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _echo(self, output: IO[bytes]) -> None:
        """Pass on what the engine writes, and keep its last lines."""
        # In pieces: nobody says that an engine ends its lines.
        while line := output.readline(_LONGEST_LINE):
            # On a full disk the engine goes on all the same: nobody else would read its output.
            with contextlib.suppress(OSError):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            if text := line.decode(errors="replace").strip():
                self._last.append(text[:_LONGEST])

    def _ended(self, process: subprocess.Popen[bytes], echo: threading.Thread, code: int) -> int:
        """Tell of an engine that ended by itself."""
        echo.join(1)
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        return self._fail(f"the engine {how}{self._lines()}", code if code > 0 else 128 - code)

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN)  # what it leaves is killed at once then: see the supervisor
        except subprocess.TimeoutExpired:
            _kill(process)
        return 128 + signal.SIGTERM

    def _fail(self, why: str, code: int = _FAILED) -> int:
        print(f"longshore: {why}", file=sys.stderr, flush=True)
        self._tell(stage=EngineStage.FAILED, message=why)
        return code or _FAILED

    def _lines(self) -> str:
        return "".join(f"\n{visible(line)}" for line in self._last)

    def _measure(self, memory: int) -> None:
        """Tell what it takes, where that is news: each telling is a signal to its service."""
        if abs(memory - self._said.memory) > max(self._said.memory // 20, _NEWS):
            self._tell(memory=memory)

    def _tell_use(self, use: EngineUse) -> None:
        now = time.monotonic()
        if use.is_news(now, idle=self._said.idle, uses=self._said.uses):
            self._tell(idle=use.idle(now), uses=use.uses)

    def _tell(self, **changes: object) -> None:
        said = self._said.model_copy(update=changes)
        if said != self._said or self._untold:
            self._said, self._untold = said, False
            try:
                replace_public(self._report, said.model_dump_json())
            except OSError:  # as on a full disk: it is told again
                self._untold = True


def _opened(path: Path) -> BinaryIO:
    """Open a file to read, and never wait: it may have become a pipe since it was looked at.

    Raises OSError, ValueError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{visible(str(path))} is no file, and a digest is of one")
    return os.fdopen(fd, "rb")


def _host(environ: Mapping[str, str]) -> str:
    return environ.get(ADDRESS, "127.0.0.1")


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.bind((host, 0))
        return tried.getsockname()[1]


class _Question(threading.Thread):
    """Asks an engine for a token, while others look at the engine."""

    def __init__(self, address: str, model: str) -> None:
        super().__init__(daemon=True)
        self._about = address, model
        self.said: str | None = ""

    def run(self) -> None:
        self.said = _no_token(*self._about)


def _no_token(address: str, model: str) -> str | None:
    """Return what an engine answers instead of a token, empty for one that does not answer; None
    for one that gives it: one that says that it is healthy may not yet. Waits for as long as the
    engine is there."""
    asked = json.dumps({"model": model, "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"{address}/v1/completions",
        data=asked,
        headers={"Content-Type": "application/json"},
    )
    try:
        with _DIRECT.open(request) as answer:
            status = f"status {answer.status}"
            said = answer.read(100_000)
    except urllib.error.HTTPError as error:
        error.close()
        return f"status {error.code}"
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    with contextlib.suppress(ValueError, AttributeError):
        if json.loads(said).get("choices"):
            return None
    return f"{status}, without a token"


def _lives(host: str, port: int, is_ours: Callable[[int], None]) -> bool:
    """Return whether an engine answers at all; what it lists costs it nothing."""
    return _got(host, port, "/v1/models", is_ours, _PROBE_WITHIN, 0) is not None


def _got(
    host: str, port: int, path: str, is_ours: Callable[[int], None], within: float, most: int
) -> bytes | None:
    """Return as many bytes at most of what an engine answers at a path, whatever that is; None
    where it does not. `is_ours` hears, once it is closed, from which port the question came."""
    connection = http.client.HTTPConnection(host, port, timeout=within)
    came_from = None
    try:
        connection.connect()
        came_from = connection.sock.getsockname()[1]
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.read(most) if most else b""
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
        if came_from is not None:
            is_ours(came_from)


def _until_quiet(
    process: subprocess.Popen[bytes], connections: Connections, requests: Requests, seconds: float
) -> None:
    """Wait until nobody has been connected to the engine, or has asked it, for so long."""
    quiet_since = asked_at = time.monotonic()
    while process.poll() is None and (now := time.monotonic()) - quiet_since < seconds:
        if connections.look():
            quiet_since = now
        elif now - asked_at >= _SAYS_EVERY:
            asked_at = now
            if requests.look():
                quiet_since = now
        time.sleep(0.1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve a model on this node.")
    parser.add_argument("report", type=Path, help="the file to write what the engine does to")
    report = parser.parse_args().report
    engine = Engine(EngineSpec.model_validate_json(os.environ[SPEC]), report, os.environ)
    signal.signal(signal.SIGTERM, engine.stop)
    return engine.run()


if __name__ == "__main__":
    sys.exit(main())
