"""Folders of checkpoints for tests: what is in them, and short ways to publish and restore."""

import threading
from datetime import UTC, datetime
from pathlib import Path

from longshore.activities.checkpoints.store import CheckpointStore, Restored
from longshore.models.checkpoint import Manifest

JOB = "job-a"
Tree = dict[str, bytes]
"""Content by path."""


def write_tree(folder: Path, tree: Tree) -> Path:
    for path, content in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tree_of(folder: Path) -> Tree:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def a_draft(attempt: int = 1, number: int = 1, **fields: object) -> Manifest:
    now = datetime.now(UTC)
    document = {
        "job_id": JOB, "attempt": attempt, "number": number, "prefix": "", "files": (), "bytes": 0,
        "saved_at": now, "published_at": now, "node_id": "box", **fields,
    }  # fmt: skip
    return Manifest.model_validate(document)


def publish(store: CheckpointStore, folder: Path, *order: int, **fields: object) -> Manifest:
    return store.publish(folder, a_draft(*order, **fields), threading.Event())


def restore(store: CheckpointStore, folder: Path, rank: int = 0) -> Restored | None:
    return store.restore(JOB, rank, folder, threading.Event())
