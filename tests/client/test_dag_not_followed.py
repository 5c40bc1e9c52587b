"""What is said of a DAG whose workflow was terminated: `doctor` is not the only one that knows."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from longshore.console.dags_view import head_html
from longshore.console.fleet import Fleet
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.client.test_dag_commands import a_file
from tests.support.scripted_node import ScriptedNode


@pytest.mark.exhaustive
async def test_a_dag_that_no_workflow_follows_is_shown_as_such(
    longshore: Command, node: ScriptedNode, pool: str, temporal: Client, tmp_path: Path,
    settings: Settings,
):  # fmt: skip
    dag_id = (await longshore("dag", "submit", "-q", a_file(tmp_path, pool))).out.strip()
    await node.started(f"{dag_id}.prepare")
    fine = (await longshore("dag", "show", dag_id)).out
    assert "follows" not in fine
    assert f"Next: longshore dag watch {dag_id}" in fine
    await temporal.get_workflow_handle(dag_workflow_id(dag_id)).terminate()
    screen = " ".join((await longshore("dag", "show", dag_id)).out.split())
    said = (
        "no workflow follows it: no further job is submitted, and those that were go on. "
        f"`longshore dag retry {dag_id}` goes on with it; `longshore dag cancel {dag_id}` after "
        "that ends it"
    )
    assert said in screen
    assert f"Next: longshore dag retry {dag_id}" in screen
    parsed = json.loads((await longshore("dag", "show", "--json", dag_id)).out)
    assert (parsed["state"], parsed["followed"], parsed["reason"]) == ("RUNNING", False, said)
    listed = json.loads((await longshore("dag", "list", "--json")).out)
    (row,) = (each for each in listed if each["id"] == dag_id)
    assert (row["state"], row["followed"], row["reason"]) == ("RUNNING", False, said)
    steps = parsed["steps"]
    waits = next(step["name"] for step in steps if step["step"] == "WAITING")
    for command in ("why", "job"):
        told = " ".join((await longshore(command, f"{dag_id}.{waits}")).out.split())
        assert said.replace("follows it", "follows its DAG") in told
    fleet = Fleet(settings)  # the pages, and the REST API
    page = await fleet.dag(dag_id)
    await fleet.close()
    assert (page.followed, page.reason) == (False, said)
    assert f"<code>longshore dag cancel {dag_id}</code>" in head_html(page, datetime.now(UTC))
    assert (await longshore("dag", "retry", dag_id)).code == 0
    assert "follows" not in (await longshore("dag", "show", dag_id)).out
    assert (await longshore("dag", "cancel", dag_id)).code == 0
    assert (await longshore("dag", "watch", dag_id)).code == 130
    assert "follows" not in (await longshore("dag", "show", dag_id)).out
