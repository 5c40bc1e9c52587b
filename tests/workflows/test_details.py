"""What the Temporal UI shows of a job: its summary and details, and its live card."""

from datetime import UTC, datetime, timedelta

from longshore.activities.job_starts import as_summary, details_of, summary_of
from longshore.models.job import JobSpec
from longshore.models.job_status import AttemptRecord, JobState, JobStatus
from longshore.models.retry import FailureClass
from longshore.workflows.details import job_details

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SPEC = JobSpec.model_validate(
    {
        "name": "train",
        "gpus": 2,
        "gpu_type": "H100",
        "vram_per_gpu": "40GB",
        "command": ["python", "train.py", "--note", "two words"],
        "env": {"SEED": 7, "TOKEN": "secret"},
        "checkpoint": {"folder": "saved"},
    }
)


def status(state: JobState, *attempts: AttemptRecord, reason: str = "") -> JobStatus:
    return JobStatus(
        job_id="train-a", name="train", tenant="default", pool="default", state=state,
        reason=reason, submitted_at=NOON, since=NOON, attempts=attempts,
    )  # fmt: skip


def attempt(number: int, **ended: object) -> AttemptRecord:
    return AttemptRecord.model_validate(
        {"attempt": number, "node_id": "n-1", "gpu_indices": (0, 1), "placed_at": NOON} | ended
    )


def test_the_summary_is_one_line():
    assert summary_of(SPEC) == (
        "train: 2 x H100 with 40GB, FAST, class 5, tenant default, pool default"
    )


def test_the_details_are_the_job_file_without_values_of_its_environment():
    told = details_of(SPEC)
    assert "- **vram_per_gpu** 40GB" in told
    assert "- **checkpoint** {folder: saved}" in told
    assert "- **env** sets SEED, TOKEN" in told
    assert "````sh\npython train.py --note 'two words'\n````" in told
    assert "secret" not in told


def test_the_card_of_a_start_under_the_id_of_another_job_shows_no_state_of_a_job():
    why = "a job train-a has ended before (SUCCEEDED): give this one another id"
    card = job_details(status(JobState.FAILED, reason=why), SPEC, simulated=False, is_another=True)
    assert "### Refused at 2026-11-20 12:00:00 UTC\n" in card
    assert why in card
    assert "FAILED" not in card


def test_what_hides_or_turns_text_around_is_written_out():
    update = {"gpu_type": "X\u202eY", "command": ["true", "a\u202eb\x1bc"]}
    spec = SPEC.model_copy(update=update)
    card = job_details(status(JobState.QUEUED, reason="\x1b[2J"), spec, simulated=False)
    for text in (summary_of(spec), details_of(spec), card):
        assert not {"\u202e", "\x1b"} & set(text)
        assert "\\u202e" in text
    assert "\\x1b[2J" in card


def test_a_summary_with_a_reason_is_short_and_written_out():
    told = as_summary(f"stop attempt 1: \x1b[2J\u202e{'😀' * 200}")
    assert told.startswith(r"stop attempt 1: \x1b[2J\u202e😀")
    assert 196 < len(told.encode()) <= 200


def test_the_card_lists_attempts_newest_first_with_their_ends():
    failed = attempt(
        1,
        ended_at=NOON + timedelta(minutes=1),
        failure=FailureClass.USER,
        exit_code=3,
        message="exited with code 3",
    )
    card = job_details(status(JobState.RUNNING, failed, attempt(2)), SPEC, simulated=True)
    assert card.startswith(
        f"{summary_of(SPEC)}\n\n### RUNNING on simulated GPUs since 2026-11-20 12:00:00 UTC"
    )
    assert (
        "- 2 on n-1 GPUs 0-1: runs since 12:00:00\n"
        "- 1 on n-1 GPUs 0-1: user (exited with code 3), 12:00:00 to 12:01:00\n"
    ) in card
    assert "2 x H100 with 40GB, 1 core, 1GB of memory" in card


def test_the_card_names_each_node_of_a_gang_with_its_gpus():
    gang = attempt(2, other_nodes=("n-2", "n-3"), other_gpus=((0, 1), (4,)))
    older = attempt(1, other_nodes=("n-2",))  # in a history of an older version
    card = job_details(status(JobState.RUNNING, older, gang), SPEC, simulated=False)
    assert "- 2 on n-1 GPUs 0-1, n-2 GPUs 0-1, n-3 GPU 4: runs since" in card
    assert "- 1 on n-1 GPUs 0-1, n-2: runs since" in card


def test_the_card_of_a_waiting_job_says_why_and_where_to_ask():
    card = job_details(
        status(JobState.QUEUED, reason="waits for 2 GPUs"), SPEC, simulated=False
    )  # fmt: skip
    assert "waits for 2 GPUs" in card
    assert "`longshore why train-a` says more." in card
    assert "Attempts" not in card
