"""What `longshore doctor` says of jobs whose rows somebody has written into."""

import json
from typing import Any

import psycopg

from tests.support.plant import POOL, Plant
from tests.support.waiting import eventually


async def test_a_job_whose_stored_spec_cannot_be_read_is_named_until_it_is_cancelled(
    plant: Plant,
):
    submitted = plant.longshore("submit", "--pool", POOL, "--hold", "--quiet", "--", "true")
    job_id = submitted.stdout.split()[0]
    spoil = """UPDATE jobs SET spec = spec || '{"priority": "high"}' WHERE id = %s"""

    def is_spoilt() -> bool:
        with psycopg.connect(plant.stack.postgres.url(), autocommit=True) as connection:
            return connection.execute(spoil, (job_id,)).rowcount == 1

    await eventually(is_spoilt)
    (found,) = _jobs(plant)
    assert found["level"] == "warn"
    assert f"job {job_id}: priority: must be a whole number" in found["says"]
    assert "`longshore cancel JOB`" in found["mend"]
    assert not plant.longshore("doctor").stdout.endswith("All is well.\n")
    assert plant.longshore("cancel", job_id).returncode == 0
    await eventually(lambda: _jobs(plant)[0]["level"] == "ok")


def _jobs(plant: Plant) -> list[dict[str, Any]]:
    found = json.loads(plant.longshore("doctor", "--json").stdout)["findings"]
    return [each for each in found if each["check"] == "jobs"]
