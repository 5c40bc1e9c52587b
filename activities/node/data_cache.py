"""The data sets that a node has fetched, each file of them whole or not at all.

    cache/data/TENANT/KEY                 the files, read-only, shared by the jobs that read it
    cache/data/TENANT/KEY.set/set.json    what it is; its time is that of the last use
                             /listing     the paths of all files, one a line
                             /complete    there once all of them are
                             /failed      paths that could not be had, with why, after the tries
                             /lock        locked by those that use it
                             /parts       files on their way, each locked by who fetches it

KEY is a digest of the source and of what it listed, so a source that has changed is another set.
Agents of one machine may share a cache.
"""

import contextlib
import errno
import json
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.node.data_fetch import (
    ROOM,
    Fetch,
    bring,
    finish,
    is_there,
    link_equal,
    open_folder,
    read_set,
)
from longshore.activities.node.data_on_disk import DataOnDisk
from longshore.activities.node.data_source import (
    DataSource,
    ForbiddenError,
    Listing,
    Source,
    SourceFile,
)
from longshore.activities.node.file_locks import try_lock
from longshore.activities.node.output_source import OutputSource
from longshore.activities.node.system import boot_clock
from longshore.activities.node.write_share import WriteShare
from longshore.activities.own_link import OwnAddressError, is_own_machine
from longshore.activities.storage import GivenUp, SourceError, put_local
from longshore.models.addresses import without_secrets
from longshore.models.data import TRIES, DataSet, job_of
from longshore.models.errors import DamagedError, StoreError
from longshore.scheduling.staging import Wanted, order

AT_ONCE = 4
"""Files of a node that are on their way at a time; and of one tenant, in threads of their own,
of data sets that have none among these, though they keep GPUs waiting."""
_LOOKS = 4
"""Sources that are looked at for one tenant at a time."""
FIRST_WAIT = 1.0
"""Seconds before a file is tried again; doubled after the second try."""
_LISTED_FOR = 60.0
"""Seconds in which a source is not listed again for another job."""
_OF_THE_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
"""What lies with the node; other errors lie with the name of a file."""
_log = logging.getLogger(__name__)


