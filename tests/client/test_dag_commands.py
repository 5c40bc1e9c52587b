"""`longshore dag` against the real stack: submit, watch, show, steer."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.console.dags_view import drawing_html, jobs_html
from longshore.models.dag_view import DagView, StepState
from longshore.models.elements import ElementState
from longshore.models.job_status import JobState
from longshore.models.node_messages import ProcessReport
from longshore.models.output import output_of
from tests.client.conftest import Command
from tests.support.scripted_node import SUCCESS, USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

JOBS = """
jobs:
  prepare: {command: 'true'}
  train: {command: 'true', after: prepare}
  tell: {command: 'true', after: {train: failure}}
"""


def a_file(folder: Path, pool: str) -> str:
    file = folder / "dag.yaml"
    file.write_text(f"name: {pool}\npool: {pool}\n{JOBS}")
    return str(file)


async def shown(longshore: Command, dag_id: str) -> DagView:
    ran = await longshore("dag", "show", dag_id, "--json")
    assert ran.code == 0, ran.err
    return DagView.model_validate_json(ran.out)


async def test_submit_and_wait_says_what_happens(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    running = asyncio.ensure_future(longshore("dag", "submit", a_file(tmp_path, pool), "--wait"))
    found: list[str] = []

    async def started() -> bool:
        found[:] = [job for job, _ in node.runs() if job.startswith(f"{pool}-")]
        return bool(found)

    await eventually(started)
    dag_id = found[0].removesuffix(".prepare")
    await node.end(f"{dag_id}.prepare")
    await node.end(f"{dag_id}.train")
    ran = await running
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == dag_id
    assert f"train  SUCCEEDED  {dag_id}.train" in ran.out
    assert "tell  SKIPPED  needs the failure of train, which succeeded" in ran.out
    assert ran.out.splitlines()[-1].endswith("SUCCEEDED  3 jobs: 1 SKIPPED, 2 SUCCEEDED")


async def test_a_failure_is_shown_and_tried_again(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    dag_id = (await longshore("dag", "submit", "-q", a_file(tmp_path, pool))).out.strip()
    await node.end(f"{dag_id}.prepare", report=USER_ERROR)
    watched = await longshore("dag", "watch", dag_id)
    assert watched.code == 70
    assert "prepare  FAILED" in watched.out
    screen = (await longshore("dag", "show", pool)).out
    assert "├" not in screen.splitlines()[-1]
    for part in (
        f"{dag_id}  FAILED",
        "└─ train",
        "   └─ tell (failure)",
        "needs the success of prepare, which failed",
        f"Next: longshore logs {dag_id}.prepare, then longshore dag retry {dag_id}",
    ):
        assert part in screen, screen  # fmt: skip
    mermaid = (await longshore("dag", "show", pool, "--mermaid")).out
    assert mermaid.startswith(f'---\ntitle: "{dag_id}"\n---\nflowchart TD\n')
    for args in (("show", pool), ("validate", a_file(tmp_path, pool))):
        both = await longshore("dag", *args, "--mermaid", "--json")
        assert (both.code, both.out) == (2, "")
        assert "--mermaid prints a chart and --json a document" in both.err
    assert 'j0["prepare<br/>FAILED"]' in mermaid
    assert "j1 -->|failure| j2" in mermaid
    running = asyncio.ensure_future(longshore("dag", "retry", dag_id, "--wait"))
    await node.end(f"{dag_id}.prepare.r2")
    await node.end(f"{dag_id}.train.r2")
    again = await running
    assert again.code == 0, again.err
    assert again.out.splitlines()[0] == f"{dag_id} runs again: prepare, train, tell"
    changed = tmp_path / "changed.yaml"
    changed.write_text(
        (tmp_path / "dag.yaml").read_text().replace("'true', after", "'false', after")
    )
    tried = await longshore("dag", "retry", dag_id, "--with", str(changed), "--dry-run")
    assert tried.out == f"{dag_id} would run again: train, tell (changed: train, tell)\n"
    shorter = tmp_path / "shorter.yaml"
    shorter.write_text(f"name: {pool}\npool: {pool}\njobs: {{prepare: {{command: x}}}}\n")
    missing = await longshore("dag", "retry", dag_id, "--with", str(shorter))
    assert missing.code == 65
    lines = missing.err.splitlines()
    assert f"error: {shorter}: jobs: tell is not in the file: a retry takes no job out; submit " \
        "the file as a new DAG" in lines  # fmt: skip
    assert all(line.startswith(f"error: {shorter}: ") for line in lines)
    refused = await longshore("dag", "retry", dag_id)
    assert (refused.code, refused.err) == (
        77,
        f"error: no job of DAG {dag_id} failed or was cancelled: nothing runs again\n",
    )  # fmt: skip


async def test_hold_release_cancel_and_list(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    held = await longshore("dag", "submit", a_file(tmp_path, pool), "--hold")
    dag_id = held.out.strip()
    assert f"Next: longshore dag release {dag_id}" in held.err
    assert (await shown(longshore, dag_id)).counts == {StepState.WAITING: 3}
    listed = json.loads((await longshore("dag", "list", "--json")).out)
    assert dag_id in [each["id"] for each in listed]
    assert dag_id in (await longshore("dag", "list")).out
    assert (await longshore("dag", "release", dag_id)).out.strip() == f"{dag_id} goes on"
    for verb in ("hold", "release"):
        done = await longshore("dag", verb, dag_id, "--json")
        assert json.loads(done.out) == {"dag_id": dag_id}
    await node.started(f"{dag_id}.prepare")
    cancelled = await longshore("dag", "cancel", dag_id, "--reason", "no longer needed", "--json")
    assert json.loads(cancelled.out) == {"dag_id": dag_id}
    watched = await longshore("dag", "watch", dag_id)
    assert watched.code == 130
    assert watched.out.splitlines()[-1].endswith("no longer needed")
    over = await longshore("dag", "hold", dag_id)
    assert (over.code, over.err) == (77, f"error: DAG {dag_id} has ended already (CANCELLED)\n")


@pytest.mark.exhaustive
async def test_what_the_path_behind_a_job_counts_is_said_of_it_and_of_the_slots_of_an_array(
    longshore: Command, pool: str, tmp_path: Path
):
    """Of jobs for which nothing has room: the first of two takes half of the longest path."""
    ran = await longshore("pool", "set", pool, "--weights", "critical_path=3")
    assert ran.code == 0, ran.err
    jobs = "first: {command: 'true'}\n  sweep: {command: 'true', array: 0-3%4}\n"
    jobs += "  last: {command: 'true', after: {first: any, sweep: any}}\n"
    file = tmp_path / "dag.yaml"
    file.write_text(f"name: {pool}\npool: {pool}\njobs:\n  {jobs}")
    dag_id = (await longshore("dag", "submit", "-q", str(file))).out.strip()
    told = "50% of its DAG's longest path waits for it, which counts as 1h 30m of waiting"

    async def said(job: str) -> bool:
        screen = " ".join((await longshore("why", f"{dag_id}.{job}")).out.split())
        assert told in screen, screen
        return True

    for job in ("first", "sweep.s1"):
        await eventually(lambda job=job: said(job))
    as_json = json.loads((await longshore("why", f"{dag_id}.first", "--json")).out)
    assert (as_json["path_behind"], as_json["head_start"]) == (0.5, "1h30m")
    await longshore("pool", "set", pool, "--weights", "critical_path=0")
    assert "longest path" not in (await longshore("why", f"{dag_id}.first")).out
    refused = await longshore("pool", "set", pool, "--weights", "critical_path=-1")
    assert refused.err == (
        "error: --weights critical_path=-1: packing.weights.critical_path: must be at least 0, "
        "got -1\n"
    )
    await longshore("dag", "cancel", dag_id)


@pytest.mark.exhaustive
async def test_who_has_a_mutex_is_said(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    file = tmp_path / "one.yaml"
    job = f"a: {{command: 'true', mutex: {pool}}}"
    file.write_text(f"name: {pool}\npool: {pool}\njobs: {{{job}}}\n")
    valid = await longshore("dag", "validate", str(file))
    assert valid.out.endswith(f"at a time (mutex, Slurm's singleton): {pool}\n")
    ids = [(await longshore("dag", "submit", "-q", str(file))).out.strip() for _ in range(2)]
    await eventually(node.runs)
    has = node.runs()[0][0]  # whichever workflow looked first
    waits = next(each for each in ids if not has.startswith(each))
    reason = f"waits for mutex {pool}, which {has} holds"

    async def is_told() -> bool:
        return reason in (await longshore("why", f"{waits}.a")).out

    await eventually(is_told)
    shown = (await longshore("why", f"{waits}.a")).out
    assert shown == f"{waits}.a is WAITING: {reason}\n"
    assert f"a  mutex {pool}" in (await longshore("dag", "show", waits)).out
    assert f"1 job waits for its mutex {pool}" in (await longshore("why", has)).out
    await node.end(has)
    await node.end(f"{waits}.a")
    unknown = await longshore("why", f"{waits}.none")
    assert unknown.code == 66


@pytest.mark.exhaustive
async def test_slurms_words_are_shown_to_who_wrote_them(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    """In the page of the console too: it draws what `dag show --json` prints."""
    file = tmp_path / "slurm.yaml"
    file.write_text(f"""name: {pool}
