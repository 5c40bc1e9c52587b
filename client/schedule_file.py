"""Reading what a schedule is to start: a job file, or a DAG file, which has `jobs`."""

import sys
from pathlib import Path

import yaml

from longshore.client.dag_file import read_dag
from longshore.client.submit_command import in_its_folder
from longshore.models.dag import DagSpec
from longshore.models.document import load_document, read_document
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
    text = sys.stdin.read() if file == "-" else None
    if _is_dag(_text_of(file) if text is None else text):
        return read_dag(file, most_jobs, text, no_upload=no_upload)
    if text is not None:
        return in_its_folder(load_document(text, "stdin", JobSpec), file, [], no_upload=no_upload)
    return in_its_folder(read_document(file, JobSpec), file, [], no_upload=no_upload)


def _text_of(file: str) -> str:
    """Return the text of a file; of one that cannot be read none: who reads it then says why."""
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, ValueError):
        return ""


def _is_dag(text: str) -> bool:
    try:
        root = parse_yaml(text.replace("\t", " "))
    except (yaml.YAMLError, RecursionError):
        return False
    return root is not None and isinstance(root.value, dict) and "jobs" in root.value
