"""Snapshots for tests: stored as a client stores them, in one pack or in chunks."""

import hashlib
from collections.abc import Mapping

from longshore.activities.artifacts.rows import announce_objects
from longshore.activities.artifacts.rows import store_snapshot as record_snapshot
from longshore.activities.artifacts.store import ArtifactStore, content_of, object_name
from longshore.activities.database import Database
from longshore.models.snapshot import Part, Snapshot, SnapshotFile, SnapshotLink


def store_snapshot(
    store: ArtifactStore,
    tree: Mapping[str, bytes | str],
    *,
    tenant: str = "default",
    executable: tuple[str, ...] = (),
    links: Mapping[str, str] | None = None,
    folders: tuple[str, ...] = (),
    chunk: int = 0,
) -> Snapshot:
    """Store files by path: all in one pack, or each in chunks of so many bytes."""
    contents = {
        path: content.encode() if isinstance(content, str) else content
        for path, content in sorted(tree.items())
    }
    pieces: list[tuple[str, bytes]] = []
    if chunk:
        for path, content in contents.items():
            starts = range(0, len(content), chunk)
            pieces += [(path, content[at : at + chunk]) for at in starts]
        objects = [piece for _, piece in pieces]
    else:
        objects = [b"".join(contents.values())] if any(contents.values()) else []
    names = [object_name(data) for data in objects]
    for name, data in zip(names, objects, strict=True):
        store.put(tenant, name, data)
    parts: dict[str, list[Part]] = {path: [] for path in contents}
    offset = 0
    if chunk:
        for name, (path, piece) in zip(names, pieces, strict=True):
            parts[path].append(Part(object=name, size=len(piece)))
    else:
        for path, content in contents.items():
            if content:
                parts[path].append(Part(object=names[0], offset=offset, size=len(content)))
            offset += len(content)
    snapshot = Snapshot(
        files=tuple(
            SnapshotFile(
                path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest(),
                executable=path in executable, parts=tuple(parts[path]),
            )
            for path, content in contents.items()
        ),
        links=tuple(SnapshotLink(path=path, target=to) for path, to in (links or {}).items()),
        folders=folders,
    )  # fmt: skip
    store.put_snapshot(tenant, snapshot.digest, content_of(snapshot))
    return snapshot


async def put_on_record(
    database: Database, store: ArtifactStore, snapshot: Snapshot, tenant: str = "default"
) -> None:
    """Have the database know what is stored, as whoever submits does before."""
    sizes = {name: len(store.get(tenant, name)) for name in snapshot.objects}
    async with database.transaction() as connection:
        await announce_objects(connection, tenant, sizes)
    await record_snapshot(database, store, tenant, snapshot)


def code_of(snapshot: Snapshot) -> dict[str, object]:
    """Return the field `code` of a job, as `longshore submit` fills it in."""
    return {"snapshot": snapshot.digest, "files": len(snapshot.files), "bytes": snapshot.bytes}
