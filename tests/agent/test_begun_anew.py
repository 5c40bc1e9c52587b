"""Ranks of a gang that begin anew, as no checkpoint of it is whole: with their code, in an empty
folder, as often as it takes."""

from pathlib import Path

import pytest

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node import checkpoint_files
from longshore.activities.node.run import Run
from longshore.models.placement import Rank
from tests.agent.conftest import LocalNode
from tests.support.snapshots import code_of, store_snapshot

READS = 'cat "$LONGSHORE_CODE_DIR/c/config" || exit 3'
SAVES = 'echo > "$LONGSHORE_CHECKPOINT_DIR/part"; echo "saved, step 1" >> "$LONGSHORE_SAVED"'


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


async def test_it_begins_anew_also_where_what_was_set_aside_before_cannot_be_removed(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
):
    """As files of another user, or on a server that is away."""

    def stays(folder: Path, below: int | None = None) -> None:
        """Remove nothing."""

    monkeypatch.setattr(checkpoint_files, "remove_what_can_be", stays)
    for attempt in (1, 2, 3):
        run = a_rank(box, f"{SAVES}; exit 1", attempt)
        assert (await run.done).exit_code == 1
    assert len(unfinished(box)) == 2
    monkeypatch.undo()
    (box.folder / "jobs/job-a/work/.c.d.unfinished-0123456789ab").mkdir()  # of a folder `c.d`
    await a_rank(box, f"{SAVES}; exit 1", 4).done
    assert len(unfinished(box)) == 2


async def test_what_was_set_aside_is_no_output_and_goes_once_the_job_succeeds(box: LocalNode):
    await a_rank(box, f"{SAVES}; exit 1", 1).done
    for attempt, code in ((2, 1), (3, 0)):
        run = a_rank(box, f"{SAVES}; exit {code}", attempt, outputs=["**"])
        assert (await run.done).exit_code == code
        (stored,) = OutputStore((box.folder / "artifacts").as_uri()).of_attempt("job-a", attempt)
        assert [file.path for file in stored.files] == [".c.checkpoint.json", "c/part"]
        assert len(unfinished(box)) == code


def unfinished(box: LocalNode) -> list[str]:
    work = box.folder / "jobs/job-a/work"
    return [path.name for path in work.iterdir() if ".unfinished" in path.name]
