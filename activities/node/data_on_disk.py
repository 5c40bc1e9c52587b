"""The data sets that are on a node: what of each is here, and which go."""

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longshore.activities.node.data_fetch import STATE, bytes_of, open_folder, read_set
from longshore.activities.node.data_source import Listing, Source, SourceFile
from longshore.activities.node.file_locks import try_lock
from longshore.activities.node.removal import remove_what_can_be
from longshore.models.data import HeldData
from longshore.scheduling.node_caches import Cached

_MOST = 2**63 - 1
"""Bytes that are told: a source may name any size."""


class DataOnDisk:
    """The data sets below one folder, as `data_cache` lays them out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: Callable[[], None] = lambda: None
        """Told, from any thread, that what is held has changed."""

    def bytes_on_way(self, key: str) -> int | None:
        """Return what is here of a set that is being fetched; None of any other."""
        return None

    def held(self) -> list[HeldData]:
        """Return what is here of each data set, the most recently used first."""
        found: list[HeldData] = []
        for state, content in self._sets():
            folder = state.with_name(state.name.removesuffix(STATE))
            whole = (state / "complete").exists()
            on_way = self.bytes_on_way(f"{state.parent.name}/{folder.name}")
            total = int(content["total"])
            here = total if whole else bytes_of(folder) if on_way is None else on_way
            with contextlib.suppress(FileNotFoundError):
                used_at = datetime.fromtimestamp((state / "set.json").stat().st_mtime, UTC)
                found.append(
                    HeldData(
                        name=content["name"], tenant=state.parent.name, source=content["source"],
                        bytes=min(here, _MOST), total=min(max(total, here), _MOST),
                        used_at=used_at,
                    )
                )  # fmt: skip
        return sorted(found, key=lambda each: str(each.used_at), reverse=True)

    def entries(self) -> list[Cached]:
        """Return each data set with its bytes, its last use, and whether it has to stay."""
        found: list[Cached] = []
        for state, content in self._sets():
            free = try_lock(state / "lock")
            if free:
                free.release()
            stays = free is None or bool(content.get("sticky"))
            folder = state.with_name(state.name.removesuffix(STATE))
            with contextlib.suppress(FileNotFoundError):
                at = (state / "set.json").stat().st_mtime
                found.append(Cached(str(state), bytes_of(folder, own=True), at, in_use=stays))
        return found

    def evict(self, keys: Iterable[str]) -> None:
        """Remove data sets that no job uses."""
        for key in keys:
            state = Path(key)
            if held := try_lock(state / "lock"):
                with held:
                    (state / "complete").unlink(missing_ok=True)
                    folder = state.with_name(state.name.removesuffix(STATE))
                    open_folder(folder)
                    remove_what_can_be(folder)
                    remove_what_can_be(state)
        self.changed()

    def tidy(self) -> None:
        """Remove what was left half fetched by those that were killed."""
        for part in self.root.glob(f"*/*{STATE}/parts/*"):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > 3600 and (held := try_lock(part)):
                    with held:
                        part.unlink(missing_ok=True)

    def last_whole(self, tenant: str, source: Source) -> Listing | None:
        """Return what is here, whole, of a source that is away: the set that was used last. What
        its URL led to before, for a job that may have more, is of another place."""
        found = [
            state for state, content in self._sets()
            if state.parent.name == tenant and content["source"] == source.url
            and content.get("place", "") == source.place and (state / "complete").exists()
        ]  # fmt: skip
        with contextlib.suppress(OSError):
            state = max(found, key=lambda each: (each / "set.json").stat().st_mtime, default=None)
            if state is None:
                return None
            folder = state.with_name(state.name.removesuffix(STATE))
            paths = (state / "listing").read_bytes().decode(errors="surrogateescape")
            files = [
                SourceFile(path, "", (folder / path).stat().st_size)
                for path in paths.split("\n")[:-1]
            ]
            return Listing(source.url, tuple(files), known_as=folder.name, place=source.place)
        return None

    def _sets(self) -> list[tuple[Path, dict[str, Any]]]:
        found = ((path.parent, read_set(path)) for path in self.root.glob(f"*/*{STATE}/set.json"))
        return [(state, content) for state, content in found if content]
