"""Jobs whose run folder is on a disk that fills up before they start."""

from pathlib import Path

import pytest

from longshore.models.job import FailureClass
from tests.agent.conftest import MakeBox
from tests.faults.chaos.machines import fill, small_disk


async def test_a_job_in_an_image_says_that_the_disk_is_full(make_box: MakeBox, tmp_path: Path):
    """What it is started with has no room. Nothing of it comes to the container runtime."""
    with small_disk(tmp_path / "node", 8) as mounted:
        if not mounted:
            pytest.skip("this account may mount no small disk: as root it can")
        box = make_box(tmp_path / "node", runtime="podman", image="localhost/none:1")
        run = box.start("true")
        fill(tmp_path / "node" / "filler")
        ended = await run.done
    assert (ended.failure, ended.message) == (
        FailureClass.NODE,
        "it could not be started: the work folder of its agent cannot be written: No space left "
        "on device",
    )
