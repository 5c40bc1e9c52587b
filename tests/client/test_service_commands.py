"""`longshore serve`, `service` and `scale`: what is refused, and what they say. No agent runs."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.serving.service_rows import remove_service
from longshore.client.control_worker import why_not_heard
from longshore.models.errors import NotFoundError
from longshore.models.service import ServiceView
from longshore.models.service_messages import service_workflow_id
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

_FILE = """
models:
  - {{name: {model}, source: /models/tiny.gguf, memory: {memory}}}
services:
  - {{name: {first}, model: {model}, {wanted}, drain: {drain}}}
  - {{name: {second}, model: {other}, replicas: 0, drain: {drain}}}
"""


@pytest.fixture
def named(pool: str) -> dict[str, str]:
    return {"first": f"a-{pool}", "second": f"b-{pool}", "model": f"m-{pool}"}


def a_file(
    folder: Path,
    named: dict[str, str],
    other: str,
    drain: str = "0",
    wanted: str = "replicas: 0",
    memory: str = "1GB",
) -> str:
    said = {"other": other, "drain": drain, "wanted": wanted, "memory": memory}
    file = folder / "serve.yaml"
    file.write_text(_FILE.format(**named, **said))
    return str(file)


async def test_services_of_a_file_are_served_all_or_none(
    longshore: Command, tmp_path: Path, named: dict[str, str]
):
    wrong = await longshore("serve", a_file(tmp_path, named, "nothing"), "--no-wait")
    assert wrong.code == 66
    assert f"service {named['second']}: model: there is no model 'nothing'" in wrong.err
    assert wrong.out == f"model {named['model']} is made (revision 1)\n"
    assert named["first"] not in (await longshore("services")).out
    both = await longshore("serve", a_file(tmp_path, named, named["model"]), "--no-wait")
    assert both.code == 0, both.err
    assert both.out.splitlines() == [
        f"{named['first']}: revision 1, model {named['model']}",
        f"{named['second']}: revision 1, model {named['model']}",
    ]


async def test_a_service_that_is_refused_is_named(
    longshore: Command,
    tmp_path: Path,
    named: dict[str, str],
    pool: str,
    temporal: Client,
    settings: Settings,
):
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    await node.register()
    tenant = f"small-{pool}"
    assert (await longshore("tenant", "set", tenant, "--max-gpus", "0")).code == 0
    assert (await longshore("pool", "set", pool, "--growth", "fixed")).code == 0
    async with node.serving():
        for wanted, code, why in (
            (f"pool: {pool}, gpu_type: B200", 69, f"no node of pool {pool} could ever hold"),
            (f"pool: {pool}, tenant: {tenant}", 65, "max_gpus"),
        ):
            file = a_file(tmp_path, named, named["model"], wanted=wanted)
            for options in (["--no-wait"], ["--dry-run"]):
                ran = await longshore("serve", file, *options)
                assert ran.code == code, ran.err
                said = " ".join(ran.err.split())
                assert f"error: service {named['first']}: " in said
                assert why in said


async def test_serve_says_what_it_changes(
    longshore: Command, tmp_path: Path, named: dict[str, str]
):
    first, second, model = named["first"], named["second"], named["model"]
    file = a_file(tmp_path, named, model)
    assert (await longshore("serve", file, "--no-wait")).code == 0
    a_file(tmp_path, named, model, memory="2GB")
    changed = await longshore("serve", file, "--no-wait")
    assert changed.out.splitlines() == [
        f"model {model} is changed: memory 1GB to 2GB (revision 2)",
        f"{first}: revision 2, model {model}, of which revision 1 to 2",
        f"{second}: revision 2, model {model}, of which revision 1 to 2",
    ]
    a_file(tmp_path, named, model, wanted="replicas: 2", memory="2GB")
    more = await longshore("serve", file, "--no-wait")
    assert more.out.splitlines() == [
        f"{first}: revision 2, model {model}, replicas 0 to 2",
        f"{second}: revision 2, model {model}",
    ]


@pytest.mark.exhaustive
async def test_of_a_service_that_no_node_holds_it_is_told_that_its_engine_waits(
    longshore: Command,
    tmp_path: Path,
    named: dict[str, str],
    pool: str,
    temporal: Client,
    settings: Settings,
):
    file = a_file(tmp_path, named, named["model"], wanted=f"replicas: 0, pool: {pool}, cpus: 4000")
    ran = await longshore("serve", file, "--no-wait")
    waits = "the engine waits until one joins"
    assert f"service {named['first']}: pool {pool} has no nodes yet: {waits}" in ran.err
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    async with node.serving():
        ran = await longshore("serve", file, "--no-wait")
        says = f"the only node of pool {pool} cannot hold the engine even when empty: it waits for"
        assert f"warning: service {named['first']}: {says}" in ran.err


async def test_services_are_read_from_stdin(
    longshore: Command, named: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    said = _FILE.format(
        **named, other=named["model"], drain="0", wanted="replicas: 0", memory="1GB"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    ran = await longshore("serve", "-", "--no-wait")
    assert ran.code == 0, ran.err
    assert f"{named['second']}: revision 1, model {named['model']}" in ran.out
    monkeypatch.setattr("sys.stdin", io.StringIO("services: []"))
    wrong = await longshore("serve", "-")
    assert (wrong.code, "stdin:1: services: " in wrong.err) == (65, True)


async def test_each_service_of_a_file_is_told_as_it_is_ready_or_will_not_be(
    longshore: Command, control: Database, tmp_path: Path, named: dict[str, str], pool: str
):
    """The first waits for a node that does not come, until somebody removes it."""
    first, second = named["first"], named["second"]
    file = a_file(tmp_path, named, named["model"], wanted=f"replicas: 1, pool: {pool}")

    async def is_removed() -> bool:
        try:
            async with control.transaction() as connection:
                await remove_service(connection, first)
        except NotFoundError:
            return False
        return True

    ran, _ = await asyncio.gather(longshore("serve", file), eventually(is_removed))
    assert ran.code == 77
    told = ran.err.splitlines()
    assert f"{second}: 0 ready, 0 wanted" in told
    # As it is when it is looked at: its workflow may have seen to it by then.
    states = ("being removed", "removed")
    assert any(f"warning: service {first} is {state}" in told for state in states)
    assert told[-1] == f"error: 1 of 2 services will not be ready: {first}"


async def test_a_service_is_no_engine_to_evict(
    longshore: Command, tmp_path: Path, named: dict[str, str], pool: str
):
    """Its engines are named: it may have several."""
    name = named["first"]
    file = a_file(tmp_path, named, named["model"], wanted=f"replicas: 2, pool: {pool}")
    assert (await longshore("serve", file, "--no-wait")).code == 0

    async def ids() -> list[str]:
        engines = json.loads((await longshore("slots", "--json")).out)
        found = [each["job_id"] for each in engines if each["service"] == name]
        return found if len(found) == 2 else []

    first, second = await eventually(ids)
    asked = await longshore("evict", name)
    assert asked.code == 66
    why = f"'{name}' is a service, and evict takes the id of one engine: {first}, {second}"
    assert why in " ".join(asked.err.split())
    nothing = await longshore("evict", f"{name}-x")
    assert nothing.code == 66
    assert f"no engine '{name}-x': `longshore slots` lists them" in nothing.err
    assert (await longshore("evict", first)).code == 0
    assert (await longshore("service", name, "--remove")).code == 0


async def test_why_one_was_undone_is_told_with_all_its_lines(
    longshore: Command, control: Database, tmp_path: Path, named: dict[str, str]
):
    name = named["first"]
    assert (
        await longshore("serve", a_file(tmp_path, named, named["model"]), "--no-wait")
    ).code == 0
    row = {"name": name, "why": "exit code 2\nusage: llama-server"}
    async with control.transaction() as connection:
        changed = "UPDATE service_revisions SET undone = :why WHERE service = :name"
        await connection.execute(text(changed), row)
    shown = await longshore("service", name)
    assert shown.out.splitlines()[-1].endswith("  exit code 2")
    assert shown.err.endswith("revision 1 was undone: exit code 2\nusage: llama-server\n")


async def test_a_service_shows_its_revisions_and_that_it_is_removed(
    longshore: Command, tmp_path: Path, named: dict[str, str]
):
    name, model = named["first"], named["model"]
    for drain in ("0", "1s"):
        file = a_file(tmp_path, named, model, drain)
        assert (await longshore("serve", file, "--no-wait")).code == 0
    shown = (await longshore("service", name)).out.splitlines()
    assert shown[0] == f"{name}: model {model}, 0 of 0 replicas ready, revision 2"
    rows = [line.split() for line in shown[-2:]]
    assert [row[:3] for row in rows] == [["2", model, "1"], ["1", model, "1"]]
    assert [row[-2:] for row in rows] == [["never", "–"], ["never", "–"]]

    told = ServiceView.model_validate_json((await longshore("service", name, "--json")).out)
    assert [each.number for each in told.revisions or ()] == [2, 1]
    listed = json.loads((await longshore("services", "--json")).out)
    # A list does not read them.
    assert [each["revisions"] for each in listed if each["name"] == name] == [None]

    gone = await longshore("service", name, "--remove", "--json")
    assert gone.code == 0
    assert ServiceView.model_validate_json(gone.out).name == name
    assert json.loads(gone.out)["state"] in ("REMOVING", "REMOVED")
    refused = await longshore("scale", name, "1")
    assert refused.code == 77
    assert f"service {name} is " in refused.err
    assert "REMOV" not in refused.err


async def test_serve_ends_where_engines_of_a_first_revision_fail(
    longshore: Command, control: Database, tmp_path: Path, named: dict[str, str], pool: str
):
    """No node is there: the table says that engines failed. The service stays."""
    name = named["first"]
    file = a_file(tmp_path, named, named["model"], wanted=f"replicas: 1, pool: {pool}")
    row = {"name": name, "why": "exit code 2\nusage: llama-server"}
    fails = "UPDATE service_revisions SET failures = failures + 1 WHERE service = :name"
    says = "UPDATE replicas SET message = :why WHERE service = :name"
    serving = asyncio.ensure_future(longshore("serve", file))

    async def is_over() -> bool:
        async with control.transaction() as connection:
            await connection.execute(text(says), row)
            await connection.execute(text(fails), row)
        return serving.done()

    await eventually(is_over)
    ran = await serving
    assert ran.code == 1
    assert f"service {name}: revision 1 never got ready (" in ran.err
    assert "and there is no other to go back to. The last one: exit code 2\nusage: ll" in ran.err
    assert f"`longshore service {name} --remove` stops it." in ran.err
    assert ran.err.splitlines()[-1] == f"error: 1 of 2 services will not be ready: {name}"
    assert (await longshore("service", name)).code == 0
    # Those that have failed count at once where an update is only looked at.
    looked = await longshore("rollout", "status", name)
    assert (looked.code, "never got ready (" in looked.err) == (1, True)
    assert (await longshore("service", name, "--remove")).code == 0


async def test_that_no_control_worker_takes_a_change_up_is_told(
    longshore: Command, temporal: Client, tmp_path: Path, named: dict[str, str]
):
    """Here one does, and nobody asks the queue of the other."""
    name = named["first"]
    assert (await longshore("serve", a_file(tmp_path, named, named["model"]), "--no-wait")).err
    heard = await longshore("scale", name, "0")
    assert (heard.code, "no control worker" in heard.err) == (0, False)
    workflow = service_workflow_id("unheard-" + name)
    alone = await temporal.start_workflow("Nothing", id=workflow, task_queue=f"nobody-{name}")
    try:
        says = await why_not_heard(temporal, "unheard-" + name)
        assert says.startswith("no control worker has taken this up within 2 s: those that asked")
    finally:
        await alone.terminate()
    assert await why_not_heard(temporal, "unheard-" + name) == ""
