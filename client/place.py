"""`longshore place`: decide for one job on a state in a file, without any server."""

from datetime import datetime
from pathlib import Path

from models.document import read_document
from models.job import JobSpec
from models.placement import Decision, JobRequest
from models.statefile import ClusterState
from scheduling.packer import place


def run_place(
    state_path: str | Path, job_path: str | Path, now: datetime
) -> tuple[ClusterState, JobRequest, Decision]:
    """Return the state, the job and the decision, with every candidate and rejection.

    `now` holds where the state file names no time of its own; the state that is returned names
    the time that was used. The job's id is its name. Raises SpecError for either file.
    """
    state = read_document(state_path, ClusterState)
    spec = read_document(job_path, JobSpec)
    if state.now is not None:
        now = state.now
    else:
        state = state.model_copy(update={"now": now})
    job = JobRequest.of(spec.name, spec, submitted_at=now, attempt=1)
    return state, job, place(job, state.packer_nodes(), state.policy, now)