pool: {pool}
defaults: {{command: 'true'}}
jobs:
  a: {{}}
  ok: {{after: {{a: afterok}}}}
  plain: {{after: a}}
  notok: {{after: {{a: {{condition: afternotok, catch: false}}}}}}
  clean: {{after: {{ok: afterany, notok: any}}}}
""")
    valid = (await longshore("dag", "validate", str(file))).out
    assert valid.splitlines()[1] == (
        "In Slurm's words: ok after a (afterok, that is success), notok after a (afternotok, that "
        "is failure), clean after ok (afterany, that is any)"
    )
    keyed = ("dag", "submit", "-q", str(file), "--key", "1")
    dag_id = (await longshore(*keyed)).out.strip()
    screen = (await longshore("dag", "show", dag_id)).out
    for line in ("ok (afterok)", "notok (afternotok, catch false)", "ok (afterany)"):
        assert line in screen, screen
    assert "plain (" not in screen
    chart = (await longshore("dag", "show", dag_id, "--mermaid")).out
    words = ("afterok", "afternotok, catch false", "afterany", "any")
    assert all(f"-->|{word}|" in chart for word in words)
    dag = await shown(longshore, dag_id)
    table, drawn = jobs_html(dag, datetime.now(UTC)), drawing_html(dag)
    assert "a (afterok)" in table
    assert "ok (afterany), notok (any)" in table
    assert "needs its failure, which fails the DAG all the same (afternotok)" in drawn
    # The same in our words is the same DAG.
    ours = file.read_text()
    for theirs, word in (("afterok", "success"), ("afternotok", "failure"), ("afterany", "any")):
        ours = ours.replace(theirs, word)
    file.write_text(ours)
    assert (await longshore(*keyed)).out.strip() == dag_id
    file.write_text(ours.replace("plain: {after: a}", "plain: {}"))
    assert "other content" in (await longshore(*keyed)).err
    await longshore("dag", "cancel", dag_id)
    await node.end(f"{dag_id}.a")


@pytest.mark.exhaustive
async def test_elements_that_wait_for_others_are_shown(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    file = tmp_path / "arrays.yaml"
    file.write_text(f"""name: {pool}