class DataCache(DataOnDisk):
    """The data sets below one folder. Its methods block, but for `want`'s fetching itself."""

    def __init__(
        self, folder: Path, share: WriteShare | None = None, stores: Sequence[str] = (),
        outputs: OutputStore | None = None,
    ) -> None:  # fmt: skip
        """`share` bounds how fast files are written; of the URLs `stores` nothing is fetched.
        `outputs` has what jobs gave back."""
        super().__init__(folder / "data")
        self._outputs = outputs
        self._share = share or WriteShare(1.0, lambda: False)
        self._stores = tuple(stores)
        self._guard = threading.Condition()
        self._fetches: dict[str, Fetch] = {}
        self._listings: dict[tuple[str, str, bool], tuple[float, Source, Listing]] = {}
        """By tenant, URL, and whether for a job in an image, which may have less."""
        self._threads: list[threading.Thread] = []
        self._own_threads = Counter[str]()
        """By tenant those that are of one data set, also once nobody wants that any more."""
        self._looking: dict[str, ThreadPoolExecutor] = {}

    # --- who wants what -----------------------------------------------------------------

    def want(
        self, tenant: str, name: str, data: DataSet, token: object, wanted: Wanted,
        given_up: threading.Event, within: Sequence[Path] | None = None,
        before: Fetch | None = None,
    ) -> Fetch:  # fmt: skip
        """Have a data set fetched, as far as it is not here, until `leave`. What is the same in
        `before`, what was fetched of its source, is not fetched again.

        Raises SourceError or StoreError where the source has nothing or is away after the tries,
        and ForbiddenError of one of our stores, or with `within` of files of this machine that
        are not below these folders. Raises GivenUp, and OSError where the disk refuses.
        """
        assert data.source is not None
        source, listing = self._listing(tenant, data.source, given_up, within)
        folder = self.root / tenant / listing.digest
        while True:
            fetch = self._joined(f"{tenant}/{folder.name}", token, wanted)
            if fetch is None:
                # Of many files that takes seconds, in which others have to get their turn.
                fetch = self._begun(tenant, name, data, source, listing, folder, before)
                if fetch is not None:
                    fetch = self._entered(fetch, token, wanted)
            if fetch is not None:
                _touch(fetch.state, sticky=data.sticky)
                return fetch
            if given_up.wait(0.05):  # it is being removed
                raise GivenUp

    def threads_of(self, tenant: str) -> ThreadPoolExecutor:
        """Return what `want` and `is_outdated` are to be called in: a source may answer as slowly
        as it likes, and then holds up its own tenant alone."""
        with self._guard:
            if tenant not in self._looking:
                self._looking[tenant] = ThreadPoolExecutor(_LOOKS, f"sources of {tenant}")
            return self._looking[tenant]

    def leave(self, fetch: Fetch, token: object) -> None:
        """Want a data set no more. What nobody wants is fetched no further."""
        with self._guard:
            fetch.wants.pop(token, None)
            if not fetch.wants:
                if self._fetches.get(fetch.key) is fetch:
                    del self._fetches[fetch.key]
                fetch.pending.clear()
                fetch.given_up.set()
                fetch.release()

    def is_outdated(
        self, fetch: Fetch, given_up: threading.Event, within: Sequence[Path] | None = None
    ) -> bool:
        """Return whether the source of a fetch lists something else by now; raises GivenUp."""
        try:
            listing = self._listing(fetch.tenant, fetch.listing.source, given_up, within)[1]
        except (SourceError, StoreError):
            return False
        return not listing.known_as and listing.files != fetch.listing.files

    def bytes_on_way(self, key: str) -> int | None:
        """Return what is here of a set that is wanted."""
        fetch = self._fetches.get(key)
        return fetch.bytes_here if fetch else None

    def retry_first(self, fetch: Fetch) -> None:
        """Have files that have failed tried again before all others."""
        with self._guard:
            again = [file for file in fetch.pending if file.path in fetch.retried]
            if again and fetch.pending[0].path not in fetch.retried:
                others = (file for file in fetch.pending if file.path not in fetch.retried)
                fetch.pending = deque((*again, *others))

    def _joined(self, key: str, token: object, wanted: Wanted) -> Fetch | None:
        """Return a fetch that is under way, or done, and wanted by one more."""
        with self._guard:
            fetch = self._fetches.get(key)
            if fetch is None or not fetch.is_of_use:
                return None
            fetch.wants[token] = _of(fetch, wanted)
            self._hire()
            self._guard.notify_all()
            return fetch

    def _entered(self, fetch: Fetch, token: object, wanted: Wanted) -> Fetch:
        """Return a new fetch that has begun, or the one that somebody began meanwhile."""
        with self._guard:
            other = self._fetches.get(fetch.key)
            if other is not None and other.is_of_use:
                fetch.release()
                fetch = other
            fetch.wants[token] = _of(fetch, wanted)
            self._fetches[fetch.key] = fetch
            is_whole = not fetch.pending and not fetch.under_way
            self._hire()
            self._guard.notify_all()
        if is_whole and not fetch.done.is_set():
            finish(fetch)
        return fetch

    def _listing(
        self, tenant: str, url: str, given_up: threading.Event, within: Sequence[Path] | None
    ) -> tuple[Source, Listing]:
        key = tenant, url, within is not None
        known = self._listings.get(key)
        if known and boot_clock() - known[0] < _LISTED_FOR:
            self._refuse(known[1], within)
            return known[1], known[2]
        source = self._source(url, for_image=within is not None)
        self._refuse(source, within)
        for tries in range(1, TRIES + 1):
            try:
                listing = source.look()
            except (SourceError, StoreError) as error:
                is_refused = isinstance(error, OwnAddressError)
                if tries == TRIES or is_refused:
                    is_away = not (is_refused or isinstance(error, SourceError))
                    if (here := self.last_whole(tenant, source) if is_away else None) is None:
                        raise
                    _log.warning("%s: what was fetched before is used", error)
                    return source, here
            else:
                now = boot_clock()
                fresh = self._listings.items()
                self._listings = {each: at for each, at in fresh if now - at[0] < _LISTED_FOR}
                self._listings[key] = (now, source, listing)
                return source, listing
            if given_up.wait(FIRST_WAIT * 2 ** (tries - 1)):
                raise GivenUp
        raise AssertionError("the last try returns or raises")

    def _source(self, url: str, *, for_image: bool) -> Source:
        """Return what is at a URL. Raises StoreError where it cannot be read here."""
        if (job_id := job_of(url)) is None:
            return DataSource(url, for_image=for_image)
        if self._outputs is None:
            raise StoreError(f"{url} cannot be read: there is no artifact store")
        return OutputSource(self._outputs, job_id)

    def _refuse(self, source: Source, within: Sequence[Path] | None) -> None:
        """Raise ForbiddenError where a job may not have a source."""
        where = without_secrets(source.url)
        if any(source.overlaps(store) for store in self._stores):
            raise ForbiddenError(f"{where} is, or has in it, a store of Longshore's own")
        if within is None:
            return
        parts = urlsplit(source.url)
        if parts.scheme in ("http", "https") and is_own_machine(parts.hostname or ""):
            raise ForbiddenError(
                f"a job in an image may not read {where}: its host leads here to a loopback "
                "address, of the node itself, which the image may be kept from"
            )
        if source.local is None:
            return
        if not any(source.local.is_relative_to(os.path.realpath(each)) for each in within):
            raise ForbiddenError(
                f"a job in an image may not read {where}: of this node it sees what is below the "
                "folders that the agent's setting image_folders names"
            )

    def _begun(
        self, tenant: str, name: str, data: DataSet, source: Source, listing: Listing,
        folder: Path, before: Fetch | None,
    ) -> Fetch | None:  # fmt: skip
        """Return a new fetch; None while somebody removes the data set. Raises OSError."""
        fetch = Fetch(tenant, source, listing, folder)
        fetch.state.mkdir(parents=True, exist_ok=True)
        fetch.held = try_lock(fetch.state / "lock", shared=True)
        if fetch.held is None:
            return None
        try:
            (fetch.state / "parts").mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
            paths = "".join(f"{file.path}\n" for file in listing.files)
            put_local(fetch.state / "listing", paths.encode(errors="surrogateescape"))
            kept = read_set(fetch.state / "set.json")
            content = {"name": name, "source": listing.source, "total": listing.total,
                       "files": len(listing.files), "place": listing.place,
                       "sticky": data.sticky or bool(kept.get("sticky"))}  # fmt: skip
            put_local(fetch.state / "set.json", json.dumps(content).encode())
            whole = (fetch.state / "complete").exists()
            if before is not None and not whole:
                link_equal(before, fetch)
            for file in listing.files:
                if whole or is_there(folder / file.path):
                    fetch.files_here += 1
                    fetch.bytes_here += file.size or 0
                else:
                    fetch.pending.append(file)
            if fetch.pending:
                (fetch.state / "failed").unlink(missing_ok=True)  # it is tried again
                put_local(fetch.state / "room", bytes(ROOM))
                open_folder(folder)
        except BaseException:
            fetch.held.release()
            raise
        return fetch

    # --- fetching -----------------------------------------------------------------------

    def _hire(self) -> None:
        while len(self._threads) < AT_ONCE:
            self._threads.append(self._thread(None))
        for fetch in self._fetches.values():
            waits = fetch.pending and any(want.placed for want in fetch.wants.values())
            if waits and not fetch.has_own_thread and self._own_threads[fetch.tenant] < AT_ONCE:
                fetch.has_own_thread = True
                self._own_threads[fetch.tenant] += 1
                self._thread(fetch)

    def _thread(self, only: Fetch | None) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=(only,), name="data", daemon=True)
        thread.start()
        return thread

    def _work(self, only: Fetch | None) -> None:
        """Fetch what is wanted; files of one data set alone until it has none, where none of them
        is on its way: others may hold all of the other threads, as long as their sources like."""
        while True:
            with self._guard:
                while (next_one := self._next(only)) is None:
                    if only is not None and _is_over(only):
                        only.has_own_thread = False
                        self._own_threads[only.tenant] -= 1
                        self._hire()
                        return
                    self._guard.wait(0.2)
            fetch, file = next_one
            why, disk, damaged = "", None, False
            try:
                size = bring(fetch, file, self._share)
            except GivenUp:
                size = None
            except OSError as error:
                size, why = None, error.strerror or str(error)
                disk = error if error.errno in _OF_THE_DISK else None
            except Exception as error:  # a source may raise anything
                size, why = None, str(error)
                damaged = isinstance(error, DamagedError)
            with self._guard:
                over = self._fetched(fetch, file, size, why, disk, damaged)
                self._guard.notify_all()
            if over:
                finish(fetch)
            self.changed()

    def _next(self, only: Fetch | None) -> tuple[Fetch, SourceFile] | None:
        """Return the file to fetch now, as `scheduling.staging` orders the data sets; of `only`
        one that has no file on its way."""
        now = boot_clock()
        among = [only] if only and not only.under_way else [] if only else self._fetches.values()
        ready = {fetch.key: fetch for fetch in among if fetch.pending and fetch.retry_at <= now}
        wanted = [want for fetch in ready.values() for want in fetch.wants.values()]
        if not wanted:
            return None
        fetch = ready[order(wanted)[0]]
        fetch.under_way += 1
        fetch.heard_at = now
        return fetch, fetch.pending.popleft()

    def _fetched(
        self, fetch: Fetch, file: SourceFile, size: int | None, why: str, disk: OSError | None,
        damaged: bool,
    ) -> bool:  # fmt: skip
        """Note what came of a file; return whether it was the last."""
        fetch.under_way -= 1
        if size is not None:
            fetch.files_here += 1
            fetch.bytes_here += file.size if file.size is not None else 0
        elif disk is not None:
            fetch.disk_error = disk
            fetch.pending.clear()
        elif why:
            tries = fetch.tries[file.path] = fetch.tries.get(file.path, 0) + 1
            if tries < TRIES:
                fetch.retried[file.path] = why
                fetch.pending.append(file)
                fetch.retry_at = boot_clock() + FIRST_WAIT * 2 ** (tries - 1)
            else:
                fetch.damaged |= damaged
                fetch.failed[file.path] = why
                # Another job may be here within a minute, and the source mended.
                for for_image in (False, True):
                    self._listings.pop((fetch.tenant, fetch.listing.source, for_image), None)
        if file.path in fetch.tries and (size is not None or file.path in fetch.failed):
            fetch.retried.pop(file.path, None)
        if fetch.given_up.is_set():
            fetch.release()
            return False
        return not fetch.pending and not fetch.under_way


def _is_over(fetch: Fetch) -> bool:
    return not fetch.wants or not (fetch.pending or fetch.under_way)


def _of(fetch: Fetch, wanted: Wanted) -> Wanted:
    left = max(fetch.listing.total - fetch.bytes_here, 0)
    return replace(wanted, key=fetch.key, bytes=left)


def _touch(state: Path, *, sticky: bool) -> None:
    """Note a use of a data set, and that it is to stay."""
    content = read_set(state / "set.json")
    if sticky and content and not content.get("sticky"):
        put_local(state / "set.json", json.dumps({**content, "sticky": True}).encode())
    with contextlib.suppress(FileNotFoundError):
        os.utime(state / "set.json")
