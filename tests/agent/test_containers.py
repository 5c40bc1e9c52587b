"""Jobs in images, run by the real podman: what they see of their node, and what they cannot do.

Skipped, with the reason, where podman cannot run a container.
"""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.node import orphans
from activities.node.processes import Run
from client.api import Longshore
from models.checkpoint import CheckpointInfo, SaveRequest
from models.errors import RefusedError
from models.job import FailureClass
from models.messages import ProcessReport, StopProcessRequest
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.podman import IMAGE, containers, own_podman, podman
from tests.support.waiting import eventually

SECRET = "0.5 hunter2"
"""As a line of progress, so that whoever reads it as one has it."""
EMPTY = CheckpointInfo(
    job_id="none", attempt=1, number=0, saved_at=datetime.now(UTC), bytes=0, published=False
)
IDLE = "echo ready; while :; do sleep 0.05; done"
CONTRACT = {"folder": "ck", "grace": 10}


@pytest.fixture(scope="module")
def images() -> Iterator[None]:
    """Podman with storage of its own, and the image IMAGE in it; 2 s."""
    with own_podman(Path(tempfile.mkdtemp(prefix="podman-"))):
        yield


@pytest.fixture
def box(images: None, make_box: MakeBox, tmp_path: Path) -> LocalNode:
    """A node that runs images, and lets them see its folder `shared`."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "agent-token").write_text(SECRET)
    return make_box(tmp_path / "node", runtime="podman", image_folders=[tmp_path / "shared"])


def start(box: LocalNode, command: str | list[str], **spec: object) -> Run:
    return box.start(command, **{"image": IMAGE, **spec})


async def report(box: LocalNode, command: str | list[str], **spec: object) -> ProcessReport:
    return await start(box, command, **spec).done


async def says(box: LocalNode, run: Run, words: str) -> str:
    """Wait until a job has said something; return all that it has said."""

    def said() -> bool:
        assert not run.done.done(), f"{run.done.result()}: {box.output(run.record.key, 'stderr')}"
        return words in box.output(run.record.key)

    await eventually(said)
    return box.output(run.record.key)


async def stop(box: LocalNode, run: Run, grace: float = 10) -> ProcessReport:
    request = StopProcessRequest(key=run.record.key, grace=timedelta(seconds=grace), reason="test")
    await box.processes.stop(request)
    return run.done.result()


async def stopped(box: LocalNode, run: Run, words: str = "ready") -> ProcessReport:
    await says(box, run, words)
    return await stop(box, run, 0)


# --- what a container does as any process -------------------------------------------------


async def test_a_job_sees_its_own_folder_and_environment_and_nothing_else(
    box: LocalNode, tmp_path: Path
) -> None:
    command = (
        "set -e; cat /etc/whose; pwd; ls -A; echo kept > file; "
        "echo half > $LONGSHORE_PROGRESS_FILE; "
        f'ls -A /longshore; ls -d {tmp_path} || echo "no such folder"; '
        'echo "$CUDA_VISIBLE_DEVICES|$MINE|$LINES|$LD_PRELOAD"; ps | wc -l'
    )
    env = {"MINE": " a = b # c ", "LINES": "1\n2", "LD_PRELOAD": ""}
    run = start(box, command, env=env, job="job-a")
    ended = await run.done
    assert (ended.exit_code, ended.message) == (0, "finished"), box.output(
        run.record.key, "stderr"
    )
    lines = box.output(run.record.key).splitlines()
    assert lines[:2] == ["the image's", "/longshore/work"]
    assert lines[2:4] == ["progress", "work"]
    assert lines[4:7] == ["no such folder", "1,3| a = b # c |1", "2|"]
    assert int(lines[7]) <= 6  # init, the shell, ps, wc, and the heading: none of the node
    assert (box.folder / "jobs" / "job-a" / "work" / "file").read_text() == "kept\n"
    assert containers() == []


@pytest.mark.parametrize(
    ("command", "code", "failure"),
    [
        ("exit 3", 3, FailureClass.USER),
        ("kill -KILL $$", 137, FailureClass.USER),
        ("no-such-command", 127, FailureClass.START),
        ("/etc/whose", 126, FailureClass.START),
        (["no-such-command"], 1, FailureClass.USER),  # podman's init says no more
    ],
)
async def test_how_it_ended_is_told(
    box: LocalNode, command: str | list[str], code: int, failure: FailureClass
) -> None:
    ended = await report(box, command)
    assert (ended.exit_code, ended.failure) == (code, failure)
    assert containers() == []


async def test_a_job_may_save_in_its_grace(box: LocalNode) -> None:
    run = start(box, f"trap 'echo saved; exit 7' TERM; {IDLE}")
    await says(box, run, "ready")
    ended = await stop(box, run)
    assert (ended.exit_code, ended.stopped_for) == (7, "test")
    assert box.output(run.record.key) == "ready\nsaved\n"
    assert containers() == []


async def test_one_that_is_stopped_before_it_runs_does_not_get_its_whole_grace(
    box: LocalNode,
) -> None:
    run = start(box, "sleep 300")
    await asyncio.wait_for(run.started, 60)
    ended = await asyncio.wait_for(stop(box, run, grace=600), 60)
    assert ended.stopped_for == "test"
    assert containers() == []


async def test_one_that_ignores_the_signal_is_killed_after_its_grace(box: LocalNode) -> None:
    run = start(box, f"trap '' TERM; setsid sleep 300 & {IDLE}")
    await says(box, run, "ready")
    ended = await stop(box, run, grace=0.3)
    assert (ended.exit_code, ended.stopped_for) == (137, "test")
    assert "killed" in ended.message
    assert containers() == []


async def test_nothing_stays_where_its_supervisor_is_killed(box: LocalNode) -> None:
    run = start(box, IDLE)
    await says(box, run, "ready")
    os.kill(run.started.result()["supervisor"], signal.SIGKILL)
    assert (await run.done).failure is FailureClass.NODE
    assert containers() == []
    assert "while :" not in " ".join(_commands())


async def test_an_agent_removes_what_outlived_it(box: LocalNode) -> None:
    label = f"longshore.agent={box.identity.agent_id}"
    podman("run", "--detach", "--name", "left", "--label", label, "--", IMAGE, "sleep", "300")
    podman("run", "--detach", "--name", "anothers", "--", IMAGE, "sleep", "300")
    await orphans.end_orphans(box.identity.agent_id, [], "podman")
    assert containers() == ["anothers"]
    podman("rm", "--force", "--time", "0", "anothers")


async def test_an_agent_with_the_owners_settings_runs_images_and_leaves_none_behind(
    images: None, longshore: Longshore, agent: AgentProcess, pool: str, tmp_path: Path
) -> None:
    agent.start(LONGSHORE_IMAGE_FOLDERS=json.dumps([str(tmp_path)]))
    (tmp_path / "data").mkdir()
    spec = {
        "image": IMAGE,
        "workdir": str(tmp_path / "data"),
        "retry": {"node": {"max_retries": 0}},
    }
    first = await longshore.submit(a_spec(pool, command="echo 42 > out; exit 3", **spec))
    assert (await longshore.wait(first.job_id)).exit_code == 3
    assert (tmp_path / "data" / "out").read_text() == "42\n"
    second = await longshore.submit(a_spec(pool, command="touch up; sleep 300", **spec))
    await eventually((tmp_path / "data" / "up").exists)
    agent.kill()
    await eventually(lambda: not containers())
    agent.start()
    assert (await longshore.wait(second.job_id)).failure is FailureClass.NODE


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
    ended = await report(box, "true", **json.loads(text))
    assert (ended.exit_code, ended.failure) == (126, FailureClass.START)
    assert "of this node it sees its own folder, and what is below the folders" in ended.message


async def test_a_folder_that_the_owner_allows_is_mounted_and_written(
    box: LocalNode, tmp_path: Path
) -> None:
    (tmp_path / "shared" / "data").mkdir()
    (tmp_path / "shared" / "data" / "in").write_text("42\n")
    saves = str(tmp_path / "shared" / "saves")
    run = start(
        box, "cat in; cp in out; cp in $LONGSHORE_CHECKPOINT_DIR; ls -A ..; ls -A $SHARED",
        job="job-a",
        workdir=str(tmp_path / "shared" / "data"), checkpoint={"folder": saves},
        env={"SHARED": str(tmp_path / "shared")},
    )  # fmt: skip
    assert (await run.done).exit_code == 0, box.output(run.record.key, "stderr")
    assert (tmp_path / "shared" / "data" / "out").read_text() == "42\n"
    assert (tmp_path / "shared" / "saves" / "job-a" / "in").read_text() == "42\n"
    assert box.output(run.record.key).split() == ["42", "work", "saves"]


async def test_a_link_of_an_earlier_attempt_opens_no_folder(box: LocalNode) -> None:
    assert (await report(box, "ln -s /etc ck; ln -s / up", job="job-a")).exit_code == 0
    for folder in ("ck", "ck/new", "up/etc"):
        attempt = 2 + ("ck", "ck/new", "up/etc").index(folder)
        ended = await report(
            box, "true", job="job-a", attempt=attempt, checkpoint={"folder": folder}
        )
        assert ended.exit_code == 126
        assert "a job in an image may not see /etc" in ended.message
    assert "new" not in _names(Path("/etc"))


async def test_no_variable_of_a_job_reaches_podman_itself(box: LocalNode) -> None:
    env = {"CONTAINERS_CONF": "/no/such", "LD_PRELOAD": "/no/such.so", "PATH": "/bin:/mine"}
    run = start(box, "echo $CONTAINERS_CONF $LD_PRELOAD $PATH", env=env)
    assert (await run.done).exit_code == 0
    assert box.output(run.record.key) == "/no/such /no/such.so /bin:/mine\n"
    assert box.output(run.record.key, "stderr") == ""


# --- what a job puts where the agent looks ------------------------------------------------


async def test_links_to_files_of_the_node_are_not_read(box: LocalNode, tmp_path: Path) -> None:
    token = tmp_path / "agent-token"
    run = start(
        box,
        f"ln -s {token} $LONGSHORE_SAVED; ln -s {token} $LONGSHORE_PROGRESS_FILE; echo linked; "
        "until [ -e go ]; do sleep 0.05; done; rm $LONGSHORE_SAVED; "
        f"echo saved, step 1 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint=CONTRACT,
    )  # fmt: skip
    await says(box, run, "linked")
    assert (run.progress().fraction, run.progress().message) == (None, "")
    (box.folder / "jobs" / "job-a" / "work" / "go").touch()
    await says(box, run, "ready")
    assert (run.progress().fraction, run.progress().message) == (None, "")
    await eventually(lambda: (run.progress().checkpoint or EMPTY).published)
    assert run.progress().checkpoint_error == ""
    assert "hunter2" not in (await stop(box, run, 0)).model_dump_json()


async def test_pipes_do_not_hold_up_the_agent(box: LocalNode) -> None:
    run = start(
        box, f"mkfifo $LONGSHORE_SAVED $LONGSHORE_PROGRESS_FILE; {IDLE}", checkpoint=CONTRACT
    )
    await says(box, run, "ready")
    assert run.progress().fraction is None
    other = await asyncio.wait_for(box.report("exit 4"), 60)  # it goes on with others
    assert other.exit_code == 4
    assert (await asyncio.wait_for(stop(box, run, 0), 60)).stopped_for == "test"


async def test_a_request_to_save_is_not_written_where_a_link_leads(
    box: LocalNode, tmp_path: Path
) -> None:
    token = tmp_path / "agent-token"
    run = start(
        box,
        f"ln -s {token} $LONGSHORE_SAVE_REQUEST; echo linked; "
        "until [ -f $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; "
        "cat $LONGSHORE_SAVE_REQUEST; echo saved, step 7 > $LONGSHORE_SAVED; "
        "while [ -e $LONGSHORE_SAVE_REQUEST ]; do sleep 0.05; done; "
        f"mkdir $LONGSHORE_SAVE_REQUEST; {IDLE}",
        checkpoint={**CONTRACT, "save_file": True},
    )  # fmt: skip
    await says(box, run, "linked")
    request = SaveRequest(key=run.record.key, within=timedelta(seconds=60))
    assert (await box.processes.save(request)).step == 7
    assert token.read_text() == SECRET
    await says(box, run, "save\nready")
    with pytest.raises(RefusedError, match="LONGSHORE_SAVE_REQUEST cannot be written"):
        await box.processes.save(request)
    await stop(box, run, 0)


@pytest.mark.parametrize("folder", ["ck", "a/victim"])
async def test_a_folder_of_checkpoints_that_became_a_link_is_not_published(
    box: LocalNode, tmp_path: Path, folder: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text(SECRET)
    top = folder.partition("/")[0]
    target = victim if top == folder else tmp_path
    run = start(
        box,
        f"rm -r {top}; ln -s {target} {top}; echo saved, step 1 > $LONGSHORE_SAVED; {IDLE}",
        job="job-a", checkpoint={"folder": folder, "grace": 10},
    )  # fmt: skip
    await says(box, run, "ready")
    await eventually(lambda: "cannot be kept" in run.progress().checkpoint_error)
    assert "is a link, which is not followed" in run.progress().checkpoint_error
    await stop(box, run, 0)
    assert box.checkpoints.names("job-a") == ()
    assert _names(tmp_path) == ["agent-token", "node", "shared", "victim"]
    assert _names(victim) == ["secret"]


async def test_links_in_a_checkpoint_are_kept_as_links(box: LocalNode, tmp_path: Path) -> None:
    save = (
        f"ln -s {tmp_path}/agent-token ck/token; ln -s {tmp_path} ck/all; mkfifo ck/pipe; "
        "echo 9 > ck/step; echo saved, step 9 > $LONGSHORE_SAVED"
    )
    run = start(box, f"{save}; {IDLE}", job="job-a", checkpoint=CONTRACT)
    await says(box, run, "ready")
    await eventually(lambda: (run.progress().checkpoint or EMPTY).published)
    await stop(box, run, 0)
    (name,) = box.checkpoints.names("job-a")
    files = {
        file.path: (file.link, file.size) for file in box.checkpoints.manifest("job-a", name).files
    }
    assert files == {
        "all": (str(tmp_path), 0), "step": (None, 2), "token": (f"{tmp_path}/agent-token", 0)
    }  # fmt: skip


# --- what docs/security.md says of the kernel ---------------------------------------------


async def test_a_container_has_namespaces_of_its_own_but_not_for_users(box: LocalNode) -> None:
    run = start(box, "for each in ipc mnt net pid user uts; do readlink /proc/self/ns/$each; done")
    assert (await run.done).exit_code == 0
    inside = dict(line.split(":") for line in box.output(run.record.key).splitlines())
    here = {name: _namespace(name) for name in inside}
    same = {name for name in inside if here[name] == f"{name}:{inside[name]}"}
    assert same == ({"user"} if os.geteuid() == 0 else set())


async def test_a_container_has_the_network_that_the_owner_of_the_node_gives_it(
    box: LocalNode,
) -> None:
    run = start(box, "ls /sys/class/net")  # `netns` in containers.conf is "none"
    await run.done
    assert box.output(run.record.key) == "lo\n"


async def test_devices_mounts_and_settings_of_the_node_are_out_of_reach(box: LocalNode) -> None:
    command = (
        "mount -t tmpfs none /sys || echo no mount; mknod d b 1 1 || echo no device; "
        "echo 1 > /proc/sys/kernel/panic || echo no setting"
    )
    run = start(box, command)
    await run.done
    assert box.output(run.record.key).splitlines() == ["no mount", "no device", "no setting"]


async def test_what_it_makes_belongs_to_its_user_also_a_program_that_is_setuid(
    box: LocalNode,
) -> None:
    """What an image does not keep apart."""
    run = start(box, "cp /bin/busybox own; chmod 4755 own; id -u", job="job-a")
    await run.done
    its = (box.folder / "jobs" / "job-a" / "work" / "own").stat()
    assert box.output(run.record.key) == "0\n"
    assert (its.st_uid, its.st_mode & 0o7777) == (os.geteuid(), 0o4755)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _namespace(kind: str) -> str:
    return str(Path(f"/proc/self/ns/{kind}").readlink())


def _commands() -> list[str]:
    """Return the command lines of all processes here."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found