pool: {pool}
jobs:
  prepare: {{command: 'true', array: 0-9%1}}
  train: {{command: 'true', array: 0-14%1, after: {{prepare: aftercorr}}}}
""")
    alone = "ndices 10-14 of train have no partner in prepare: they start at once"
    valid = await longshore("dag", "validate", str(file))
    assert valid.out.splitlines()[-1] == f"I{alone}."
    ran = await longshore("dag", "submit", str(file))
    assert f"i{alone}" in ran.err
    dag_id = ran.out.strip()
    await node.batch_of(f"{dag_id}.train.s1")
    screen = (await longshore("dag", "show", dag_id)).out
    assert "└─ train [0-14%1] (aftercorr)" in screen
    assert "of 15 elements 1 running, 4 waiting, 10 blocked" in screen
    simulated = {step.name: step.simulated for step in (await shown(longshore, dag_id)).steps}
    assert simulated == {"prepare": True, "train": True}, "of an array, what its slots run on"
    listed = await longshore("dag", "list")
    assert "simulated" in listed.err
    pools = await longshore("pools")
    assert "simulated" in pools.err
    chart = (await longshore("dag", "show", dag_id, "--mermaid")).out
    assert "j0 -->|aftercorr| j1" in chart
    assert 'j1["train [0-14%1]<br/>RUNNING"]' in chart
    planned = (await longshore("dag", "validate", str(file), "--mermaid")).out
    assert 'j1["train [0-14%1]<br/>WAITING"]' in planned
    prepare, train = (await shown(longshore, dag_id)).steps
    assert (prepare.array, prepare.attempts) == ("0-9%1", ())
    assert train.elements == {
        ElementState.RUNNING: 1, ElementState.WAITING: 4, ElementState.BLOCKED: 10,
    }  # fmt: skip
    why = (await longshore("why", f"{dag_id}.train")).out
    assert "waits for the one with its index of an array before it" in why.replace("\n", " ")
    blocked = (await longshore("elements", f"{dag_id}.train", "--state", "blocked")).out
    assert "waits for element 0 of prepare" in blocked
    await longshore("cancel", f"{dag_id}.prepare", "--elements", "3")
    skipped = (await longshore("elements", f"{dag_id}.train", "--state", "skipped")).out
    (line,) = skipped.splitlines()[1:]
    assert line.split()[:2] == ["3", "SKIPPED"]
    assert "needs the success of element 3 of prepare" in line
    await longshore("dag", "cancel", dag_id)
    await node.end_batch(f"{dag_id}.train.s1", cancelled=True)
    assert (await longshore("dag", "watch", dag_id)).code == 130
    ended = (await shown(longshore, dag_id)).steps
    assert [sum((step.elements or {}).values()) for step in ended] == [10, 15]


@pytest.mark.exhaustive
async def test_the_list_has_the_states_that_show_has_and_attempts_are_told(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    dag_id = (await longshore("dag", "submit", "-q", a_file(tmp_path, pool))).out.strip()
    job_id = f"{dag_id}.prepare"

    async def is_told(state: str) -> bool:
        told = f"1 {state}, 2 WAITING"
        listed = (await longshore("dag", "list")).out.splitlines()
        (line,) = [each for each in listed if each.startswith(dag_id)]
        screen = (await longshore("dag", "show", dag_id)).out
        return line.endswith(told) and f"3: {told}" in screen

    await node.started(job_id)
    await eventually(lambda: is_told("RUNNING"))
    await longshore("hold", job_id)
    await eventually(lambda: is_told("HELD"))
    dag = await shown(longshore, dag_id)
    assert dag.counts == {StepState.SUBMITTED: 1, StepState.WAITING: 2}
    assert dag.submitted == {JobState.HELD: 1}
    await longshore("release", job_id)
    await node.started(job_id, 2)
    first, second = (await shown(longshore, dag_id)).steps[0].attempts
    assert (first.attempt, first.end_reason, second.attempt) == (1, "held", 2)
    assert first.ended_at is not None
    assert first.started_at < first.ended_at <= second.started_at
    assert (second.ended_at, second.end_reason) == (None, None)
    await longshore("dag", "cancel", dag_id)
    assert (await longshore("dag", "watch", dag_id)).code == 130
    assert "SUBMITTED" not in (await longshore("dag", "list", "--all")).out


async def test_what_is_not_there_is_said(longshore: Command, pool: str, tmp_path: Path):
    unknown = await longshore("dag", "show", f"{pool}-none")
    assert unknown.code == 66
    assert f"no DAG '{pool}-none'" in unknown.err
    file = tmp_path / "cycle.yaml"
    file.write_text("name: d\njobs: {a: {command: x, after: b}, b: {command: x, after: a}}\n")
    refused = await longshore("dag", "submit", str(file))
    assert refused.code == 65
    assert "a cycle: a comes after b (success); b comes after a (success)" in refused.err
    valid = await longshore("dag", "validate", a_file(tmp_path, pool))
    assert valid.out.strip().endswith("is valid: 3 jobs, 2 edges; it begins with prepare")


async def test_a_command_of_jobs_that_is_given_a_dag_names_its_jobs(
    longshore: Command, pool: str, tmp_path: Path
):
    ran = await longshore("dag", "submit", a_file(tmp_path, pool), "--hold", "-q")
    assert ran.code == 0, ran.err
    await shown(longshore, ran.out.strip())  # it is on record by then
    for command in ("job", "logs", "why", "pull", "cancel"):
        ran = await longshore(command, pool)
        assert ran.code == 66, ran.err
        jobs = ", ".join(f"{pool}.{name}" for name in ("prepare", "train", "tell"))
        assert f"{pool} is a DAG, of the jobs {jobs}: " in ran.err
        assert f"`longshore dag show {pool}` draws it" in ran.err


@pytest.mark.exhaustive
async def test_a_job_that_waits_is_cancelled_and_asked_about_by_the_name_of_its_dag(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    dag_id = (await longshore("dag", "submit", "-q", a_file(tmp_path, pool))).out.strip()
    await node.started(f"{dag_id}.prepare")
    for command in ("why", "job"):
        ran = await longshore(command, f"{pool}.train")
        assert ran.out == f"{pool}.train is WAITING: waits for the success of prepare\n"
    as_json = json.loads((await longshore("job", f"{pool}.train", "--json")).out)
    assert (as_json["step"], as_json["job_id"]) == ("WAITING", None)
    for command in ("hold", "logs", "requeue", "watch"):
        ran = await longshore(command, f"{pool}.train")
        assert ran.code == 77, ran.out
        assert f"error: job {dag_id}.train is in no queue yet: it is WAITING" in ran.err
        assert f"`longshore dag hold {dag_id}`" in ran.err
    output = await longshore("dag", "output", f"{pool}.train")
    assert (output.code, output.err) == (
        66,
        f"error: {dag_id}.train has put nothing out: it is not submitted yet, and waits for the "
        "success of prepare\n",
    )
    unknown = await longshore("dag", "output", f"{pool}.none")
    assert (unknown.code, f"no job '{pool}.none' of a DAG" in unknown.err) == (66, True)
    cancelled = await longshore("cancel", f"{pool}.train", "--reason", "not today")
    assert cancelled.code == 0, cancelled.err
    assert cancelled.out.startswith(f"{dag_id}.train will end")
    await node.end(f"{dag_id}.prepare", report=output_report('{"rows": 3}'))
    assert (await longshore("dag", "watch", dag_id)).code == 70
    assert (await longshore("dag", "output", f"{pool}.prepare")).out == '{"rows": 3}\n'
    why = (await longshore("why", f"{dag_id}.train")).out
    assert why == f"{dag_id}.train is WITHDRAWN: not today\n"


async def test_warnings_name_the_jobs_that_they_are_of(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    file = tmp_path / "large.yaml"
    jobs = "{big: {command: x, gpus: 900}, huge: {command: x, gpus: 900}, fits: {command: x}}"
    file.write_text(f"name: {pool}\npool: {pool}\njobs: {jobs}\n")
    ran = await longshore("dag", "submit", str(file), "--hold")
    assert "warning: jobs big, huge: " in ran.err
    assert "fits" not in ran.err
    await longshore("dag", "cancel", ran.out.strip())


def output_report(raw: str) -> ProcessReport:
    return SUCCESS.model_copy(update={"output": output_of(raw.encode())})
