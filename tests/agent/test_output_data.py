"""The outputs of one job as data of another: what `data: {model: job:ID}` brings to a node."""

import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node import data_cache
from longshore.activities.node.output_source import OutputSource
from longshore.activities.storage import SourceError
from longshore.models.checkpoint import Manifest, StoredFile
from longshore.models.output_pattern import OutputPatterns
from tests.agent.conftest import LocalNode

AT = datetime(2026, 11, 26, tzinfo=UTC)
SHOW = "cd $LONGSHORE_DATA_MODEL; for f in $(find . -type f | sort); do echo $f $(cat $f); done"
MODEL = {"model": "job:job-a"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file tried again after 0.01 s; starts nothing."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)


def a_manifest(rank: int = 0, ranks: int = 1, *files: StoredFile) -> Manifest:
    return Manifest(
        job_id="job-a", attempt=1, rank=rank, ranks=ranks, number=1, prefix="", files=files,
        bytes=0, saved_at=AT, published_at=AT, node_id="box",
    )  # fmt: skip


async def test_a_job_reads_what_another_gave_back(box: LocalNode) -> None:
    writes = "mkdir -p out/deep; echo 1 > out/a; echo 2 > out/deep/b; echo 3 > other"
    await box.report(writes, job="job-a", outputs=["out"])
    shutil.rmtree(box.folder / "jobs", ignore_errors=True)  # nothing but the store has them
    run = box.start(SHOW, data=MODEL)
    report = await run.done
    assert report.failure is None, report.message
    assert box.output(run.record.key) == "./out/a 1\n./out/deep/b 2\n"
    assert box.output(run.record.key, "stderr") == ""


async def test_the_last_attempt_that_gave_a_file_is_read(box: LocalNode) -> None:
    await box.report("echo 1 > r", job="job-a", outputs=["r"])
    await box.report("echo 2 > r", job="job-a", attempt=2, outputs=["r"])
    await box.report("rm r", job="job-a", attempt=3, outputs=["r"])
    run = box.start(SHOW, data=MODEL)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "./r 2\n"


async def test_a_program_stays_one_and_a_link_is_what_it_leads_to(box: LocalNode) -> None:
    builds = (
        "mkdir -p out/v1; printf '#!/bin/sh\\necho built\\n' > out/v1/tool; chmod +x out/v1/tool;"
        " ln -s v1 out/latest; ln -s latest/tool out/tool; ln -s /etc/hostname out/outside;"
        " ln -s b out/a; ln -s a out/b; ln -s .. out/up"
    )
    await box.report(builds, job="job-a", outputs=["out"])
    run = box.start("cd $LONGSHORE_DATA_MODEL/out; ./tool; ./latest/tool; ls", data=MODEL)
    report = await run.done
    assert report.failure is None, box.output(run.record.key, "stderr")
    assert box.output(run.record.key).split() == ["built", "built", "latest", "tool", "v1"]


async def test_files_of_all_ranks_are_there(box: LocalNode, tmp_path: Path) -> None:
    store = OutputStore((box.folder / "artifacts").as_uri())
    for rank in (0, 1):
        (tmp_path / "log").write_text(f"of rank {rank}")
        store.keep(tmp_path, OutputPatterns(["log"]), a_manifest(rank, 2), threading.Event())
    run = box.start(SHOW, data=MODEL)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "./log of rank 0\n./rank-1/log of rank 1\n"


async def test_a_job_starts_without_what_is_not_stored_and_is_told(box: LocalNode) -> None:
    run = box.start("echo lacks $LONGSHORE_DATA_MISSING; ls $LONGSHORE_DATA_MODEL", data=MODEL)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "lacks model\n"
    said = box.output(run.record.key, "stderr")
    assert "job job-a has stored no outputs, or not any more" in said


async def test_a_file_that_is_damaged_in_the_store_is_told(box: LocalNode) -> None:
    await box.report("echo 1 > r; echo 2 > s", job="job-a", outputs=["r", "s"])
    files = (box.folder / "artifacts" / "outputs" / "job-a" / "files").glob("*/00000*")
    next(path for path in files if path.read_text() == "1\n").write_text("7\n")
    run = box.start(f"echo lacks $LONGSHORE_DATA_MISSING; {SHOW}", data=MODEL)
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "lacks model/r\n./s 2\n"


async def test_it_is_fetched_once_for_many(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.report("echo 1 > r", job="job-a", outputs=["r"])
    asked: list[int] = []
    read = OutputStore.read

    def counted(store: OutputStore, manifest: Manifest, index: int) -> object:
        asked.append(index)
        return read(store, manifest, index)

    monkeypatch.setattr(OutputStore, "read", counted)
    runs = [box.start(SHOW, data=MODEL) for _ in range(5)]
    for run in runs:
        assert (await run.done).failure is None
        assert box.output(run.record.key) == "./r 1\n"
    assert asked == [0]


@pytest.mark.parametrize("name", ["../up", "a\nb"])
def test_a_name_that_no_node_can_give_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = StoredFile.model_construct(path=name, size=1, sha256="0" * 64, mode=0o644, link=None)
    manifest = a_manifest().model_copy(update={"files": (file,)})
    monkeypatch.setattr(OutputStore, "of_attempt", lambda *_: (manifest,))
    with pytest.raises(SourceError, match="has a file whose name no node can give"):
        OutputSource(OutputStore(tmp_path.as_uri()), "job-a").look()
