"""What a job without an image puts where the agent looks: nobody is held up, nothing is followed.

`test_image_attacks.py` plays the same from within an image, where podman can run one.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.models.checkpoint import SaveRequest
from longshore.models.errors import RefusedError
from tests.agent.conftest import SECRET, LocalNode
from tests.support.waiting import eventually

IDLE = "echo ready; while :; do sleep 0.05; done"
CONTRACT = {"folder": "ck", "grace": 10}


def is_whole(token: Path) -> bool:
    return token.read_text() == SECRET


@pytest.fixture
def token(tmp_path: Path) -> Path:
    token = tmp_path / "agent-token"
    token.write_text(SECRET)
    return token


async def test_a_pipe_for_the_progress_file_holds_up_neither_others_nor_a_stop(
    box: LocalNode,
) -> None:
    run = box.start(f"rm -f $LONGSHORE_PROGRESS_FILE; mkfifo $LONGSHORE_PROGRESS_FILE; {IDLE}")
    await box.says(run, "ready")
    assert run.progress().fraction is None
    assert (await asyncio.wait_for(box.report("exit 4"), 60)).exit_code == 4
    assert (await asyncio.wait_for(box.stop(run, 0), 60)).stopped_for == "test"


async def test_pipes_for_what_it_saves_hold_up_nobody(box: LocalNode) -> None:
    save = "$LONGSHORE_SAVED $LONGSHORE_SAVE_REQUEST"
    run = box.start(
        f"mkfifo {save}; {IDLE}", job="job-a", checkpoint={**CONTRACT, "save_file": True}
    )
    await box.says(run, "ready")
    request = SaveRequest(key=run.record.key, within=timedelta(seconds=0.2))
    asked = await asyncio.wait_for(
        asyncio.gather(box.processes.save(request), return_exceptions=True), 60
    )
    assert isinstance(asked[0], Exception), "it has saved nothing"
    assert (await asyncio.wait_for(box.report("exit 4"), 60)).exit_code == 4
    assert (await asyncio.wait_for(box.stop(run, 0), 60)).stopped_for == "test"


async def test_no_word_of_a_file_behind_a_link_is_told(box: LocalNode, token: Path) -> None:
    run = box.start(
        f"ln -sf {token} $LONGSHORE_SAVED; ln -sf {token} $LONGSHORE_PROGRESS_FILE; {IDLE}",
        job="job-a", checkpoint=CONTRACT,
    )  # fmt: skip
    await box.says(run, "ready")
    progress = run.progress()
    assert (progress.fraction, progress.message) == (None, "")
    report = await box.stop(run, 0)
    assert "hunter2" not in progress.model_dump_json() + report.model_dump_json()


async def test_a_request_to_save_is_not_written_behind_a_link(box: LocalNode, token: Path) -> None:
    run = box.start(
        f"ln -s {token} $LONGSHORE_SAVE_REQUEST; echo linked; "
        "until [ -f $LONGSHORE_SAVE_REQUEST ] && [ ! -L $LONGSHORE_SAVE_REQUEST ]; "
        f"do sleep 0.05; done; cat $LONGSHORE_SAVE_REQUEST; "
        f"echo saved, step 7 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint={**CONTRACT, "save_file": True},
    )  # fmt: skip
    await box.says(run, "linked")
    request = SaveRequest(key=run.record.key, within=timedelta(seconds=60))
    assert (await box.processes.save(request)).step == 7
    assert is_whole(token)
    await box.says(run, "save\nready")
    await box.stop(run, 0)


@pytest.mark.parametrize("name", [".ck.checkpoint.json", ".ck.checkpoint.new"])
async def test_what_the_agent_notes_beside_a_checkpoint_is_not_written_behind_a_link(
    box: LocalNode, token: Path, name: str
) -> None:
    run = box.start(
        f"ln -s {token} {name}; echo saved, step 3 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint=CONTRACT,
    )  # fmt: skip
    await box.says(run, "ready")

    def is_published() -> bool:
        checkpoint = run.progress().checkpoint
        return checkpoint is not None and checkpoint.published

    await eventually(is_published)
    await box.stop(run, 0)
    assert is_whole(token)


async def test_a_folder_of_checkpoints_that_became_a_link_is_not_published(
    box: LocalNode, token: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "secret").write_text(SECRET)
    run = box.start(
        f"rmdir ck; ln -s {tmp_path}/victim ck; echo saved, step 1 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint=CONTRACT,
    )  # fmt: skip
    await box.says(run, "ready")
    await eventually(lambda: "is a link, which is not followed" in run.progress().checkpoint_error)
    await box.stop(run, 0)
    assert box.checkpoints.names("job-a") == ()


async def test_a_folder_for_a_request_to_save_is_refused_with_a_sentence(box: LocalNode) -> None:
    run = box.start(
        f"mkdir $LONGSHORE_SAVE_REQUEST; {IDLE}",
        job="job-a", checkpoint={**CONTRACT, "save_file": True},
    )  # fmt: skip
    await box.says(run, "ready")
    with pytest.raises(RefusedError, match="LONGSHORE_SAVE_REQUEST cannot be written"):
        await box.processes.save(SaveRequest(key=run.record.key, within=timedelta(seconds=9)))
    await box.stop(run, 0)
