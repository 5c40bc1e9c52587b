"""`longshore resize`, and how lists and `why` show a malleable job."""

import json
import re
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.models.resize import ResizeReply
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode, serving_one_fabric
from tests.support.waiting import eventually

IN_PLACE = """\
name: train
command: 'true'
gang: {}
malleable: {min: 8, max: 16, step: 8, in_place: true}
checkpoint: {folder: saved, save_file: true, store: false}
"""
FILE = """\
name: train
command: 'true'
malleable: {min: 2, max: 8, step: 2}
checkpoint: {folder: saved}
"""


async def test_a_size_from_the_job_file_to_why(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    ran = await longshore("submit", "-q", str(path), "--pool", pool)
    assert ran.code == 0, ran.err
    job_id = ran.out.strip()
    await node.started(job_id)
    assert "8 x GPU (2 to 8 GPUs in steps of 2, desired 8)" in (await longshore("job", job_id)).out

    ran = await longshore("resize", job_id, "--gpus", "4", "--reason", "for the demo")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{job_id} is stopped and starts again: from 8 to 4 GPUs, 4 desired")
    await node.started(job_id, 2)

    async def told() -> bool:
        why = (await longshore("why", job_id)).out
        assert "Size changes" in why
        assert "8 → 4" in why
        assert "resized for the demo: from 8 to 4 GPUs" in " ".join(why.split())
        return True

    await eventually(told)
    assert re.search(r"resized +1 time", (await longshore("job", job_id)).out)

    ran = await longshore("resize", job_id, "--gpus", "4", "--json")
    reply = ResizeReply.model_validate(json.loads(ran.out))
    assert (reply.gpus, reply.restarts, reply.reason) == (4, None, "it has 4 GPUs already")
    await node.end(job_id, 2)


@pytest.mark.exhaustive
async def test_why_says_why_a_job_with_fewer_gpus_does_not_grow(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    ran = await longshore("submit", "-q", "--pool", pool, "--gpus", "4", "--", "true")
    beside = ran.out.strip()
    await node.started(beside)
    job_id = (await longshore("submit", "-q", str(path), "--pool", pool)).out.strip()
    await node.started(job_id)
    why = " ".join((await longshore("why", job_id)).out.split())
    assert "growth 4 of 8 desired GPUs: no more are free for it" in why
    ran = await longshore("pool", "set", pool, "--grow-after", "0")
    assert ran.code == 0, ran.err
    shown = " ".join((await longshore("pool", "show", pool)).out.split())
    assert "malleable jobs grow never" in shown
    growth = json.loads((await longshore("why", job_id, "--json")).out)["growth"]
    assert (growth["gpus"], growth["desired"], growth["grows"]) == (4, 8, False)
    assert growth["reason"].endswith("growth is off for this pool (`grow_after`)")
    await longshore("pool", "set", pool, "--grow-after", "15m")
    shown = " ".join((await longshore("pool", "show", pool)).out.split())
    assert "malleable jobs grow onto GPUs that were idle for 15m" in shown
    await node.end(beside)
    await node.end(job_id)


async def test_what_cannot_be_is_told_with_what_to_do(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    ran = await longshore("submit", "-q", "--pool", pool, "--name", "rigid", "--", "true")
    job_id = ran.out.strip()
    await node.started(job_id)
    ran = await longshore("resize", job_id, "--gpus", "2")
    assert ran.code == 77
    assert f"error: job {job_id} cannot be resized: the job has one size, 1 GPU: submit it" in (
        ran.err
    )
    await node.end(job_id)
    missing = await longshore("resize", "no-such-job", "--gpus", "2")
    assert (missing.code, missing.out) != (0, "")
    assert "no job 'no-such-job'" in missing.err


@pytest.mark.exhaustive
async def test_a_change_in_place_is_told_as_one(
    longshore: Command, temporal: Client, settings: Settings, pool: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(IN_PLACE)
    async with serving_one_fabric(temporal, pool, settings.resolve_agent_token(), "ab") as nodes:
        ran = await longshore("submit", "-q", str(path), "--pool", pool)
        assert ran.code == 0, ran.err
        job_id = ran.out.strip()
        ranks = {(await node.started(job_id)).placement.rank: node.id for node in nodes}
        ran = await longshore("resize", job_id, "--gpus", "8", "--reason", "for the demo")
        assert ran.out == (
            f"{job_id} goes on: from 16 to 8 GPUs in place: rank 1 leaves after a save\n"
        )

        async def told() -> bool:
            why = " ".join((await longshore("why", job_id)).out.split())
            assert "16 → 8 in place, no stop resized for the demo: from 16 to 8 GPUs" in why
            assert why.startswith(
                f"{job_id} runs: 8 GPUs on {ranks[0]}; resized for the demo: from 16 to 8 GPUs; "
                "in place: rank 1 leaves, 8 GPUs go on with no stop "
            )
            return True

        await eventually(told)
        shown = (await longshore("job", job_id)).out
        assert re.search(r"resized +1 time", shown)
        assert "in place: rank 1 leaves, 8 GPUs go on with no stop" in " ".join(shown.split())
        await longshore("resize", job_id, "--gpus", "16")

        async def grown() -> bool:
            why = " ".join((await longshore("why", job_id)).out.split())
            assert why.startswith(f"{job_id} runs: 16 GPUs on {ranks[0]}, {ranks[1]}; resized")
            return True

        await eventually(grown)
