"""What tells one content from another under the same id, also across versions."""

from longshore.activities.job_starts import digest_of
from longshore.models.job import JobSpec


def test_a_job_that_states_no_duration_is_what_it_was_when_an_hour_was_the_default():
    """A submit with its `--key`, and an activity that starts a job, may be repeated after an
    upgrade: 0.1.0 of 2026-11-25 wrote this digest."""
    said = {"name": "a", "command": "x"}
    assert digest_of(JobSpec.model_validate(said)) == "aee97ebbdd23031b"
    assert (
        digest_of(JobSpec.model_validate({**said, "expected_duration": "2h"}))
        != "aee97ebbdd23031b"
    )
