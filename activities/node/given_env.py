"""What of a job file's `env` its process gets: no variable by which Longshore tells it something.

Where Longshore does not set one, as LONGSHORE_RESUME at a first attempt, that says something too.
Other LONGSHORE_* variables, which are settings, a job may need that uses Longshore itself.
"""

from collections.abc import Mapping

OWN = frozenset(
    f"LONGSHORE_{name}"
    for name in (  # noqa: SIM905 (to be read)
        "ADDRESSES AGENT_ID ARRAY_COUNT ARRAY_ID ARRAY_INDEX ARRAY_MAX ARRAY_MIN ATTEMPT "
        "CHECKPOINT_DIR CHECKPOINT_STEP CODE_DIR ELEMENT_ATTEMPT GPUS GPUS_BEFORE "
        "GPUS_MAX GPUS_MIN GPUS_PER_NODE GPU_COUNT GPU_INDICES GPU_MILLI GPU_VRAM JOB_ID JOB_NAME "
        "MIG_PROFILE NODES NODE_EXPIRES_AT NODE_ID OUTPUT POOL PROGRESS_FILE RANKS RESIZE_FILE "
        "RESUME SAVED SAVE_REQUEST SIMULATED_GPUS TENANT"
    ).split()
)
"""As docs/job-file.md and docs/topology.md list them."""
OF_DATA = "LONGSHORE_DATA_"
"""How the variables of data sets begin."""


def given_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job file without those that are Longshore's to set."""
    return {
        name: value for name, value in env.items()
        if name not in OWN and not name.startswith(OF_DATA)
    }  # fmt: skip
