"""Jobs in images, run by the real podman: what they see of their node, and how they end.

Skipped, with the reason, where podman cannot run a container.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import uuid
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from longshore.activities.node import launch, orphans, run_lifecycle
from longshore.client.api import Longshore
from longshore.models.checkpoint import SaveRequest
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.agent import AgentProcess
from tests.support.control import a_spec
from tests.support.podman import IDLE, IMAGE, containers, podman
from tests.support.waiting import eventually


@pytest.fixture
def box(image_box: LocalNode) -> LocalNode:
    return image_box


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
    run = box.start(command, env=env, job="job-a")
    ended = await run.done
    assert (ended.exit_code, ended.message) == (0, "finished"), box.output(
        run.record.key, "stderr"
    )
    lines = box.output(run.record.key).splitlines()
    assert lines[:2] == ["the image's", "/longshore/work"], box.output(run.record.key, "stderr")
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
    ended = await box.report(command)
    assert (ended.exit_code, ended.failure) == (code, failure)
    assert containers() == []


async def test_its_job_file_does_not_say_what_it_goes_on_from(box: LocalNode) -> None:
    run = box.start('echo "resume ${LONGSHORE_RESUME:-no}"', env={"LONGSHORE_RESUME": "1"})
    await run.done
    assert box.output(run.record.key) == "resume no\n"


async def test_a_job_may_save_in_its_grace(box: LocalNode) -> None:
    run = box.start(f"trap 'echo saved; exit 7' TERM; {IDLE}")
    await box.says(run, "ready")
    ended = await box.stop(run)
    assert (ended.exit_code, ended.stopped_for) == (7, "test")
    assert box.output(run.record.key) == "ready\nsaved\n"
    assert containers() == []


_SAVES = f"trap 'sleep 1; echo half; sleep 1; echo saved; exit' TERM; {IDLE}"


@pytest.mark.parametrize(
    "command",
    [
        f"""cat > job.sh <<'end'\n{_SAVES}\nend\nsh job.sh; echo never""",
        f"""cat > job.sh <<'end'\n{_SAVES}\nend\nsetsid sh job.sh & wait; echo never""",
        ["sh", "-c", f'sh -c "{_SAVES}"; echo never'],
    ],
    ids=["below a shell", "in its own session", "a list"],
)
async def test_what_a_shell_started_may_save_in_its_grace(
    box: LocalNode, command: str | list[str]
) -> None:
    """The shell would die of the signal at once, and the container with it."""
    run = box.start(command)
    await box.says(run, "ready")
    ended = await box.stop(run, grace=60)
    assert ended.message == "stopped (test), exit code 143"
    assert box.output(run.record.key) == "ready\nhalf\nsaved\n"
    assert containers() == []


async def test_what_was_saving_when_its_grace_ended_displaces_no_whole_checkpoint(
    box: LocalNode,
) -> None:
    contract = {"folder": "ck", "grace": 10}
    program = f"trap 'echo half > ck/step; sleep 300' TERM; {IDLE}"
    run = box.start(f'sh -c "{program}"; echo never', checkpoint=contract)
    await box.says(run, "ready")
    ended = await box.stop(run, grace=2)
    assert ended.message.endswith("it did not save in time and was killed")
    assert "killed before" in ended.checkpoint_error
    assert containers() == []


async def test_one_whose_programs_ignore_the_signal_ends_with_its_first_process(
    box: LocalNode,
) -> None:
    """As with the tracker of Python's multiprocessing, which goes when all others have."""
    run = box.start(f"(trap '' TERM; sleep 300) & {IDLE}")
    await box.says(run, "ready")
    ended = await asyncio.wait_for(box.stop(run, grace=600), 60)
    assert ended.exit_code == 143
    assert containers() == []


async def test_every_process_is_asked_to_save_and_go_on(box: LocalNode) -> None:
    contract = {"folder": "ck", "save_signal": "SIGUSR1"}
    program = 'trap "echo saved >> $LONGSHORE_SAVED" USR1; ' + IDLE
    run = box.start(f"trap : USR1; sh -c '{program}'", checkpoint=contract)
    await box.says(run, "ready")
    saved = await box.processes.save(SaveRequest(key=run.record.key, within=timedelta(seconds=60)))
    assert saved.published
    assert not run.done.done()


async def test_an_image_without_a_shell_gets_the_signal_in_its_first_process(
    images: None, make_box: MakeBox, tmp_path: Path
) -> None:
    """Its other programs, such as `sleep`, are there."""
    made = "localhost/longshore-test:without-a-shell"
    podman("run", "--name", "made", "--", IMAGE, "rm", "/bin/sh", "/bin/ash")
    podman("commit", "made", made)
    podman("rm", "made")
    box = make_box(tmp_path / "node", runtime="podman", image=made)
    run = box.start(["sleep", "300"])
    await asyncio.wait_for(run.started, 60)
    ended = await asyncio.wait_for(box.stop(run, grace=600), 60)
    assert ended.exit_code == 143


async def test_one_that_is_stopped_before_it_runs_does_not_get_its_whole_grace(
    box: LocalNode,
) -> None:
    run = box.start("sleep 300")
    await asyncio.wait_for(run.started, 60)
    ended = await asyncio.wait_for(box.stop(run, grace=600), 60)
    assert ended.stopped_for == "test"
    assert containers() == []


