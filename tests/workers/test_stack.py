"""The local stack with real servers: found again, recovered after kill -9, plain about errors."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr
from temporalio.client import Client

from longshore.client.web_ui import workflows_url
from longshore.models.errors import StackError
from longshore.models.settings import Settings
from longshore.workers.local import WEB_UI, start_console, start_web_ui
from longshore.workers.postgres import LocalPostgres
from longshore.workers.processes import Processes, wait_until
from longshore.workers.stack import PartState, Stack
from longshore.workers.temporal_server import NAME
from tests.support.local_stack import running_stack, settings_in, temporary_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as path:
        yield path


@pytest.fixture(scope="module")
def module_stack() -> Iterator[Stack]:
    """Starts a stack of this module's own; 2 s."""
    with (
        temporary_folder() as path,
        running_stack(
            settings_in(path / "state"), search_attributes={"First": "Keyword"}
        ) as stack,
    ):
        yield stack


@pytest.fixture
def own(module_stack: Stack) -> Stack:
    """That stack, to be killed and started again: it runs, whatever an earlier test did to it."""
    module_stack.start(lambda line: None)
    return module_stack


def pids(stack: Stack) -> dict[str, int | None]:
    return {part.name: part.pid for part in stack.status()}


def kill_all(stack: Stack) -> None:
    """Kill every process of the stack as `kill -9` does, and wait until they are gone."""
    for entry in stack.processes.recorded():
        if entry.find():
            os.kill(entry.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(e.find() for e in stack.processes.recorded()), 60.0)


# --- starting and finding -------------------------------------------------------------------


