"""Has the data sets of a job on its node: before its process starts, or while it still waits."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from longshore.activities.node.data_cache import DataCache
from longshore.activities.node.data_fetch import Fetch
from longshore.activities.node.data_source import ForbiddenError
from longshore.activities.node.preparing import POLL_EVERY, NotReadyError, unless_unwanted
from longshore.activities.node.system import boot_clock
from longshore.activities.storage import GivenUp, SourceError
from longshore.models.data import SEPARATOR, STATE, DataSet, variable_of
from longshore.models.errors import StoreError
from longshore.models.job import JobSpec
from longshore.models.retry import FailureClass
from longshore.models.text import and_more, count
from longshore.models.units import format_bytes
from longshore.models.visible import brief, shown
from longshore.scheduling.staging import Wanted

IN_IMAGE = "/longshore/data"
"""Where a container sees the data sets of its job."""
_MOST_NAMED = 100
_SILENT_FOR = 10
"""Seconds without a byte after which the words of a data set say so."""

Say = Callable[[str], None]
Tell = Callable[[Sequence[str]], None]


@dataclass
class Sets:
    """The data sets of one job that are wanted."""

    cache: DataCache
    token: object = field(default_factory=object)
    fetches: dict[str, Fetch] = field(default_factory=dict)
    """By the name that the job has for each."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a data set could not be had at all."""
    folder: Path | None = None
    """Where its process finds them, by name."""
    listed_anew: set[str] = field(default_factory=set)
    """Whose source was asked again since a file was not as it was listed."""
    trouble: str = ""
    """What could not be had, in one sentence; empty where nothing lacks."""
    _told: set[str] = field(default_factory=set)
    _say: Tell = lambda lines: None
    _telling: asyncio.Task[None] | None = None

    @property
    def lacking(self) -> dict[str, str]:
        """What could not be had, names of data sets and of files of others, and why; where they
        are very many the last is ``300 more files``."""
        return _named(self._failed())

    def is_in_doubt(self, name: str) -> bool:
        """Whether a source may have changed since it was listed."""
        return self.fetches[name].damaged and name not in self.listed_anew

    def tell(self, say: Tell) -> None:
        """Have `say` hear what cannot be had: what lacks now, and until they are released what
        fails later."""
        self._say = say
        self._tell_new("it starts without {}: {}")
        if not all(fetch.done.is_set() for fetch in self.fetches.values()):
            self._telling = asyncio.create_task(self._tell_later())

    @property
    def variables(self) -> dict[str, str]:
        """What tells a process where they are."""
        return self._variables(str(self.folder))

    def inside(self) -> tuple[dict[str, str], list[str]]:
        """Return the same for a container, and what is to be mounted there, for reading."""
        mounts: list[str] = []
        for name, fetch in self.fetches.items():
            mounts.append(f"{fetch.folder}:{IN_IMAGE}/{name}:ro")
            mounts.append(f"{fetch.state}:{IN_IMAGE}/{STATE}/{name}:ro")
        for name in self.missing:
            mounts.append(f"{self.folder}/{name}:{IN_IMAGE}/{name}:ro")
            mounts.append(f"{self.folder}/{STATE}/{name}:{IN_IMAGE}/{STATE}/{name}:ro")
        return self._variables(IN_IMAGE), mounts

    def release(self) -> None:
        """Want them no more."""
        if self._telling is not None:
            self._telling.cancel()
            self._tell_new()
            lacked = {f"{name}/{path}": why for name, fetch in self.fetches.items()
                      for path, why in fetch.retried.copy().items()}  # fmt: skip
            self._told_lines("{} was not there when the process ended: {}", lacked)
        for fetch in self.fetches.values():
            self.cache.leave(fetch, self.token)

    def _failed(self) -> dict[str, str]:
        found = dict(self.missing)
        for name, fetch in self.fetches.items():
            found |= {f"{name}/{path}": why for path, why in fetch.failed.copy().items()}
        return found

    async def _tell_later(self) -> None:
        done = False
        while not done:
            await asyncio.sleep(POLL_EVERY)
            done = all(fetch.done.is_set() for fetch in self.fetches.values())
            self._tell_new()

    def _tell_new(self, words: str = "{} cannot be had: {}") -> None:
        if len(self.missing) + sum(len(f.failed) for f in self.fetches.values()) == len(
            self._told
        ):
            return
        failed = self._failed()
        self._told_lines(words, {each: failed[each] for each in failed if each not in self._told})
        self._told = set(failed)
        first, why = next(iter(failed.items()))
        more = f" and {count(len(failed) - 1, 'more')}" if len(failed) > 1 else ""
        said = f"{first}{more} cannot be had: {why}"
        self.trouble = said.encode(errors="replace").decode()  # a name need be no text

    def _told_lines(self, words: str, lacking: Mapping[str, str]) -> None:
        if lines := [words.format(each, why) for each, why in _named(lacking).items()]:
            self._say(lines)

    def _variables(self, folder: str) -> dict[str, str]:
        found = {"LONGSHORE_DATA_DIR": folder}
        found |= {variable_of(name): f"{folder}/{name}" for name in (*self.fetches, *self.missing)}
        if lacking := self.lacking:
            found["LONGSHORE_DATA_MISSING"] = "\n".join(lacking)
        return found


