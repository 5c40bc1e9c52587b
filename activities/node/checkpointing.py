"""The checkpoints of one process: restored before it starts, published while it runs and after.

The job says that it has saved by a line in the file LONGSHORE_SAVED. What its folder holds then
is kept by hard links and published in the background, one at a time; the newest wins.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from longshore.activities.checkpoints.store import CheckpointStore, Restored
from longshore.activities.failpoints import wall_clock
from longshore.activities.node import checkpoint_files
from longshore.activities.node.checkpoint_marker import read_marker, write_marker
from longshore.activities.node.launch import SAVE_REQUEST, SAVED
from longshore.activities.node.public_files import put_public, remove_public
from longshore.activities.node.publisher import Moment, Publisher, in_thread
from longshore.activities.node.restoring import Restoring
from longshore.activities.node.saved_lines import SavedLines
from longshore.activities.node.system import boot_clock, signal_number
from longshore.models.checkpoint import (
    CheckpointInfo,
    LocalCheckpoint,
    Manifest,
    SavedLine,
    StoredFile,
    info_of,
)
from longshore.models.errors import DamagedError, RefusedError, StoreError, UnavailableError
from longshore.models.job import CheckpointContract
from longshore.models.node_messages import RunProcessRequest
from longshore.scheduling.checkpoints import belongs_to, resumes_without_store
from longshore.scheduling.ranks import COUNTS_SAVES

POLL_EVERY = 0.2
"""Seconds between two polls for a line."""

_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the checkpoints of one attempt on this node. Whatever the store does, only `begin`
    and `save` raise."""

    def __init__(
        self,
        store: CheckpointStore,
        request: RunProcessRequest,
        contract: CheckpointContract,
        folder: Path,
        run_folder: Path,
        *,
        simulated: bool,
        publish_within: timedelta,
    ) -> None:
        """`folder` is where the job saves."""
        self._store = store
        self._contract = contract
        self._placement = request.placement
        self._rank, self._ranks = request.placement.place, max(len(request.placement.ranks), 1)
        """Among those that save; the numbers of a gang that has lost a node have a hole."""
        self._folder = folder
        self._real = folder
        """The same without links, as it was before the job began."""
        self._public = run_folder / "public"
        self._marker = folder.with_name(f".{folder.name}.checkpoint.json")
        """Beside the folder: whoever sees the folder sees what it holds."""
        self._in_image = request.spec.image is not None
        self._simulated = simulated
        self._publish_within = publish_within
        self._lines = SavedLines(self._public / SAVED)
        self._number = 0
        self._kept = True
        """Whether what it said last that it saved is kept."""
        self._asked_at: tuple[datetime, float] | None = None
        self._local: LocalCheckpoint | None = None
        self._looking = asyncio.Lock()
        self._tells = False
        """Whether an attempt before this one said when it had saved."""
        self._over = False
        self._unwanted = threading.Event()
        self._listening: asyncio.Task[None] | None = None
        self._restoring = Restoring(
            store, request.placement.job_id, folder, self._unwanted, self._say
        )
        self._publisher = Publisher(
            store, contract.keep, self._is_ours, self._published, self._say
        )
        self.last: CheckpointInfo | None = None
        """What the job saved last, or went on from."""
        self.replaced = False
        """Whether another folder took the place of the one that lay there before it began."""
        self.restore_error = ""
        """What was damaged of what is stored, as long as this attempt runs."""
        self.error = ""
        """The same, and why what it saved is not in the store."""

    async def begin(self) -> dict[str, str]:
        """Have the newest whole checkpoint in the folder; return the variables that say so.

        Raises StoreError when the store is away and the work of other nodes would be lost,
        OSError when the folder cannot be written, GivenUp when the job is not wanted any more.
        """
        await asyncio.to_thread(self._tidy)
        ahead = False
        self._local = read_marker(self._marker, self._folder)
        if self._contract.store and (self._placement.attempt > 1 or self._placement.joined):
            needs_no_store = resumes_without_store(
                self._local, self._placement.attempt, self._ranks
            )
            if needs_no_store:  # also for the attempt after this one, should it end in the wait
                await self._note_that_it_ran()
            ahead = await self._restore(needs_no_store)
            await self._note_that_it_ran()
            if self._placement.joined:
                self._number = await in_thread(self._newest_number)
        if self._local is None:
            return {}
        self._tells = self._local.tells
        if ahead:
            self._publisher.start()  # what is still to be brought may fail, and this is not stored
            await self._publish_folder(self._local)
        resume_variables = {"LONGSHORE_RESUME": "1"}
        if self._local.step is not None:
            resume_variables["LONGSHORE_CHECKPOINT_STEP"] = str(self._local.step)
        return resume_variables

    def start(self) -> None:
        """Begin to listen to the job, and to publish."""
        self._listening = asyncio.create_task(self._listen())
        self._publisher.start()

    async def save(self, send: Callable[[int], None], within: timedelta) -> CheckpointInfo:
        """Ask the job to save and go on; `send` signals it. Returns when that is published.

        The answer says whether it is published: a store that is away is no error. Raises
        RefusedError for a job that cannot be asked, UnavailableError when it does not answer.
        """
        if not self._contract.can_be_asked:
            raise RefusedError(
                f"{self._placement.job_id} cannot be asked to save: its checkpoint names neither "
                "save_signal nor save_file"
            )
        before, deadline = self._number, boot_clock() + within.total_seconds()
        self._asked_at = wall_clock(), boot_clock()
        if self._contract.save_file:
            self._put_request()
        if self._contract.save_signal:
            send(signal_number(self._contract.save_signal))
        answered = await self._until(lambda: self._number > before, deadline)
        if answered and not self._kept:
            raise UnavailableError(
                f"what {self._placement.job_id} saved is not kept: {self.error}"
            )
        if not answered or self.last is None:
            seconds = within.total_seconds()
            how = "has ended" if self._over else f"did not say so within {seconds:g} s"
            raise UnavailableError(
                f"{self._placement.job_id} was asked to save, and {how}; it has to add a line "
                '"saved, step N" to the file LONGSHORE_SAVED'
            )
        if self._contract.store:
            await self._until(lambda: self.last is not None and self.last.published, deadline)
        return self.last

    def _put_request(self) -> None:
        try:
            put_public(self._public / SAVE_REQUEST, "save\n")
        except OSError as error:
            raise RefusedError(
                f"{self._placement.job_id} cannot be asked to save: the file "
                f"LONGSHORE_SAVE_REQUEST cannot be written ({error.strerror})"
            ) from None

    def has_ranks(self, ranks: Sequence[int]) -> None:
        """The attempt goes on with these ranks, this one among them: what is saved from now on
        counts when each of them has saved it."""
        self._rank, self._ranks = ranks.index(self._placement.rank), len(ranks)

    def asked_to_stop(self, grace: float) -> None:
        """The job is to save and stop; with no grace, to be gone at once."""
        self._asked_at = wall_clock(), boot_clock()
        self._unwanted.set()
        if grace <= 0:
            self._publisher.hurry()

    async def finish(self, *, stopped: bool, killed: bool, succeeded: bool) -> None:
        """Publish what is left, when nothing of the job runs any more, or it never began; once.

        `stopped` says that somebody asked for the end, `killed` that it came by force.
        """
        if self._over:
            return
        await self._look()
        if stopped and not self._number:  # where it never says that it has saved, its exit does
            if killed:
                self._say("it was killed before it said that it had saved")
            elif not self._tells and await asyncio.to_thread(self._holds_any):
                await self._saved(SavedLine(), wall_clock(), 1, told=False)
        self._over = True
        await self._publisher.finish(timedelta(0) if succeeded else self._publish_within)
        if self._listening:
            self._listening.cancel()
        remove_public(self._public / SAVE_REQUEST)
        if succeeded:
            folder = self._marker.with_name(self._folder.name)
            await asyncio.to_thread(checkpoint_files.remove_unfinished, folder)

    # --- before the start ---------------------------------------------------------------

    def _tidy(self) -> None:
        checkpoint_files.put_back(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        # While the job runs it may put links where these folders are: none is followed then.
        self._real = self._folder.resolve()
        self._marker = self._folder.parent.resolve() / self._marker.name

    async def _note_that_it_ran(self) -> None:
        if self._local is not None and self._local.ran != self._placement.attempt:
            await asyncio.to_thread(self._mark, self._local)

    async def _restore(self, needs_no_store: bool) -> bool:
        """Return whether the folder holds what the store is known to lack."""
        found = await self._restoring.patiently(
            self._local, self._rank, self._ranks, needs_no_store=needs_no_store
        )
        self.restore_error, self._publisher.unusable = found.error, found.unusable
        self.replaced = found.replaced
        if found.error:
            self._say("")
        if found.anew:
            self._tells, self._local = bool(self._local and self._local.tells), None
        if found.restored:
            await asyncio.to_thread(self._note_restored, found.restored)
        return found.ahead

    def _newest_number(self) -> int:
        """Return the highest number of the attempt in the store, as far as that answers: of its
        place, or of a step, others may have saved before, and the highest number counts."""
        with contextlib.suppress(StoreError):
            names = self._store.names(self._placement.job_id)
            mine = (n.number for n in names if n.attempt == self._placement.attempt)
            return max(mine, default=0)
        return 0

    def _note_restored(self, restored: Restored) -> None:
        origins, rank = restored.origins, self._rank
        foreign = checkpoint_files.foreign_files(self._folder, origins, rank)
        self._remember(restored.manifests[0], foreign)
        self.last = info_of(restored.manifests)

    async def _publish_folder(self, local: LocalCheckpoint) -> None:
        """Publish what the folder holds before the job changes it: the store has not got it.

        Not where it changed after that was saved: a later save may be half done there.
        """
        if not await asyncio.to_thread(self._is_as_saved, local):
            self._say("what it saved last is not stored, and the folder may have changed since")
            return
        at = local.saved_at or wall_clock()
        draft = self._draft(local.number, local.step, at, told=local.told)
        await self._keep(draft.model_copy(update={"attempt": local.attempt}))

    # --- while it runs ------------------------------------------------------------------

    async def _listen(self) -> None:
        while not self._over:
            await self._look()
            await asyncio.sleep(POLL_EVERY)

    async def _look(self) -> None:
        async with self._looking:
            found = self._lines.read()
            if found.problem:
                self._say(found.problem)
            if found.last is not None and found.at is not None:
                await self._saved(found.last, found.at, found.checkpoints)

    async def _saved(
        self, line: SavedLine, at: datetime, count: int, *, told: bool = True
    ) -> None:
        """Keep what the folder holds now as the newest checkpoint."""
        remove_public(self._public / SAVE_REQUEST)
        number = self._number + count
        took = line.took
        if took is None and self._asked_at is not None:
            asked_at, asked = self._asked_at
            # The wall clock may have jumped since: no save took longer than the time that passed.
            longest = timedelta(seconds=boot_clock() - asked)
            took = min(max(at - asked_at, timedelta(0)), longest)
        self._asked_at = None
        if self._placement.joined and self._contract.store and line.step is None:
            # Its count is not that of the others: two moments would be taken for one.
            self._say(COUNTS_SAVES)
            self._number, self._kept = number, False
            return
        draft = self._draft(number, line.step, at, took, told=told)
        foreign = self._local.foreign if self._local else {}
        await asyncio.to_thread(self._remember, draft, foreign)
        self._kept = await self._keep(draft)
        self._number = number

    async def _keep(self, draft: Manifest) -> bool:
        """Keep what the folder holds now, and publish it; return whether it could be kept."""
        try:
            moment, files = await asyncio.to_thread(self._take_moment)
        except (OSError, DamagedError) as error:
            self._say(f"what it saved cannot be kept: {error}")
            return False
        if self._local is not None:
            known = {"fingerprint": checkpoint_files.fingerprint(files)}
            await asyncio.to_thread(self._mark, self._local.model_copy(update=known))
        size = sum(file.size for file in files)
        self.last = info_of((draft.model_copy(update={"bytes": size}),), published=False)
        if self._contract.store:
            await self._publisher.offer(Moment(moment, draft))
        else:
            await asyncio.to_thread(checkpoint_files.remove, moment)
        return True

    def _take_moment(self) -> tuple[Path, list[StoredFile]]:
        # Not where the job sees it: it could change it before it is published, or put links there.
        # On another disk that costs a copy, which is spared a job that may do all of that anyway.
        own, beside = self._public.parent, self._real.parent
        alike = self._in_image or own.stat().st_dev == beside.stat().st_dev
        moment = checkpoint_files.moment_of(self._real, own if alike else beside)
        try:
            return moment, checkpoint_files.files_of(moment)
        except BaseException:
            checkpoint_files.remove(moment)
            raise

    def _draft(
        self,
        number: int,
        step: int | None,
        at: datetime,
        took: timedelta | None = None,
        *,
        told: bool,
    ) -> Manifest:
        return Manifest(
            job_id=self._placement.job_id, attempt=self._placement.attempt,
            rank=self._rank, ranks=self._ranks, number=number, step=step, prefix="",
            files=(), bytes=0, write_seconds=took.total_seconds() if took is not None else None,
            saved_at=at, published_at=at, node_id=self._placement.node_id,
            simulated=self._simulated, told=told,
        )  # fmt: skip

    def _remember(self, saved: Manifest, foreign: dict[str, tuple[int, int, int]]) -> None:
        self._mark(LocalCheckpoint(
            folder=str(self._folder), attempt=saved.attempt, number=saved.number, step=saved.step,
            rank=self._rank, ranks=self._ranks, foreign=foreign, told=saved.told,
            saved_at=saved.saved_at,
        ))  # fmt: skip

    def _mark(self, local: LocalCheckpoint) -> None:
        """Write down what the folder holds, and that this attempt runs in it."""
        self._local = local.model_copy(update={"ran": self._placement.attempt})
        try:
            write_marker(self._marker, self._local)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._marker, error)

    def _is_ours(self, file: StoredFile) -> bool:
        """Return whether this rank publishes a file: not what another one wrote, as it was."""
        known = self._local.foreign.get(file.path) if self._local else None
        if known is None or known[1:] != (file.size, file.modified_ns):
            return True
        return belongs_to(known[0], self._rank, self._ranks)

    def _published(self, manifest: Manifest) -> None:
        if self.last and self.last.order == manifest.name.order:
            self.last = info_of((manifest,))

    async def _until(self, there: Callable[[], bool], deadline: float) -> bool:
        while not there() and not self._over and boot_clock() < deadline:  # noqa: ASYNC110 (a clock)
            await asyncio.sleep(POLL_EVERY / 2)
        return there()

    def _is_as_saved(self, local: LocalCheckpoint) -> bool:
        with contextlib.suppress(OSError, DamagedError):
            files = checkpoint_files.files_of(self._folder)
            return checkpoint_files.fingerprint(files) == local.fingerprint
        return False

    def _holds_any(self) -> bool:
        with contextlib.suppress(OSError):
            return any(self._folder.iterdir())
        return False

    def _say(self, error: str) -> None:
        error = "; ".join(filter(None, (self.restore_error, error)))
        if error not in ("", self.error):
            _log.warning("checkpoints of %s: %s", self._placement.job_id, error)
        self.error = error
