"""Code and environments of the elements of an array: a slot has one folder for all of its own."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node.retention import Keeping, Pruner
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from tests.agent.test_elements import an_array, begun, ended, written
from tests.support.agent import AgentProcess
from tests.support.snapshots import code_of, put_on_record, store_snapshot
from tests.support.wheels import make_wheel, settings_of_index


async def test_elements_run_in_the_code_of_their_slot_with_its_environment(
    longshore: Longshore, agent: AgentProcess, settings: Settings, pool: str, tmp_path: Path
):
    make_wheel(tmp_path / "wheels", "tool", "1.0")
    agent.start(**settings_of_index(tmp_path / "wheels"))
    store = ArtifactStore(settings.resolve_artifact_store())
    snapshot = store_snapshot(store, {"main.sh": "pwd\ntool\n", "requirements.txt": "tool"})
    await put_on_record(longshore.database(), store, snapshot)
    spec = an_array(
        pool, "sh main.sh", "0-3%1", code=code_of(snapshot), environment="requirements.txt"
    )
    array_id = await begun(longshore, spec)
    assert (await ended(longshore, array_id)).state is JobState.SUCCEEDED
    said = {(await written(longshore, array_id, index)).decode() for index in range(4)}
    (only,) = said
    folder, version = only.split()
    assert version == "1.0"
    jobs = agent.folder / "work/jobs"
    assert [path / "work" for path in jobs.iterdir()] == [Path(folder)]

    async def is_over(job_id: str) -> bool:
        assert (jobs / job_id).exists()
        return True

    pruner = Pruner(agent.folder / "work", Keeping(0, timedelta(days=1)), is_over)
    assert await pruner.prune(datetime.now(UTC) + timedelta(days=2)) > 0
    assert list(jobs.iterdir()) == []
