"""`longshore serve --dry-run`: what would be changed, placed and stopped. Nothing is."""

import json
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.models.serve_plan import ServePreview
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

_FILE = """
models:
  - {{name: m-{pool}, source: /models/tiny.gguf, memory: {memory}, gpus: 1}}
services:
  - {{name: a-{pool}, model: m-{pool}, replicas: {replicas}, pool: {into}, drain: 0,
      tenant: {tenant}}}
"""


def a_file(
    folder: Path,
    pool: str,
    memory: str = "50GB",
    replicas: int = 1,
    tenant: str = "default",
    into: str = "",
    beside: str = "",
) -> str:
    """Write a file whose names have `pool`; its service goes `into` another one, and may have
    another `beside` it in a pool of that name."""
    said = {"memory": memory, "replicas": replicas, "tenant": tenant, "into": into or pool}
    file = folder / "serve.yaml"
    more = f"  - {{name: b-{pool}, model: m-{pool}, pool: {beside}, tenant: {tenant}}}\n"
    file.write_text(_FILE.format(pool=pool, **said) + (more if beside else ""))
    return str(file)


async def test_it_says_what_would_be_placed_where_and_changes_nothing(
    longshore: Command, tmp_path: Path, pool: str, temporal: Client, settings: Settings
) -> None:
    """A GPU of 80 GB holds one engine of 50 GB: of three replicas two have room."""
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=2)
    await node.register()
    async with node.serving():
        ran = await longshore("serve", a_file(tmp_path, pool, replicas=3), "--dry-run")
        assert ran.code == 0, ran.err
        lines = ran.out.splitlines()
        assert lines[:3] == [
            f"would: model m-{pool} is made (revision 1)",
            f"would: a-{pool}: revision 1, model m-{pool}",
            "  an engine holds 50GB of a GPU, as its model states",
        ]
        where = [line.partition(":")[0] for line in lines[3:]]
        assert where[0] == f"  a replica would start now on {node.id} GPU 0"
        assert where[1] == f"  a replica would start now on {node.id} GPU 1"
        assert where[2].startswith(f"  a replica would wait in pool {pool}")
        assert len(lines) == 6
        assert "Some of the GPUs are simulated.\n" in ran.err
        assert ran.err.endswith("Nothing is changed: it was a dry run.\n")
    assert (await longshore("models", "show", f"m-{pool}")).code == 66
    assert (await longshore("service", f"a-{pool}")).code == 66


async def test_of_a_change_it_says_which_replicas_would_be_stopped(
    longshore: Command, tmp_path: Path, pool: str
) -> None:
    name = f"a-{pool}"
    assert (await longshore("serve", a_file(tmp_path, pool), "--no-wait")).code == 0

    async def there() -> list[str]:
        shown = await longshore("slots", "--json")
        return [name] if name in shown.out else []

    await eventually(there)
    same = await longshore("serve", a_file(tmp_path, pool), "--dry-run")
    assert same.out.splitlines()[-1] == "  no replica would be started or stopped"
    changed = await longshore("serve", a_file(tmp_path, pool, "60GB", 2), "--dry-run", "--json")
    found = ServePreview.model_validate_json(changed.out)
    (service,) = found.services
    assert found.models[0].fields == ("memory 50GB to 60GB",)
    says = f"{name}: revision 2, model m-{pool}, of which revision 1 to 2, replicas 1 to 2"
    assert service.says == f"{says} (an undo leaves that)"
    assert (service.gpus, service.memory, service.start) == (1, 60_000, 2)
    assert [each.why for each in service.stop] == ["replaced by revision 2"]
    assert service.stop[0].job_id.startswith(name)
    assert not any("in its place" in each for each in service.warnings), "it has no GPU"
    # Beyond one that would wait nobody knows.
    assert len(service.replicas) == 1
    fewer = await longshore("serve", a_file(tmp_path, pool, replicas=0), "--dry-run")
    assert fewer.out.splitlines()[-1].endswith(" would be stopped: 0 are wanted")
    stays = await longshore("serve", a_file(tmp_path, pool), "--dry-run")
    assert f"would: {name}: revision 1, model m-{pool}" in stays.out.splitlines()
    assert (await longshore("service", name, "--remove")).code == 0


async def test_a_replica_counts_against_a_quota_for_those_behind_it(
    longshore: Command, tmp_path: Path, temporal: Client, settings: Settings, pool: str
) -> None:
    """Each is of 0.625 GPUs."""
    narrow = f"narrow-{pool}"
    assert (await longshore("tenant", "set", narrow, "--max-gpus", "1")).code == 0
    file = a_file(tmp_path, pool, replicas=2, tenant=narrow)
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=2)
    await node.register()
    async with node.serving():
        ran = await longshore("serve", file, "--dry-run")
    assert ran.code == 0, ran.err
    first, second = ran.out.splitlines()[-2:]
    assert first.startswith("  a replica would start now on ")
    assert second.startswith("  a replica would wait, with nothing kept or bought for it: ")
    assert f"quota of tenant {narrow}: max_gpus" in second


async def test_a_replica_in_another_pool_counts_against_the_same_quota(
    longshore: Command, tmp_path: Path, temporal: Client, settings: Settings, pool: str
) -> None:
    """Each is of 0.625 GPUs."""
    narrow, other = f"narrow-{pool}", f"other-{pool}"
    assert (await longshore("tenant", "set", narrow, "--max-gpus", "1")).code == 0
    file = a_file(tmp_path, pool, tenant=narrow, beside=other)
    token = settings.resolve_agent_token()
    here, there = (ScriptedNode(temporal, each, token, gpus=1) for each in (pool, other))
    await here.register()
    await there.register()
    async with here.serving(), there.serving():
        ran = await longshore("serve", file, "--dry-run")
    assert ran.code == 0, ran.err
    first, second = [line for line in ran.out.splitlines() if line.startswith("  a replica")]
    assert first.startswith(f"  a replica would start now on {here.id}")
    assert f"quota of tenant {narrow}: max_gpus: 0.625 + 0.625 > 1" in second


@pytest.mark.exhaustive
async def test_it_says_where_a_replica_of_its_own_is_stopped_first(
    longshore: Command, tmp_path: Path, pool: str, temporal: Client, settings: Settings
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    await node.register()
    async with node.serving():
        assert (await longshore("serve", a_file(tmp_path, pool), "--no-wait")).code == 0

        async def placed() -> bool:
            shown = await longshore("service", f"a-{pool}", "--json")
            return [each["stage"] for each in json.loads(shown.out)["replicas"]] == ["loading"]

        await eventually(placed)
        ran = await longshore("serve", a_file(tmp_path, pool, "60GB"), "--dry-run")
        assert f"  a replica would wait in pool {pool}" in ran.out
        assert "may start in its place" in " ".join(ran.err.split())
        other = a_file(tmp_path, pool, "60GB", into=f"other-{pool}")
        made = await longshore("pool", "set", f"other-{pool}", "--growth", "open")
        assert made.code == 0, made.err
        moved = await longshore("serve", other, "--dry-run")
        assert f", pool {pool} to other-{pool}" in moved.out
        assert "in its place" not in " ".join(moved.err.split()), "that is in another pool"
        assert (await longshore("service", f"a-{pool}", "--remove")).code == 0


async def test_what_serve_refuses_is_refused(longshore: Command, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("services: [{name: no-model, model: nothing}]")
    ran = await longshore("serve", str(file), "--dry-run")
    assert (ran.code, ran.out) == (66, "")
    assert "service no-model: model: there is no model 'nothing'" in ran.err
