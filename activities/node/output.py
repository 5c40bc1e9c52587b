"""The output file of a job: JSON for the jobs behind it in its DAG."""

from pathlib import Path

from longshore.activities.node.public_files import open_public
from longshore.models.output import MOST_BYTES, JobOutput, output_of


def read_output(path: Path) -> JobOutput | None:
    """Return what a job that has ended wrote; None where it wrote nothing."""
    try:
        with open_public(path) as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return JobOutput(bytes=0, problem=f"its output cannot be read: {error.strerror}")
    return output_of(raw) if raw.strip() else None
