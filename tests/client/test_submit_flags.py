"""The everyday flags of `longshore submit`: what they put over the file, and what is refused."""

import json
from pathlib import Path

import pytest

from longshore.client import job_flags
from longshore.models.data import DataSet
from longshore.models.document import load_document
from longshore.models.environment import JobEnvironment
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from tests.client.conftest import Command
from tests.client.test_commands import is_listed

FILE = """\
name: train
command: python train.py
cpus: 4
env: {SEED: 1, MODE: fast}
labels: {sweep: 6, team: vision}
max_duration: 10h
"""


async def test_each_flag_goes_before_the_file(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    ran = await longshore(
        "submit", str(path), "-q", "--hold", "--pool", pool, "--tenant", "nlp", "--priority", "8",
        "--cpus", "2.5", "--ram", "64GB", "--time", "1-12", "--image", "ghcr.io/x/y:1",
        "--data", "digits=s3://b/digits/", "--checkpoint", "saved",
        "--env", "SEED=7", "--env", "NEW=a=b", "--label", "sweep=7", "--label", "x.io/stage=1",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    job_id = ran.out.strip()
    await is_listed(longshore, pool, job_id, "HELD")
    told = json.loads((await longshore("job", job_id, "--json")).out)
    spec = JobSpec.model_validate(told["spec"])
    assert spec == JobSpec.model_validate(
        {
            "name": "train", "command": "python train.py", "pool": pool, "tenant": "nlp",
            "priority": 8, "cpus": 2.5, "ram": 64, "max_duration": "36h",
            "image": "ghcr.io/x/y:1", "data": {"digits": "s3://b/digits/"},
            "checkpoint": {"folder": "saved"}, "env": {"SEED": "7", "MODE": "fast", "NEW": "a=b"},
            "labels": {"sweep": "7", "team": "vision", "x.io/stage": "1"},
        }
    )  # fmt: skip
    shown = " ".join((await longshore("job", job_id)).out.split())
    assert "labels sweep=7, team=vision, x.io/stage=1" in shown
    assert "time limit 1d12h" in shown
    assert (await longshore("cancel", job_id)).code == 0


def test_an_environment_is_a_file_a_list_or_a_mapping_as_in_a_job_file() -> None:
    text = "name: a\ncommand: b\ncode: .\n"

    def read(given: str) -> JobEnvironment | None:
        over = job_flags.environment(given)
        return load_document(text, "job.yaml", JobSpec, over).environment

    assert read("a/requirements.txt") == JobEnvironment(requirements="a/requirements.txt")
    assert read("[numpy==2.1, torch>=2]") == JobEnvironment(
        requirements=("numpy==2.1", "torch>=2")
    )
    assert read("{script: set up.sh}") == JobEnvironment(script="set up.sh")
    assert read("none") is None
    with pytest.raises(SpecError, match="--environment"):
        read("[numpy")


def test_set_adds_to_a_data_set_what_its_flag_does_not_say() -> None:
    overrides = [
        *job_flags.data(["digits=s3://sets/digits/"]),
        *job_flags.values(["data.digits.start_at=80%", "data.digits.size=5GB"]),
    ]
    job_flags.refuse_repeats(overrides)
    text = "{name: a, command: 'true', data: {digits: {from: 's3://old/', sticky: true}}}"
    spec = load_document(text, "job.yaml", JobSpec, overrides)
    said = {"from": "s3://sets/digits/", "start_at": "80%", "size": "5GB"}
    assert spec.data == {"digits": DataSet.model_validate(said)}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--cpus", "many"], 65, "--cpus many: cpus: must be a number"),
        (["--cpus", "-1"], 65, "--cpus -1: cpus: must be at least 0, got -1"),
        (["--ram", "lots"], 65, "--ram lots: ram: expected a size such as 80GB"),
        (["--priority", "11"], 65, "--priority 11: priority: must be at most 10, got 11"),
        (["--time", "soon"], 65, "--time soon: expected a time such as 90m or 2h"),
        (["--time", "0"], 65, "--time 0: must be longer than 0: leave it out for no limit"),
        (["--time", "unlimited"], 65, "leave it out for no limit but that of the pool"),
        (["--tenant", "A B"], 65, "--tenant A B: tenant:"),
        (["--image", "-x"], 65, "image: begins with a dash"),
        (["--env", "SECRET"], 65, "--env: expected NAME=VALUE, such as SEED=7"),
        (["--env", "1A=x"], 65, "not '1A'"),
        (["--label", "sweep"], 65, "--label: expected NAME=VALUE, such as sweep=7, not 'sweep'"),
        (["--label", "a b=c"], 65, "--label: 'a b' is no name of a label"),
        (["--label", "a=b", "--label", "a=c"], 65, "--label a and --label a both say `labels.a`"),
        (["--data", "digits"], 65, "--data: expected NAME=URL, such as digits=s3://"),
        (["--data", "d=ftp://x/y"], 65, "ftp://x/y is no place of these: s3://"),
        (["--checkpoint", "a", "--set", "checkpoint={}"], 65, "both say `checkpoint`"),
        (["--gpus", "2", "--set", "gpus=3"], 65, "--gpus 2 and --set gpus=3 both say `gpus`"),
        (["--time", "2h", "--set", "max_duration=3h"], 65, "both say `max_duration`"),
        (["--env", "A=secret", "--set", "env={B: 1}"], 65, "--env A and --set env={B: 1} both"),
        (["--label", "a=b", "--set", "labels.a=c"], 65, "both say `labels.a`"),
        (["--constraint", "ib", "--set", "constraints=[a]"], 65, "both say `constraints`"),
        (["--data", "d=s3://x/y", "--set", "data.d=1GB"], 65, "both say `data.d`"),
        (["--data", "d=s3://x/y", "--set", "data.d.from=s3://z"], 65, "both say `data.d`"),
        (["--data", "d=s3://x/y", "--set", "data={d: 1GB}"], 65, "both say `data`"),
        (["--data", "d=s3://x/y", "--set", "data.d.start_at=2"], 65, "data.d.start_at: must be"),
        (["--max-cost=-1"], 2, "--max-cost '-1': must be at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
async def test_what_is_wrong_with_a_flag_is_said_and_nothing_is_submitted(
    longshore: Command, pool: str, flags: list[str], code: int, said: str
) -> None:
    ran = await longshore("submit", "--pool", pool, *flags, "--", "true")
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert "secret" not in ran.err
    assert (await longshore("jobs", "--all", "-q", "--name", "true")).out == ""


async def test_who_waits_for_a_job_whose_time_is_over_gets_its_own_code(
    longshore: Command, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longshore.client.live import exit_code_of
    from longshore.models.job_status import JobResult, JobState
    from longshore.models.retry import FailureClass

    over = JobResult(
        job_id="a", state=JobState.FAILED, exit_code=0, failure=FailureClass.TIME_LIMIT
    )
    assert exit_code_of(over) == 124
    ran = await longshore("pool", "set", pool, "--max-duration", "2h")
    assert ran.code == 0, ran.err
    refused = await longshore("submit", "--pool", pool, "--time", "3h", "--", "true")
    assert (refused.code, refused.out) == (69, "")
    assert f"max_duration is 3h, and pool {pool} lets jobs run for 2h at most" in refused.err
    shown = await longshore("pool", "show", pool)
    assert "time limit of jobs 2h at most, and by default" in " ".join(shown.out.split())
    assert (await longshore("pool", "set", pool, "--max-duration", "none")).code == 0
    wrong = await longshore("pool", "set", pool, "--max-duration", "0")
    assert (wrong.code, "must be longer than 0" in wrong.err) == (65, True)
