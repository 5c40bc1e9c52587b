"""How far the data of a job is, and what nodes hold, in commands and on pages."""

import io
import json
from typing import cast

from rich.console import Console

from longshore.client.code_view import travels
from longshore.client.held_data import held_on_nodes, holds_table
from longshore.console.held_data import held_html
from longshore.console.job_view import why_html
from longshore.models.data import HeldData, StagedData, name_of_python
from longshore.models.explanation import Explanation
from longshore.models.job import JobSpec
from longshore.models.node_messages import Progress
from tests.client.conftest import Command
from tests.support.packing import NOW
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

SOURCE = "s3://sets/imagenet/"
HALF = HeldData(
    name="imagenet", tenant="default", source=SOURCE, bytes=60 * 10**9, total=150 * 10**9
)
IMAGE = HeldData(name="image trainer:1", bytes=9 * 10**9, total=9 * 10**9)


async def test_a_job_that_waits_tells_how_far_its_data_is(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    submit = ("submit", "-q", "--pool", pool, "--gpus", "8", "--name")
    first = (await longshore(*submit, "first", "--", "true")).out.strip()
    await node.started(first)
    data = f"data={{imagenet: {{from: {SOURCE}, size: 150GB}}, mine: 1GB}}"
    ran = await longshore(*submit, "job", "--set", data, "--", "true")
    assert ran.code == 0, ran.err
    job_id = ran.out.strip()
    await eventually(lambda: [each.job_id for each in node.prepares] == [job_id])
    nothing_yet = await longshore("why", job_id)
    assert f"imagenet: 0 % of 150.0GB on {node.id}, in front of the start at" in " ".join(
        nothing_yet.out.split()
    )
    await node.holds(HALF, IMAGE)

    async def told() -> bool:
        for command in ("why", "job"):
            ran = await longshore(command, job_id)
            assert f"imagenet: 40 % of 150.0GB on {node.id}" in " ".join(ran.out.split())
        return True

    await eventually(told)
    for command in ("why", "job"):
        (staged,) = json.loads((await longshore(command, job_id, "--json")).out)["data"]
        assert (staged["name"], staged["node_id"]) == ("imagenet", node.id)
        assert (staged["bytes"], staged["total"]) == (HALF.bytes, HALF.total)
        assert staged["expected_start"] is not None
    explanation = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
    assert f"Data imagenet: 40 % of 150.0GB on {node.id}, in front of" in why_html(
        explanation, NOW
    )
    await node.end(first)
    await node.started(job_id)
    (runs,) = json.loads((await longshore("job", job_id, "--json")).out)["data"]
    assert (runs["bytes"], runs["expected_start"]) == (HALF.bytes, None)
    await node.end(job_id)

    async def ended() -> bool:
        return json.loads((await longshore("job", job_id, "--json")).out)["data"] == []

    await eventually(ended)


async def test_what_a_job_could_not_have_is_told_while_it_runs(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    missing = "imagenet/labels.txt cannot be had: it has gone"
    node.says = Progress(data_missing=missing)
    ran = await longshore("submit", "-q", "--pool", pool, "--gpus", "8", "--set",
                          f"data={{imagenet: {{from: {SOURCE}}}}}", "--", "true")  # fmt: skip
    job_id = ran.out.strip()
    await node.started(job_id)

    async def told() -> bool:
        said = [" ".join((await longshore(each, job_id)).out.split()) for each in ("job", "why")]
        return all(missing in each for each in said)

    await eventually(told)
    explanation = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
    assert f"Data {missing}." in why_html(explanation, NOW)
    await node.end(job_id)


async def test_a_node_lists_what_it_holds(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    nothing = await longshore("nodes", node.id)
    assert "has not said that it holds any" in nothing.err
    await node.holds(HALF, IMAGE)

    async def listed() -> bool:
        told = await longshore("nodes", node.id)
        assert told.code == 0, told.err
        (line,) = [line for line in told.out.splitlines() if line.startswith("imagenet")] or [""]
        assert line.split()[1:5] == ["default", SOURCE, "150.0GB", "40"]
        assert "image trainer:1" in told.out
        return True

    await eventually(listed)
    told = json.loads((await longshore("nodes", node.id, "--json")).out)
    assert [each["name"] for each in told["holds"]] == ["imagenet", "image trainer:1"]
    data = f"data={{set: {{from: {SOURCE}, size: 200GB}}}}"
    dry = await longshore("submit", "--dry-run", "--pool", pool, "--set", data, "--", "true")
    assert f"first 90GB of data is fetched to {node.id}" in " ".join(dry.out.split())
    unknown = await longshore("nodes", "node-of-nobody")
    assert (unknown.code, "no node node-of-nobody" in unknown.err) == (66, True)
    both = await longshore("nodes", node.id, "--pool", pool)
    assert (both.code, "leave out NODE" in both.err) == (2, True)


def test_the_page_of_nodes_has_each_data_set_once() -> None:
    whole = HALF.model_copy(update={"bytes": HALF.total, "name": "by-another-name"})
    theirs = HALF.model_copy(update={"tenant": "ada", "name": "<b>"})
    python = HeldData(name=name_of_python("3.11.7", "linux-x86_64"))
    holdings = {"node-a": (HALF, python), "node-b": (whole, IMAGE), "node-c": (theirs,)}
    found = held_on_nodes(holdings)
    assert [each.nodes for each in found] == [
        ("node-c (40 %)",), ("node-a (40 %)", "node-b"), ("node-b",),
    ]  # fmt: skip
    html = held_html(holdings)
    assert "node-a (40 %), node-b" in html
    assert "&lt;b&gt;" in html
    assert "of ada" in html
    assert held_html({"node-a": (python,)}) == held_html({}) == ""


def test_no_screen_has_a_secret_of_a_source() -> None:
    source = "https://example.com/set/?access_token=hunter2"
    held = HALF.model_copy(update={"source": source})
    job = JobSpec.model_validate({"name": "a", "command": "b", "data": {"set": source}})
    terminal = Console(file=io.StringIO(), width=200)
    terminal.print(holds_table([held, held.model_copy(update={"total": 0})], NOW))
    (reads,) = [text for name, text in travels(job) if name == "reads"]
    table = cast(io.StringIO, terminal.file).getvalue()
    for said in (table, held_html({"node-a": (held,)}), reads):
        assert "example.com/set/?access_token=***" in said
        assert "hunter2" not in said


def test_how_far_it_is_in_words() -> None:
    staged = StagedData(name="set", node_id="node-3", bytes=2_000_000)
    assert staged.words == "set: 2.0MB of a size that is not known yet on node-3"
    start = staged.model_copy(update={"total": 10_000_000, "expected_start": NOW})
    assert start.words == (
        f"set: 20 % of 10.0MB on node-3, in front of the start at {NOW:%H:%M} UTC"
    )
