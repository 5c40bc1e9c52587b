"""The artifact store: snapshots of each tenant, and the objects that their files lie in.

    TENANT/objects/ab/abcdef....01234567    a pack of small files, or a chunk of a large one
    TENANT/snapshots/DIGEST.json            what a folder held, and where in which object

An object is named by its content and stored whole or not at all. A snapshot is stored after its
objects. Which of them are in use is in the capacity database: the store alone cannot say.
"""

import hashlib
import uuid
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from longshore.activities.storage import connect, put_whole, speaking
from longshore.models.addresses import without_secrets
from longshore.models.errors import DamagedError
from longshore.models.snapshot import Snapshot


def object_name(data: bytes) -> str:
    """Return a fresh name for an object of this content."""
    return f"{hashlib.sha256(data).hexdigest()}.{uuid.uuid4().hex[:8]}"


def content_of(snapshot: Snapshot) -> bytes:
    """Return what is stored of a snapshot: about 230 bytes for each file."""
    return snapshot.model_dump_json(exclude_defaults=True).encode()


class ArtifactStore:
    """Artifacts under one fsspec URL. Its methods block, and raise StoreError where the store
    cannot be read or written. Safe to use from threads."""

    def __init__(self, url: str) -> None:
        self.url = url

    def put(self, tenant: str, name: str, data: bytes) -> None:
        """Store an object under the name that `object_name` gave it."""
        with self._speaking("written"):
            put_whole(self._fs, self._object(tenant, name), data, durable=True)

    def get(self, tenant: str, name: str) -> bytes:
        """Return an object. Raises DamagedError where it has gone or is not as it was stored."""
        with self._speaking("read"):
            try:
                data: bytes = self._fs.cat_file(self._object(tenant, name))
            except FileNotFoundError:
                raise DamagedError(f"the object {name} of {tenant} has gone") from None
        if hashlib.sha256(data).hexdigest() != name.partition(".")[0]:
            raise DamagedError(f"the object {name} of {tenant} is damaged")
        return data

    def put_snapshot(self, tenant: str, digest: str, content: bytes) -> None:
        """Store the `content_of` a snapshot, once its objects are there. A repeat replaces it."""
        with self._speaking("written"):
            put_whole(self._fs, self._snapshot(tenant, digest), content, durable=True)

    def snapshot(self, tenant: str, digest: str) -> Snapshot:
        """Return a snapshot. Raises DamagedError where it has gone or holds something else."""
        with self._speaking("read"):
            try:
                content: bytes = self._fs.cat_file(self._snapshot(tenant, digest))
            except FileNotFoundError:
                raise DamagedError(
                    f"the snapshot {digest} of {tenant} has gone from "
                    f"{without_secrets(self.url)}, or was stored elsewhere"
                ) from None
        try:
            found = Snapshot.model_validate_json(content)
        except ValidationError as error:
            raise DamagedError(f"the snapshot {digest} cannot be read: {error}") from None
        if found.digest != digest:
            raise DamagedError(f"the snapshot {digest} is damaged")
        return found

    def remove(self, tenant: str, name: str) -> None:
        """Remove an object. Nothing there is no error."""
        self._remove(self._object(tenant, name))

    def remove_snapshot(self, tenant: str, digest: str) -> None:
        """Remove a snapshot. Nothing there is no error."""
        self._remove(self._snapshot(tenant, digest))

    def _remove(self, path: str) -> None:
        with self._speaking("written"):
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                return

    def _object(self, tenant: str, name: str) -> str:
        return f"{self._root}/{tenant}/objects/{name[:2]}/{name}"

    def _snapshot(self, tenant: str, digest: str) -> str:
        return f"{self._root}/{tenant}/snapshots/{digest}.json"

    def _speaking(self, done: str) -> AbstractContextManager[None]:
        return speaking("artifact store", self.url, done)

    @cached_property
    def _connected(self) -> tuple[Any, str]:
        return connect(self.url)

    @property
    def _fs(self) -> Any:
        return self._connected[0]

    @property
    def _root(self) -> str:
        return self._connected[1]