def test_start_brings_up_servers_that_answer(own: Stack):
    info = own.settings.stack()
    assert own.temporal_cli().answers()
    with psycopg.connect(info.database_url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("longshore",)
    assert all(part.state is PartState.RUNNING and part.pid for part in own.status())


def test_a_second_start_finds_the_first_and_says_so(own: Stack):
    before, lines = pids(own), list[str]()
    info = Stack(own.settings).start(lines.append)
    assert pids(own) == before
    assert info == own.settings.stack()
    assert sum("runs already" in line for line in lines) == 2


def test_two_starts_at_once_make_one_stack(own: Stack):
    own.stop(lambda line: None)
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(Stack(own.settings).start, lambda line: None) for _ in range(2)]
        first, second = (start.result(timeout=60) for start in starts)
    assert first == second
    with psycopg.connect(first.database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_token_is_made_once_and_readable_by_its_owner_alone(own: Stack):
    token = own.settings.resolve_agent_token()
    own.start(lambda line: None)
    assert own.settings.resolve_agent_token() == token
    assert len(token) >= 32
    for name in ("agent-token", "stack.json"):
        assert (own.folder / name).stat().st_mode & 0o777 == 0o600


def test_what_an_earlier_version_left_open_is_closed(own: Stack):
    """Its files could be read by others, and its Temporal could be reached by web pages."""
    own.start(lambda line: None)
    (own.folder / "logs").mkdir(exist_ok=True)
    (own.folder / "logs").chmod(0o755)
    (own.folder / "temporal.db").chmod(0o644)
    record = own.folder / "run" / "temporal.json"
    before = json.loads(record.read_text())
    at = before["argv"].index("--ui-ip")
    record.write_text(
        json.dumps(before | {"argv": before["argv"][:at] + before["argv"][at + 2 :]})
    )
    lines = list[str]()
    Stack(own.settings).start(lines.append)
    after = json.loads(record.read_text())
    assert "Temporal begins again: as an earlier version started it, web pages reach it" in lines
    assert "--ui-ip" in after["argv"]
    assert after["pid"] != before["pid"]
    modes = [(own.folder / name).stat().st_mode & 0o777 for name in ("logs", "temporal.db")]
    assert modes == [0o700, 0o600]


def test_a_search_attribute_that_came_later_is_added_to_a_running_server(own: Stack):
    Stack(own.settings, search_attributes={"First": "Keyword", "Second": "Int"}).start(
        lambda line: None
    )
    known = own.temporal_cli().search_attributes()
    assert known == {"First": "INDEXED_VALUE_TYPE_KEYWORD", "Second": "INDEXED_VALUE_TYPE_INT"}


# --- recovering -----------------------------------------------------------------------------


async def test_what_was_stored_is_there_after_everything_was_killed(own: Stack):
    temporal = await Client.connect(own.temporal.address)
    handle = await temporal.start_workflow("Waits", id="kept", task_queue="nobody-listens")
    with psycopg.connect(own.settings.resolve_database_url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = pids(own)

    kill_all(own)
    assert {part.state for part in own.status()} == {PartState.STOPPED}
    own.start(lambda line: None)

    assert not set(pids(own).values()) & set(before.values())
    again = await Client.connect(own.temporal.address)
    described = await again.get_workflow_handle("kept").describe()
    assert described.run_id == handle.first_execution_run_id
    with psycopg.connect(own.settings.resolve_database_url()) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.exhaustive
async def test_a_killed_temporal_server_comes_back_behind_its_door(own: Stack):
    """The process before the Web UI lives on, and has the port of the UI."""
    start_web_ui(own, lambda line: None)
    before = pids(own)
    (server,) = [each for each in own.processes.recorded() if each.name == NAME]
    os.kill(server.pid, signal.SIGKILL)
    assert wait_until(lambda: server.find() is None, 60.0)
    own.start(lambda line: None)
    assert own.temporal_cli().answers()
    after = pids(own)
    changed = {name for name, pid in after.items() if before[name] != pid}
    assert changed == {NAME}
    own.processes.stop(WEB_UI)


@pytest.mark.exhaustive
def test_records_that_name_a_process_of_somebody_else_are_stale(own: Stack):
    """After a restart of a machine or container, process ids are given out again."""
    kill_all(own)
    for entry in own.processes.recorded():
        taken = entry.model_copy(update={"pid": os.getpid()})
        (own.processes.folder / f"{entry.name}.json").write_text(taken.model_dump_json())
    lock = own.postgres.data / "postmaster.pid"
    lines = lock.read_text().split("\n")
    lock.write_text("\n".join([str(os.getpid()), *lines[1:]]))

    own.start(lambda line: None)  # and this process lives on

    assert os.getpid() not in pids(own).values()
    assert own.temporal_cli().answers()


def test_a_postgresql_whose_record_was_lost_is_found_again(own: Stack):
    before = pids(own)["postgres"]
    (own.processes.folder / "postgres.json").unlink()
    own.start(lambda line: None)
    assert pids(own)["postgres"] == before


def test_stop_ends_all_and_says_what(own: Stack):
    said = list[str]()
    assert own.stop(said.append) == ("temporal", "postgres")
    assert said == ["stopped temporal", "stopped postgres"]
    assert own.stop(said.append) == ()
    assert {part.state for part in own.status()} == {PartState.STOPPED}
    assert not own.settings.stack_file.exists()


@pytest.mark.exhaustive
def test_purge_removes_a_stopped_stack_and_nothing_else(own: Stack, stack: Stack, folder: Path):
    with pytest.raises(StackError, match="still runs"):
        stack.purge()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(StackError, match="not a state folder"):
        Stack(Settings(state_dir=folder)).purge()
    own.stop(lambda line: None)
    own.purge()
    assert not own.folder.exists()
    assert (folder / "thesis.tex").exists()


# --- servers of somebody else ---------------------------------------------------------------


def test_servers_that_the_settings_name_are_used_and_never_started(
    stack: Stack, database_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TEMPORAL_ADDRESS", stack.temporal.address)
    settings = Settings(state_dir=folder / "state", database_url=SecretStr(database_url))
    other = Stack(settings)
    info = other.start(lambda line: None)
    assert info.temporal_address == stack.temporal.address
    assert info.database_url == database_url
    assert {part.state for part in other.status()} == {PartState.EXTERNAL}
    assert other.stop(lambda line: None) == ()
    assert stack.temporal_cli().answers()


@pytest.mark.exhaustive
def test_the_address_of_ones_own_server_makes_it_no_other(
    own: Stack, monkeypatch: pytest.MonkeyPatch
):
    """As docs/other-languages.md has it set, for other SDKs."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", own.temporal.address)
    again = Stack(own.settings)
    info = again.start(lambda line: None)
    assert (info.temporal_address, info.temporal_ui) == (own.temporal.address, own.temporal.ui)
    assert {part.state for part in again.status()} == {PartState.RUNNING}
    assert workflows_url(own.settings).startswith(own.temporal.ui)


def test_so_it_does_of_one_that_is_not_up_yet(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{port}")
    stack = Stack(Settings(state_dir=folder, temporal_port=port))
    assert PartState.EXTERNAL not in {part.state for part in stack.status()}
    with socket.create_server(("127.0.0.1", port)):  # of somebody else
        assert PartState.EXTERNAL in {part.state for part in stack.status()}


# --- errors that say what to do -------------------------------------------------------------


def test_a_port_in_use_is_named_with_its_user_and_the_setting(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = Stack(Settings(state_dir=folder, temporal_port=port))
        with pytest.raises(StackError) as caught:
            stack.start(lambda line: None)
    message = str(caught.value)
    assert f"port {port} is in use by" in message
    assert f"(process {os.getpid()})" in message
    assert "LONGSHORE_TEMPORAL_PORT" in message
    assert stack.processes.recorded() == ()


def test_a_console_of_somebody_else_is_not_taken_for_the_own_one(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = Stack(Settings(state_dir=folder, console_address=f"127.0.0.1:{port}"))
        with pytest.raises(StackError, match=rf"port {port} .*LONGSHORE_CONSOLE_ADDRESS"):
            start_console(stack, lambda line: None)
    assert stack.processes.recorded() == ()


def test_a_folder_that_cannot_be_written_is_named_with_the_setting(folder: Path):
    (folder / "file").write_text("")
    with pytest.raises(StackError, match=r"cannot write in .*file/state .*LONGSHORE_STATE_DIR"):
        Stack(Settings(state_dir=folder / "file" / "state")).start(lambda line: None)


def test_a_missing_server_program_is_named_with_a_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(StackError, match=r"`temporal` is neither in .*TEMPORAL_ADDRESS"):
        Stack(settings_in(folder)).start(lambda line: None)


def test_a_server_that_ends_at_once_is_shown_with_its_last_words(folder: Path):
    (folder / "temporal.db").write_text("this is no database " * 100)
    stack = Stack(settings_in(folder))
    with pytest.raises(StackError, match=r"Temporal did not start(?s:.*)not a database"):
        stack.start(lambda line: None)
    assert stack.status()[0].state is PartState.STOPPED


def test_a_folder_of_a_newer_postgresql_is_refused(folder: Path):
    data = folder / "postgres"
    data.mkdir()
    (data / "PG_VERSION").write_text("99\n")
    with pytest.raises(StackError, match=r"made by PostgreSQL 99.*LONGSHORE_STATE_DIR"):
        LocalPostgres(data, Processes(folder / "run")).start(lambda line: None)


def test_a_path_too_long_for_a_socket_gets_a_short_one(folder: Path):
    deep = folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    processes = Processes(deep / "run")
    server = LocalPostgres(deep / "postgres", processes)
    try:
        with psycopg.connect(server.start(lambda line: None)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.socket_folder().stat().st_mode & 0o777 == 0o700
    finally:
        processes.stop("postgres")
        server.socket_folder().rmdir()


# --- nodes ----------------------------------------------------------------------------------


def test_nodes_are_remembered_until_they_are_forgotten(folder: Path):
    settings = Settings(state_dir=folder)
    assert Stack(settings).remembered_nodes() == {}
    Stack(settings).remember_node("local-1", ["--simulate", "8xH100-80GB"])
    Stack(settings).remember_node("local-2", [])
    Stack(settings).forget_node("local-1")
    Stack(settings).forget_node("never-known")
    assert Stack(settings).remembered_nodes() == {"local-2": ()}
