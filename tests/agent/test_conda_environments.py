"""Environments of conda: solved and installed once on a node, from a channel made on the spot."""

import asyncio
from pathlib import Path

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node.conda_file import CondaFile, CondaFileError, read_conda_file
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.support.conda_channel import CondaChannel
from tests.support.snapshots import code_of, store_snapshot
from tests.support.wheels import be_the_only_index, make_wheel


@pytest.fixture
def channel(tmp_path: Path) -> CondaChannel:
    """Makes a channel with three packages, one of which needs another; 0 s."""
    channel = CondaChannel(tmp_path / "channel")
    channel.add("tool", "1.0")
    channel.add("tool", "2.0", depends=("base >=1",))
    channel.add("base", "1.5", files={"share/base": "base\n"})
    return channel


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of wheels as the only index of uv; 0 s."""
    make_wheel(tmp_path / "wheels", "longshore_test_pip", "3.0")
    be_the_only_index(tmp_path / "wheels", monkeypatch)


def code(box: LocalNode, channel: CondaChannel, asked: str, **more: str) -> dict[str, object]:
    store = ArtifactStore((box.folder / "artifacts").as_uri())
    text = f"name: any\nchannels: [{channel.url}]\ndependencies: {asked}\n"
    return code_of(store_snapshot(store, {"environment.yml": text, **more}))


def built(box: LocalNode) -> list[Path]:
    return sorted((box.folder / "cache/environments").glob("*.json"))


async def test_packages_are_there_with_what_they_need_and_built_once(
    box: LocalNode, channel: CondaChannel
) -> None:
    shows = "tool; cat $CONDA_PREFIX/share/base; echo ${VIRTUAL_ENV-none}"
    runs = [
        box.start(
            shows, environment="environment.yml", code=code(box, channel, "[tool]", other=other)
        )
        for other in ("a", "a", "b")
    ]
    for report in await asyncio.gather(*(run.done for run in runs)):
        assert report.failure is None, report.message
    assert {box.output(run.record.key) for run in runs} == {"2.0\nbase\nnone\n"}
    said = box.output(runs[0].record.key, "stderr")
    assert "longshore: building environment.yml, linux-" in said
    assert " + base==1.5\n + tool==2.0\n" in said
    pinned = box.start(
        "tool; find $CONDA_PREFIX ! -type l -perm /222",
        environment="environment.yml", code=code(box, channel, "[tool=1]"),
    )  # fmt: skip
    assert (await pinned.done).failure is None
    assert box.output(pinned.record.key) == "1.0\n", "and nothing in it can be written"
    assert len(built(box)) == 2


async def test_another_channel_is_another_environment(
    box: LocalNode, channel: CondaChannel, tmp_path: Path
) -> None:
    other = CondaChannel(tmp_path / "other")
    other.add("tool", "7.0")
    for each, version in ((channel, "2.0"), (other, "7.0"), (channel, "2.0")):
        run = box.start("tool", environment="environment.yml", code=code(box, each, "[tool]"))
        assert (await run.done).failure is None
        assert box.output(run.record.key) == f"{version}\n"
    assert len(built(box)) == 2


async def test_a_pip_section_is_installed_after_and_a_script_last(
    box: LocalNode, channel: CondaChannel
) -> None:
    channel.add_python()
    asked = "[python, tool, {pip: [-r more.txt]}]"
    script = 'longshore_test_pip > "$CONDA_PREFIX/said"; tool\n'
    brought = code(box, channel, asked, **{"more.txt": "longshore-test-pip", "s.sh": script})
    run = box.start(
        "longshore_test_pip; python -c 'import longshore_test_pip as it; print(it.version)'; "
        "cat $CONDA_PREFIX/said",
        environment={"conda": "environment.yml", "script": "s.sh"}, code=brought,
    )  # fmt: skip
    report = await run.done
    assert report.failure is None, report.message
    assert box.output(run.record.key) == "3.0\n" * 3


async def test_what_cannot_be_solved_is_told_and_no_fault_of_the_node(
    box: LocalNode, channel: CondaChannel, tmp_path: Path
) -> None:
    report = await box.report(
        "true", environment="environment.yml", code=code(box, channel, "[nothing-such]")
    )
    assert report.failure is FailureClass.START
    assert "its environment cannot be built (environment.yml, linux-" in report.message
    assert "conda ended with exit code 1: error: Cannot solve" in report.message
    assert "nothing-such" in report.message
    gone = CondaChannel(tmp_path / "gone")
    brought = code(box, gone, "[tool]")
    (gone.folder / "noarch/repodata.json").unlink()
    report = await box.report("true", environment="environment.yml", code=brought)
    assert report.failure is FailureClass.START
    assert "noarch" in report.message
    assert str(gone.folder) in report.message
    brought = code(box, channel, "[tool, {pip: [-e .]}]")
    report = await box.report("true", environment="environment.yml", code=brought)
    assert report.failure is FailureClass.START
    assert "no package of an index" in report.message
    assert built(box) == []


async def test_what_a_job_changes_in_it_reaches_no_environment_to_come(
    box: LocalNode, channel: CondaChannel
) -> None:
    spoil = "chmod -R u+w $CONDA_PREFIX; echo 'echo mine' >> $CONDA_PREFIX/bin/tool; tool"
    for asked, command, says in (
        ("[tool]", spoil, "2.0\nmine\n"),
        ("[tool]", "tool", "2.0\n"),  # the same one, built anew
        ("[tool=2, base]", "tool", "2.0\n"),  # another one, of the same files
        ("[tool]", "tool", "2.0\n"),
    ):
        run = box.start(command, environment="environment.yml", code=code(box, channel, asked))
        report = await run.done
        assert report.failure is None, report.message
        assert box.output(run.record.key) == says
    assert box.output(run.record.key, "stderr") == "", "it was built for the job before"


def test_a_file_says_channels_packages_and_what_pip_installs() -> None:
    text = """
