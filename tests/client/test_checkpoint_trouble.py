"""What is wrong with the checkpoints of a job that runs is told wherever somebody asks for it."""

from longshore.console.job_view import why_html
from longshore.models.explanation import Explanation
from longshore.models.node_messages import Progress
from tests.client.conftest import Command
from tests.support.screens import NOW
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def test_what_was_damaged_of_its_checkpoints_is_told_while_a_job_runs(
    longshore: Command, node: ScriptedNode, pool: str
) -> None:
    trouble = "it goes on from an older checkpoint: model.bin is damaged"
    node.says = Progress(checkpoint_error=trouble)
    ran = await longshore("submit", "-q", "--pool", pool, "--set", "checkpoint={folder: c}", "--",
                          "true")  # fmt: skip
    job_id = ran.out.strip()
    await node.started(job_id)

    async def told() -> bool:
        for command in ("job", "why", "checkpoints"):
            said = await longshore(command, job_id)
            if trouble not in " ".join(f"{said.out} {said.err}".split()):
                return False
        return True

    await eventually(told)
    explanation = Explanation.model_validate_json((await longshore("why", job_id, "--json")).out)
    assert f"Checkpoint: {trouble}." in why_html(explanation, NOW)
    await node.end(job_id)
