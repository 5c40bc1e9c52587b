"""What commands say of a DAG that is stored in a form that they cannot read."""

from pathlib import Path

import psycopg
import pytest

from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.client.test_dag_commands import shown

FILE = "name: {name}\npool: {name}\njobs:\n  a: {{command: x}}\n"


@pytest.mark.parametrize("command", [("dag", "show"), ("job",), ("why",), ("dag", "retry")])
async def test_it_is_named_with_what_is_wrong_in_it(
    longshore: Command, pool: str, tmp_path: Path, settings: Settings, command: tuple[str, ...]
):
    file = tmp_path / "dag.yaml"
    file.write_text(FILE.format(name=pool))
    submitted = await longshore("dag", "submit", str(file), "--hold", "-q")
    assert submitted.code == 0, submitted.err
    await shown(longshore, submitted.out.strip())  # it is on record by then
    for steps in (("dag", "cancel"), ("dag", "watch")):
        assert (await longshore(*steps, submitted.out.strip())).code in (0, 130)
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        connection.execute(
            """UPDATE dags SET spec = jsonb_set(spec::jsonb, '{jobs,a,gpus}', '"many"')::json
                WHERE id = %s""",
            (submitted.out.strip(),),
        )
    ran = await longshore(*command, pool)
    assert ran.code == 65, ran.err
    said = f"what is stored of DAG {submitted.out.strip()}: jobs.a.gpus: must be a whole number"
    assert said in ran.err
    assert "Traceback" not in ran.err
