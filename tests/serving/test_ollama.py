"""How the built-in runtime `ollama` starts its program: with a script in the place of Ollama."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import PLACES, places_of
from tests.support.waiting import eventually

_PROGRAM = """#!/bin/sh
case "$1" in
serve)
    env | grep ^OLLAMA_ | sort >"$SEEN/env"
    echo $$ >"$SEEN/pid"
    trap 'echo >"$SEEN/stopped"; exit 0' TERM
    while :; do sleep 0.05; done;;
list) test -e "$SEEN/pid" ;;
create)
    shift
    printf '%s\\n' "$@" >"$SEEN/create"
    cat "$3" >"$SEEN/modelfile"
    test ! -e "$SEEN/refuse";;
esac
"""
_VALUES = {
    "model": "/models/a file.gguf", "name": "tiny", "host": "127.0.0.1", "port": "4711",
    "context": "2048", "concurrency": "2", "cache_type": "q8_0",
}  # fmt: skip


@contextmanager
def running(folder: Path, **values: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "bin").mkdir()
    program = folder / "bin" / "ollama"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    (folder / "tmp").mkdir()
    command = [each.format(**_VALUES | values) for each in BUILT_IN["ollama"].command]
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SEEN": str(folder),
        "TMPDIR": str(folder / "tmp"),
    }  # fmt: skip
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read(path: Path) -> Callable[[], str]:
    return lambda: path.read_text() if path.exists() else ""


async def test_it_serves_one_model_and_leaves_nothing_behind(tmp_path: Path):
    with running(tmp_path) as process:
        modelfile = await eventually(read(tmp_path / "modelfile"))
        assert modelfile == "FROM /models/a file.gguf\n"
        assert read(tmp_path / "create")().splitlines()[0] == "tiny"
        said = dict(line.split("=", 1) for line in read(tmp_path / "env")().splitlines())
        folder = Path(said.pop("OLLAMA_MODELS"))
        assert folder.parent == tmp_path / "tmp"
        assert said == {
            "OLLAMA_HOST": "127.0.0.1:4711", "OLLAMA_CONTEXT_LENGTH": "2048",
            "OLLAMA_NUM_PARALLEL": "2", "OLLAMA_KV_CACHE_TYPE": "q8_0",
            "OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_NOPRUNE": "1",
        }  # fmt: skip
        process.terminate()
        process.wait(timeout=60)
        assert (tmp_path / "stopped").exists()
        assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("host", "named"), [("::1", "[::1]:4711"), ("10.0.0.7", "10.0.0.7:4711")])
async def test_an_address_of_ipv6_has_brackets(tmp_path: Path, host: str, named: str):
    with running(tmp_path, host=host):
        await eventually(read(tmp_path / "modelfile"))
        assert f"OLLAMA_HOST={named}\n" in read(tmp_path / "env")()


async def test_a_model_that_it_does_not_take_ends_it(tmp_path: Path):
    (tmp_path / "refuse").touch()
    with running(tmp_path) as process:
        assert process.wait(timeout=60) == 1
    assert (tmp_path / "stopped").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_server_that_ends_ends_it(tmp_path: Path):
    with running(tmp_path) as process:
        pid = await eventually(read(tmp_path / "pid"))
        await eventually(read(tmp_path / "modelfile"))
        os.kill(int(pid), signal.SIGKILL)
        assert process.wait(timeout=60) == 128 + signal.SIGKILL


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_runtime_gives_its_engine_what_a_model_says(name: str):
    runtime = BUILT_IN[name]
    used = {place for argument in runtime.command for place in places_of(argument)}
    assert used <= set(PLACES)
    assert {"model", "name", "host", "port", "concurrency"} <= used
    assert used & {"context", "total_context"}