async def test_one_that_ignores_the_signal_is_killed_after_its_grace(box: LocalNode) -> None:
    run = box.start(f"trap '' TERM; setsid sleep 300 & {IDLE}")
    await box.says(run, "ready")
    ended = await box.stop(run, grace=0.3)
    assert (ended.exit_code, ended.stopped_for) == (137, "test")
    assert "killed" in ended.message
    assert containers() == []


async def test_nothing_stays_where_its_supervisor_is_killed(box: LocalNode) -> None:
    mark = uuid.uuid4().hex
    run = box.start(f": {mark}; {IDLE}")
    await box.says(run, "ready")
    os.kill(run.started.result()["supervisor"], signal.SIGKILL)
    assert (await run.done).failure is FailureClass.NODE
    assert containers() == []
    assert mark not in " ".join(_commands())


async def test_nothing_stays_where_the_supervisor_could_not_remove_it(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal and the runtime's own meet at times, and neither ends it."""
    monkeypatch.setattr(run_lifecycle, "removal", lambda *_: ("false",))
    run = box.start(IDLE)
    await box.says(run, "ready")
    ended = await box.stop(run, grace=0)
    assert (ended.exit_code, ended.stopped_for) == (137, "test")
    assert containers() == []


async def test_its_supervisor_tries_again_to_remove_it(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where its agent has died nobody else would before the next agent starts."""
    tries = tmp_path / "tries"

    def fails_once(runtime: str, *names: str) -> tuple[str, ...]:
        removal = shlex.join(launch.removal(runtime, *names))
        return ("sh", "-c", f"echo >> {tries}; [ $(wc -l < {tries}) -gt 1 ] && {removal}")

    monkeypatch.setattr(run_lifecycle, "removal", fails_once)
    run = box.start(IDLE)
    await box.says(run, "ready")
    assert (await box.stop(run, grace=0)).stopped_for == "test"
    assert len(tries.read_text()) >= 2  # on a machine with much to do Podman itself may fail once
    assert containers() == []


async def test_an_agent_removes_what_outlived_it(box: LocalNode) -> None:
    label = f"longshore.agent={box.identity.agent_id}"
    podman("run", "--detach", "--name", "left", "--label", label, "--", IMAGE, "sleep", "300")
    podman("run", "--detach", "--name", "anothers", "--", IMAGE, "sleep", "300")
    await orphans.end_orphans(box.identity.agent_id, [], "podman")
    assert containers() == ["anothers"]
    podman("rm", "--force", "--time", "0", "anothers")


@pytest.mark.exhaustive
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


# --- what docs/security.md says of the kernel ---------------------------------------------


async def test_what_it_writes_is_on_the_disk_of_its_node_once(box: LocalNode) -> None:
    """Podman would keep a log of its own as well, where no bound of ours counts it."""
    run = box.start("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo done >&2; sleep 60")
    await eventually(lambda: box.output(run.record.key, "stderr") == "done\n")
    assert len(box.output(run.record.key)) == 3_000_001
    kept = _sizes_of_podmans_own(podman("info", "--format", "{{.Store.GraphRoot}}").stdout.strip())
    assert kept, "the container has no folder of podman's"
    assert max(kept) < 100_000
    await box.stop(run, grace=0)


def _sizes_of_podmans_own(storage: str) -> list[int]:
    """Return the bytes of each file that podman keeps beside those of containers."""
    found = (file for file in Path(storage).rglob("*") if "userdata" in file.parts)
    return [file.lstat().st_size for file in found if file.is_file()]


async def test_a_container_has_namespaces_of_its_own_but_not_for_users(box: LocalNode) -> None:
    run = box.start("for each in ipc mnt net pid user uts; do readlink /proc/self/ns/$each; done")
    assert (await run.done).exit_code == 0
    inside = dict(line.split(":") for line in box.output(run.record.key).splitlines())
    here = {name: _namespace(name) for name in inside}
    same = {name for name in inside if here[name] == f"{name}:{inside[name]}"}
    assert same == ({"user"} if os.geteuid() == 0 else set())


async def test_a_container_has_the_network_that_the_owner_of_the_node_gives_it(
    box: LocalNode,
) -> None:
    run = box.start("ls /sys/class/net")  # `netns` in containers.conf is "none"
    await run.done
    assert box.output(run.record.key) == "lo\n"


async def test_devices_mounts_and_settings_of_the_node_are_out_of_reach(box: LocalNode) -> None:
    command = (
        "mount -t tmpfs none /sys || echo no mount; mknod d b 1 1 || echo no device; "
        "echo 1 > /proc/sys/kernel/panic || echo no setting"
    )
    run = box.start(command)
    await run.done
    assert box.output(run.record.key).splitlines() == ["no mount", "no device", "no setting"]


async def test_what_it_makes_belongs_to_its_user_also_a_program_that_is_setuid(
    box: LocalNode,
) -> None:
    """What an image does not keep apart."""
    run = box.start("cp /bin/busybox own; chmod 4755 own; id -u", job="job-a")
    await run.done
    its = (box.folder / "jobs" / "job-a" / "work" / "own").stat()
    assert box.output(run.record.key) == "0\n"
    assert (its.st_uid, its.st_mode & 0o7777) == (os.geteuid(), 0o4755)


def _namespace(kind: str) -> str:
    return str(Path(f"/proc/self/ns/{kind}").readlink())


def _commands() -> list[str]:
    """Return the command lines of all processes here."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found
