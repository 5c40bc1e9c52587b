"""Reading what a schedule is to start: a job file, or a DAG file, which has `jobs`."""

import yaml

from longshore.client.dag_file import read_dag
from longshore.client.submit_command import in_its_folder
from longshore.models.dag import DagSpec
from longshore.models.document import load_document, read_document, read_stdin, text_of
from longshore.models.job import JobSpec
from longshore.models.plain_yaml import parse_yaml


def read_scheduled(
    file: str,
    most_jobs: int,
    no_upload: bool = False,
) -> JobSpec | DagSpec:
    """Return the job or the DAG in a file, or on stdin for ``-``, with absolute folders: what
    a schedule keeps is a copy.

    Raises SpecError with every mistake at once.
    """
    text = read_stdin() if file == "-" else None
    if _is_dag((text_of(file) or "") if text is None else text):
        return read_dag(file, most_jobs, text, no_upload=no_upload)
    if text is not None:
        return in_its_folder(load_document(text, "stdin", JobSpec), file, [], no_upload=no_upload)
    return in_its_folder(read_document(file, JobSpec), file, [], no_upload=no_upload)


def _is_dag(text: str) -> bool:
    try:
        root = parse_yaml(text.replace("\t", " "))
    except (yaml.YAMLError, RecursionError):
        return False
    return root is not None and isinstance(root.value, dict) and "jobs" in root.value