def fetched_sets(spec: JobSpec) -> Mapping[str, DataSet]:
    """Return the data sets of a job that its nodes fetch."""
    return {name: data for name, data in spec.data.items() if data.source is not None}


async def take_sets(
    cache: DataCache,
    spec: JobSpec,
    folder: Path,
    unwanted: threading.Event,
    say: Say,
    image_folders: Sequence[Path] = (),
) -> Sets | None:
    """Return the data sets of a job once so much of each is there that it may start; None of a
    job without. They are fetched on until they are released.

    What cannot be had after the tries is told, and it starts without it. `say` hears how far it
    is. Raises NotReadyError where the job may not have it, GivenUp as soon as the job is unwanted,
    OSError where the disk refuses.
    """
    asked = fetched_sets(spec)
    if not asked:
        return None
    sets = Sets(cache)
    asking = _Asking(spec, replace(_NOBODY, placed=True), unwanted, image_folders)
    try:
        await asking.want(sets)
        while waits := [name for name in sets.fetches if not _may_start(sets, name, asked[name])]:
            say("; ".join(_words(name, sets.fetches[name]) for name in waits))
            await _pause(unwanted)
            await asking.want_changed(sets)
        say("")
        _lay_out(sets, folder)
    except ForbiddenError as error:
        sets.release()
        raise NotReadyError(FailureClass.START, f"its data: {error}") from None
    except BaseException:
        sets.release()
        raise
    return sets


async def bring_sets(
    cache: DataCache,
    spec: JobSpec,
    wanted: Wanted,
    unwanted: threading.Event,
    say: Callable[[int, int], None],
    image_folders: Sequence[Path] = (),
) -> tuple[int, int, list[str]]:
    """Have all data sets of a job here. Return the bytes that are, of how many, and a sentence of
    each that could not be had; `say` hears the first two meanwhile.

    Raises GivenUp as soon as nobody wants it, OSError where the disk refuses.
    """
    sets = Sets(cache)
    try:
        asking = _Asking(spec, wanted, unwanted, image_folders)
        await asking.want(sets)
        while not all(_is_over(sets, name) for name in sets.fetches):
            say(*_sizes(sets))
            await _pause(unwanted)
            await asking.want_changed(sets)
        said = [f"{name}: {why}" for name, why in sets.missing.items()]
        for name, fetch in sets.fetches.items():
            for path, why in [*fetch.failed.items()][:1]:
                more = and_more(len(fetch.failed) - 1, "file")
                more = f" {more}" if more else ""
                said.append(f"{name}/{path}{more}: {why}")
        return (*_sizes(sets), said)
    except ForbiddenError as error:
        return (*_sizes(sets), [str(error)])
    finally:
        sets.release()


_NOBODY = Wanted("", 0)


