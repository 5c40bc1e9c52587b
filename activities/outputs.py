"""The outputs of jobs of DAGs: one row each, written with the job's end."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.dag import DagSpec
from longshore.models.dag_view import StepState
from longshore.models.output import JobOutput
from longshore.scheduling.dag_inputs import variables, why_too_much


async def store_output(connection: AsyncConnection, job_id: str, output: JobOutput) -> None:
    """Store what a job put out, where it can be used. A repeat changes nothing."""
    if output.problem:
        return
    await connection.execute(
        text(_STORE),
        {"id": job_id, "content": output.content, "digest": output.digest, "bytes": output.bytes},
    )


async def outputs_of(
    connection: AsyncConnection, dag_id: str, names: Collection[str]
) -> dict[str, str]:
    """Return the outputs of these jobs of a DAG, as far as there are any, by name."""
    rows = await connection.execute(text(_OUTPUTS), {"id": dag_id, "names": list(names)})
    return {row.name: row.content for row in rows}


async def given_to(
    connection: AsyncConnection,
    dag_id: str,
    spec: DagSpec,
    states: Mapping[str, StepState],
    names: Sequence[str],
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return for these jobs the variables of the outputs that they get; and why those cannot be
    submitted that do not get all of them. A job that has not succeeded puts out nothing."""
    wanted = {up for name in names for up in spec.jobs[name].inputs}
    stored = await outputs_of(connection, dag_id, wanted) if wanted else {}
    given: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for name in names:
        own = [up for up in spec.jobs[name].inputs if states[up] is StepState.SUCCEEDED]
        gone = [up for up in own if up not in stored]
        outputs = {up: stored[up] for up in own if up in stored}
        why = f"the output of {gone[0]} is not there any more" if gone else why_too_much(outputs)
        if why:
            refused[name] = why
        elif outputs:
            given[name] = variables(outputs)
    return given, refused


_STORE = """
    INSERT INTO outputs (job_id, content, digest, bytes)
    VALUES (:id, :content, :digest, :bytes)
    ON CONFLICT DO NOTHING
"""

_OUTPUTS = """
    SELECT d.name, o.content FROM dag_jobs d JOIN outputs o ON o.job_id = d.job_id
     WHERE d.dag_id = :id AND d.name = ANY (:names)
"""
