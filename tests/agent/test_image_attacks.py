"""What a job in an image tries against its node: with the real podman, and in vain.

Skipped, with the reason, where podman cannot run a container.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.errors import RefusedError
from longshore.models.retry import FailureClass
from tests.agent.conftest import SECRET, LocalNode, MakeBox
from tests.support.podman import IDLE, IMAGE
from tests.support.waiting import eventually

CONTRACT = {"folder": "ck", "grace": 10}
NOTHING = CheckpointInfo(job_id="none", attempt=1, number=0, saved_at=datetime.now(UTC), bytes=0)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on another file system than those of the agent, where there is one."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no second file system here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def box(image_box: LocalNode) -> LocalNode:
    return image_box


# --- what a job file names ----------------------------------------------------------------


@pytest.mark.parametrize("image", ["--volume=/:/host", "--privileged"])
async def test_an_image_is_no_option_even_where_nobody_has_looked_at_it(
    box: LocalNode, image: str
) -> None:
    """As a client would give it that does not look at its job files."""
    request = box.request(["--privileged", IMAGE, "sh", "-c", "cat /host/etc/passwd"], image=IMAGE)
    spec = request.spec.model_copy(update={"image": image})
    run = box.processes.start(request.model_copy(update={"spec": spec}))
    ended = await run.done
    assert (ended.exit_code, ended.failure) == (125, FailureClass.START)
    assert box.output(run.record.key) == ""
    assert "invalid reference format" in box.output(run.record.key, "stderr")


@pytest.mark.parametrize(
    "named",
    [
        {"workdir": "/"},
        {"workdir": "{shared}/link"},
        {"checkpoint": {"folder": "/etc", "store": False}},
        {"checkpoint": {"folder": "{shared}/link"}},
        {"checkpoint": {"folder": "../../../runs"}},
    ],
)
async def test_folders_that_the_owner_does_not_allow_are_not_mounted(
    box: LocalNode, tmp_path: Path, named: dict[str, Any]
) -> None:
    (tmp_path / "shared" / "link").symlink_to("/etc")
    text = json.dumps(named).replace("{shared}", str(tmp_path / "shared"))
    ended = await box.report("true", **json.loads(text))
    assert (ended.exit_code, ended.failure) == (126, FailureClass.START)
    assert "of this node it sees its own folder, and what is below the folders" in ended.message


async def test_a_folder_that_the_owner_allows_is_mounted_and_written(
    box: LocalNode, tmp_path: Path
) -> None:
    (tmp_path / "shared" / "data").mkdir()
    (tmp_path / "shared" / "data" / "in").write_text("42\n")
    saves = str(tmp_path / "shared" / "saves")
    run = box.start(
        "cat in; cp in out; cp in $LONGSHORE_CHECKPOINT_DIR; ls -A ..; ls -A $SHARED",
        job="job-a",
        workdir=str(tmp_path / "shared" / "data"), checkpoint={"folder": saves},
        env={"SHARED": str(tmp_path / "shared")},
    )  # fmt: skip
    assert (await run.done).exit_code == 0, box.output(run.record.key, "stderr")
    assert (tmp_path / "shared" / "data" / "out").read_text() == "42\n"
    assert (tmp_path / "shared" / "saves" / "job-a" / "in").read_text() == "42\n"
    assert box.output(run.record.key).split() == ["42", "work", "saves"]


async def test_a_link_of_an_earlier_attempt_opens_no_folder(box: LocalNode) -> None:
    assert (await box.report("ln -s /etc ck; ln -s / up", job="job-a")).exit_code == 0
    for attempt, folder in enumerate(("ck", "ck/new", "up/etc"), start=2):
        ended = await box.report(
            "true", job="job-a", attempt=attempt, checkpoint={"folder": folder}
        )
        assert ended.exit_code == 126
        assert "a job in an image may not see /etc" in ended.message
    assert "new" not in _names(Path("/etc"))


async def test_no_variable_of_a_job_reaches_podman_itself(box: LocalNode) -> None:
    env = {"CONTAINERS_CONF": "/no/such", "LD_PRELOAD": "/no/such.so", "PATH": "/bin:/mine"}
    run = box.start("echo $CONTAINERS_CONF $LD_PRELOAD $PATH", env=env)
    assert (await run.done).exit_code == 0
    assert box.output(run.record.key) == "/no/such /no/such.so /bin:/mine\n"
    assert box.output(run.record.key, "stderr") == ""


# --- what a job puts where the agent looks ------------------------------------------------


async def test_links_to_files_of_the_node_are_not_read(box: LocalNode, tmp_path: Path) -> None:
    token = tmp_path / "agent-token"
    run = box.start(
        f"ln -s {token} $LONGSHORE_SAVED; ln -s {token} $LONGSHORE_PROGRESS_FILE; echo linked; "
        "until [ -e go ]; do sleep 0.05; done; rm $LONGSHORE_SAVED; "
        f"echo saved, step 1 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint=CONTRACT,
    )  # fmt: skip
    await box.says(run, "linked")
    assert (run.progress().fraction, run.progress().message) == (None, "")
    (box.folder / "jobs" / "job-a" / "work" / "go").touch()
    await box.says(run, "ready")
    assert (run.progress().fraction, run.progress().message) == (None, "")
    await eventually(lambda: (run.progress().checkpoint or NOTHING).published)
    assert run.progress().checkpoint_error == ""
    assert "hunter2" not in (await box.stop(run, 0)).model_dump_json()


async def test_pipes_do_not_hold_up_the_agent(box: LocalNode) -> None:
    run = box.start(
        f"mkfifo $LONGSHORE_SAVED $LONGSHORE_PROGRESS_FILE; {IDLE}", checkpoint=CONTRACT
    )
    await box.says(run, "ready")
    assert run.progress().fraction is None
    other = await asyncio.wait_for(box.report("exit 4"), 60)  # it goes on with others
    assert other.exit_code == 4
    assert (await asyncio.wait_for(box.stop(run, 0), 60)).stopped_for == "test"


async def test_a_request_to_save_is_not_written_where_a_link_leads(
    box: LocalNode, tmp_path: Path
) -> None:
    token = tmp_path / "agent-token"
    run = box.start(
        f"ln -s {token} $LONGSHORE_SAVE_REQUEST; echo linked; "
        "until [ -f $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; "
        "cat $LONGSHORE_SAVE_REQUEST; echo saved, step 7 > $LONGSHORE_SAVED; "
        "while [ -e $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; "
        f"mkdir $LONGSHORE_SAVE_REQUEST; {IDLE}",
        checkpoint={**CONTRACT, "save_file": True},
    )  # fmt: skip
    await box.says(run, "linked")
    request = SaveRequest(key=run.record.key, within=timedelta(seconds=60))
    assert (await box.processes.save(request)).step == 7
    assert token.read_text() == SECRET
    await box.says(run, "save\nready")
    with pytest.raises(RefusedError, match="LONGSHORE_SAVE_REQUEST cannot be written"):
        await box.processes.save(request)
    await box.stop(run, 0)


@pytest.mark.parametrize("folder", ["ck", "a/victim"])
async def test_a_folder_of_checkpoints_that_became_a_link_is_not_published(
    box: LocalNode, tmp_path: Path, folder: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text(SECRET)
    top = folder.partition("/")[0]
    target = victim if top == folder else tmp_path
    run = box.start(
        f"rm -r {top}; ln -s {target} {top}; echo saved, step 1 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint={"folder": folder, "grace": 10},
    )  # fmt: skip
    await box.says(run, "ready")
    await eventually(lambda: "cannot be kept" in run.progress().checkpoint_error)
    assert "is a link, which is not followed" in run.progress().checkpoint_error
    await box.stop(run, 0)
    assert box.checkpoints.names("job-a") == ()
    assert _names(tmp_path) == ["agent-token", "node", "shared", "victim"]
    assert _names(victim) == ["secret"]


async def test_what_waits_to_be_published_is_where_no_job_sees_it_also_from_another_disk(
    images: None, make_box: MakeBox, tmp_path: Path, disk: Path
) -> None:
    blocker = tmp_path / "blocker"
    blocker.touch()  # a file where a folder should be: the store refuses
    box = make_box(
        tmp_path,
        runtime="podman",
        image=IMAGE,
        image_folders=[disk],
        checkpoints=(blocker / "store").as_uri(),
    )
    save = "echo 5 > $LONGSHORE_CHECKPOINT_DIR/step; echo saved, step 5 > $LONGSHORE_SAVED"
    run = box.start(f"{save}; {IDLE}", job="job-a", workdir=str(disk), checkpoint=CONTRACT)
    await eventually(lambda: "checkpoint store" in run.progress().checkpoint_error)
    (moment,) = run.folder.glob(".job-a.saved-*")
    assert (moment / "step").read_text() == "5\n"
    assert _names(disk / "ck") == [".job-a.checkpoint.json", "job-a"]
    blocker.unlink()
    await eventually(lambda: (run.progress().checkpoint or NOTHING).published)
    await box.stop(run, 0)


async def test_links_in_a_checkpoint_are_kept_as_links(box: LocalNode, tmp_path: Path) -> None:
    save = (
        f"ln -s {tmp_path}/agent-token ck/token; ln -s {tmp_path} ck/all; mkfifo ck/pipe; "
        "echo 9 > ck/step; echo saved, step 9 > $LONGSHORE_SAVED"
    )
    run = box.start(f"{save}; {IDLE}", job="job-a", checkpoint=CONTRACT)
    await box.says(run, "ready")
    await eventually(lambda: (run.progress().checkpoint or NOTHING).published)
    await box.stop(run, 0)
    (name,) = box.checkpoints.names("job-a")
    files = {
        file.path: (file.link, file.size) for file in box.checkpoints.manifest("job-a", name).files
    }
    assert files == {
        "all": (str(tmp_path), 0), "step": (None, 2), "token": (f"{tmp_path}/agent-token", 0)
    }  # fmt: skip


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