@dataclass(frozen=True)
class _Asking:
    """How one job asks for its data sets."""

    spec: JobSpec
    wanted: Wanted
    unwanted: threading.Event
    image_folders: Sequence[Path]

    @property
    def within(self) -> Sequence[Path] | None:
        return self.image_folders if self.spec.image else None

    async def want(self, sets: Sets) -> None:
        for name, data in fetched_sets(self.spec).items():
            try:
                sets.fetches[name] = await self._fetch(sets, name, data)
            except ForbiddenError:
                raise
            except (SourceError, StoreError) as error:
                sets.missing[name] = str(error)

    async def want_changed(self, sets: Sets) -> None:
        """Have sources fetched as they are by now that were not as they were listed: once each,
        and of them what has changed."""
        for name, old in sets.fetches.items():
            if not sets.is_in_doubt(name):
                continue
            sets.listed_anew.add(name)
            look = partial(sets.cache.is_outdated, old, self.unwanted, self.within)
            with contextlib.suppress(SourceError, StoreError):
                threads = sets.cache.threads_of(self.spec.tenant)
                if await unless_unwanted(self.unwanted, look, lambda late: None, threads):
                    data = fetched_sets(self.spec)[name]
                    sets.fetches[name] = await self._fetch(sets, name, data, old)
                    if sets.fetches[name] is not old:
                        sets.cache.leave(old, sets.token)

    async def _fetch(
        self, sets: Sets, name: str, data: DataSet, before: Fetch | None = None
    ) -> Fetch:
        call = partial(
            sets.cache.want, self.spec.tenant, name, data, sets.token, self.wanted, self.unwanted,
            self.within, before,
        )  # fmt: skip
        return await unless_unwanted(
            self.unwanted, call, lambda late: sets.cache.leave(late, sets.token),
            sets.cache.threads_of(self.spec.tenant),
        )  # fmt: skip


def _may_start(sets: Sets, name: str, data: DataSet) -> bool:
    # All of it is more than all of its bytes: files may be empty.
    if _is_over(sets, name):
        return True
    fetch = sets.fetches[name]
    if data.start_at >= 1 or fetch.part < data.start_at:
        return False
    if fetch.retried or sets.is_in_doubt(name):
        # What lacks is to be known before the start: then it can still be told in a variable.
        sets.cache.retry_first(fetch)
        return False
    return True


def _named(lacking: Mapping[str, str]) -> dict[str, str]:
    named = dict(islice(lacking.items(), _MOST_NAMED))
    if (more := len(lacking) - len(named)) > 0:
        named[count(more, "more file")] = "`longshore-wait PATH` tells of each"
    return named


def _is_over(sets: Sets, name: str) -> bool:
    fetch = sets.fetches[name]
    if fetch.disk_error is not None:
        raise fetch.disk_error
    return fetch.done.is_set() and not sets.is_in_doubt(name)


async def _pause(unwanted: threading.Event) -> None:
    await asyncio.sleep(POLL_EVERY)
    if unwanted.is_set():
        raise GivenUp


def _sizes(sets: Sets) -> tuple[int, int]:
    fetches = sets.fetches.values()
    return (
        sum(fetch.bytes_here for fetch in fetches),
        sum(fetch.listing.total for fetch in fetches),
    )


def _words(name: str, fetch: Fetch) -> str:
    if fetch.listing.total:
        here, total = format_bytes(fetch.bytes_here), format_bytes(fetch.listing.total)
        said = f"fetching its data {name}: {here} of {total}"
    else:
        files = count(len(fetch.listing.files), "file")
        said = f"fetching its data {name}: {fetch.files_here} of {files}"
    return f"{said}{_why_slow(fetch)}".encode(errors="replace").decode()  # it names files


def _why_slow(fetch: Fetch) -> str:
    """Return what holds a data set up, to be said behind how far it is."""
    silent = boot_clock() - fetch.heard_at
    if fetch.retried and not fetch.under_way:
        path, why = next(iter(fetch.retried.copy().items()))
        return f" ({shown(path)} is tried again: {brief(' '.join(why.split()))})"
    if silent < _SILENT_FOR or fetch.done.is_set():
        return ""
    if not fetch.under_way:
        return " (it waits until files of other data sets are here)"
    return f" (nothing has come of it for {int(silent // _SILENT_FOR * _SILENT_FOR)} s)"


def _lay_out(sets: Sets, folder: Path) -> None:
    """Have links to the data sets in the folder of the job. Raises OSError."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt: links, and nothing else
    (folder / STATE).mkdir(parents=True)
    for name, fetch in sets.fetches.items():
        (folder / name).symlink_to(fetch.folder)
        (folder / STATE / name).symlink_to(fetch.state)
    for name, why in sets.missing.items():
        (folder / name).mkdir()
        (folder / STATE / name).mkdir()
        said = why.replace("\n", " ")
        (folder / STATE / name / "failed").write_text(f"{SEPARATOR}{said}\n")
    sets.folder = folder
