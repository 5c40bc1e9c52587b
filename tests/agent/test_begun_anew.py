"""Ranks of a gang that begin anew, as no checkpoint of it is whole: with their code, in an empty
folder, as often as it takes."""

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node.run import Run
from longshore.models.placement import Rank
from tests.agent.conftest import LocalNode
from tests.support.snapshots import code_of, store_snapshot

READS = 'cat "$LONGSHORE_CODE_DIR/c/config" || exit 3'
SAVES = """
echo mine > "$LONGSHORE_CHECKPOINT_DIR/part"; echo "saved, step 1" >> "$LONGSHORE_SAVED"
"""


def a_rank(
    box: LocalNode, command: str, attempt: int, folder: str = "c", **details: object
) -> Run:
    """Start rank 0 of a gang of two, of which the other one never saves."""
    checkpoint = {"folder": folder, "grace": 30}
    request = box.request(command, job="job-a", attempt=attempt, checkpoint=checkpoint, **details)
    ranks = tuple(
        Rank(rank=number, node_id=f"box-{number}", epoch=1, gpu_indices=(0,))
        for number in range(2)
    )
    placement = request.placement.model_copy(update={"rank": 0, "ranks": ranks})
    return box.processes.start(request.model_copy(update={"placement": placement}))


@pytest.mark.parametrize("folder", ["c", "."])
@pytest.mark.parametrize("first", [1, 2])
async def test_a_rank_that_begins_anew_has_its_code(box: LocalNode, folder: str, first: int):
    store = ArtifactStore((box.folder / "artifacts").as_uri())
    code = code_of(store_snapshot(store, {"c/config": "of the code\n"}))
    for attempt in (first, first + 1):
        run = a_rank(box, f"{READS}; {SAVES}", attempt, folder, code=code)
        assert (await run.done).failure is None
        assert box.output(run.record.key) == "of the code\n"
        said = box.output(run.record.key, "stderr")
        assert ("what this rank had saved alone is in" in said) == (attempt != first)