name: train
channels: [one, nodefaults, https://example.com/two]
dependencies:
  - python=3.12
  - pip:
      - torch
  - numpy >=2
prefix: /home/me/train
"""
    assert read_conda_file(text) == CondaFile(
        ("one", "https://example.com/two"), ("python=3.12", "numpy >=2"), ("torch",)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("channels: [", "no YAML"),
        ("a", "has no `channels`"),
        ("dependencies: [a]", "names no `channels`"),
        ("channels: [nodefaults]\ndependencies: [a]", "names no `channels`"),
        ("channels: [defaults]\ndependencies: [a]", "the channel `defaults`"),
        ("channels: [c]", "no list of `dependencies`"),
        ("channels: [c]\ndependencies: [{npm: [a]}]", "is no package"),
        ("channels: [c]\ndependencies: [1.5]", "1.5"),
        ("channels: [c]\ndependencies: [{pip: a}]", "`pip` is no list of texts"),
        ("channels: c\ndependencies: [a]", "`channels` is no list of texts"),
        ("channels: [c]\ndependencies: [a]\nvariables: {A: b}", "`env` of the job"),
        ("channels: [c]\ndependencies: [a]\nplatforms: [b]", "platforms"),
        ("channels: [./c]\ndependencies: [a]", "names ./c, which may change"),
        ("channels: ['file:c']\ndependencies: [a]", "names file:c, which may change"),
        ("channels: [c]\ndependencies: [./a.conda]", "names ./a.conda, which may change"),
        ("channels: [c]\ndependencies: ['file:///a.conda']", "names file:///a.conda, which"),
        ("channels: [c]\ndependencies: ['./c::a']", "names ./c::a, which may change"),
        ("channels: [c]\ndependencies: ['a[channel=\"./c\"]']", "which may change"),
        ("channels: [c]\ndependencies: [a-1.0-0.conda]", "names a-1.0-0.conda, which may change"),
        ("channels: [c]\ndependencies: [p/a-1.0-0.tar.bz2]", "which may change"),
        ("[" * 5000, "no YAML"),
    ],
)
def test_a_file_that_cannot_be_followed_says_why(text: str, says: str) -> None:
    with pytest.raises(CondaFileError) as refused:
        read_conda_file(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("{conda: a.yml, requirements: b.txt}", "belong into the `pip` section"),
        ("{conda: a.yml, lock: uv.lock}", "is another environment"),
        ("{conda: a.yml, python: '3.12'}", "is a package of conda"),
        ("{conda: a.txt}", "has to be a .yml or .yaml file"),
        ("../a.yml", "is not below the folder of the code"),
        ("{current: true, script: a.sh}", "has all packages already, and its own Python"),
        ("{current: false}", "a `script` or `current`"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_document(f"name: a\ncommand: b\ncode: .\nenvironment: {asked}\n", "j", JobSpec)
    assert says in str(refused.value)
