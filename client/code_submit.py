"""The code of what is submitted: which folder or commit it is, stored as a snapshot."""

import asyncio
import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import cast

from longshore.activities.artifacts.rows import hold_snapshot, release_snapshots
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.database import Database
from longshore.activities.node.preparing import NotReadyError
from longshore.client.code_cache import CodeCache
from longshore.client.code_files import FoundFile, FoundFiles, find_files
from longshore.client.code_git import DIFF_PATH, checked_out, diff_to_commit
from longshore.client.code_options import Spec, Submitted, absolute_path
from longshore.client.code_upload import Told, Uploaded, UploadTo, upload
from longshore.client.current_python import bring, current_python
from longshore.client.lock_check import pythons_of, why_unfit
from longshore.client.one_upload import Say
from longshore.models.addresses import without_secrets
from longshore.models.code import Code
from longshore.models.dag import DagSpec
from longshore.models.environment import JobEnvironment
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.settings import Settings
from longshore.models.visible import brief
from longshore.scheduling.code_paths import mistake_of


@dataclass(frozen=True)
class _Stored:
    """What was stored of a folder or commit."""

    code: Code
    folder: Path
    found: FoundFiles
    environment: JobEnvironment | None
    """What takes the place of `current`."""
    texts: Mapping[str, str]
    """What the environment of the first of its jobs is made from."""
    of: JobEnvironment | None
    """That environment."""


class CodeStorer:
    """Stores the code of jobs: of equal ones once."""

    def __init__(
        self,
        settings: Settings,
        database: Callable[[], Database],
        include: Sequence[str] = (),
        say: Callable[[Uploaded], None] = lambda uploaded: None,
        told: Told = lambda sent, of: None,
        *,
        anew: bool = False,
        script: str | None = None,
        waits: Say = lambda words: None,
    ) -> None:
        """`say` hears of each snapshot what was sent, `told` of bytes on their way, and `waits`
        of waiting for another submit of the same; with `anew` all is sent, whatever is stored.
        `script` is what jobs run of their folder."""
        self._settings = settings
        self._database = database
        self._include = tuple(include)
        self._say = say
        self._told = told
        self._anew = anew
        self._script = script
        self._waits = waits
        self._stored: dict[tuple[str, Code, bool], _Stored] = {}

    async def look(self, spec: JobSpec) -> FoundFiles | None:
        """Return what of a job's folder would be stored; None where it names none. Raises
        SpecError with all that is wrong with it."""
        if spec.code is None or spec.code.folder is None or spec.code.snapshot is not None:
            return None
        folder = Path(spec.code.folder)
        found = await asyncio.to_thread(self._found, folder)
        await self._refuse(spec, folder, found)
        return found

    def _found(self, folder: Path) -> FoundFiles:
        limit = round(self._settings.upload_limit * 1e9)
        return find_files(absolute_path(folder), include=self._include, limit=limit)

    async def of_job(self, spec: Spec, tenant: str | None = None) -> Spec:
        """Return a job with the snapshot of its code.

        Raises SpecError with all that is wrong with the folder, StoreError, UnavailableError.
        """
        if spec.code is None and (why := await self._wrong_environment(spec, None)):
            raise SpecError(f"job {spec.name}", (f"environment: {why}",))
        if spec.code is None:
            return _knowing_environment(spec, spec.environment, {}, tenant)
        if spec.code.snapshot is not None:
            return spec
        current = spec.environment is not None and spec.environment.current
        wanted = (tenant or spec.tenant, spec.code, current)
        if (stored := self._stored.get(wanted)) is not None:
            await self._refuse(spec, stored.folder, stored.found)
        else:
            stored = self._stored[wanted] = await self._store(spec, wanted[0], spec.code)
        asked, texts = stored.environment or spec.environment, stored.texts
        if asked is not None and asked != stored.of:
            texts, _ = await asyncio.to_thread(_texts_of, asked, stored.folder)
        spec = spec.model_copy(update={"code": stored.code})
        return _knowing_environment(spec, asked, texts, tenant)

    async def of_dag(self, dag: DagSpec) -> DagSpec:
        """Return a DAG with the snapshots of its jobs, as `of_job`."""
        jobs = {name: await self.of_job(job, dag.tenant) for name, job in dag.jobs.items()}
        return dag.model_copy(update={"jobs": jobs})

    async def of(self, spec: Submitted) -> Submitted:
        """Return a job or a DAG, as `of_job` and `of_dag`."""
        if isinstance(spec, DagSpec):
            return cast("Submitted", await self.of_dag(spec))
        return cast("Submitted", await self.of_job(spec))

    async def _store(self, spec: JobSpec, tenant: str, code: Code) -> "_Stored":
        if code.git is None:
            return await self._upload(spec, Path(code.folder or "."), tenant)
        clones = self._settings.state_dir / "cache" / "git"
        async with checked_out(code.git, code.ref, clones) as (folder, commit):
            stored = await self._upload(spec, folder, tenant, commit)
        of = {"git": without_secrets(code.git), "ref": code.ref}
        return replace(stored, code=stored.code.model_copy(update=of))

    async def _upload(
        self, spec: JobSpec, given: Path, tenant: str, commit: str | None = None
    ) -> "_Stored":
        folder = await asyncio.to_thread(absolute_path, given)
        store = ArtifactStore(self._settings.resolve_artifact_store())
        with contextlib.ExitStack() as stack:
            brought = None
            if spec.environment is not None and spec.environment.current:
                # Before the folder is looked at: a build may write into it.
                made = tempfile.TemporaryDirectory(prefix="longshore-current-")
                place = Path(stack.enter_context(made))
                brought = await asyncio.to_thread(lambda: bring(current_python(), place))
            found = await asyncio.to_thread(self._found, folder)
            if commit is not None:
                found = replace(found, commit=commit, changed=False)
            await self._refuse(spec, folder, found)
            caches = self._settings.state_dir / "cache"
            cache = CodeCache(caches / "code.sqlite")
            stack.enter_context(cache)
            files = stack.enter_context(_with_diff(folder, found))
            if brought is not None:
                files = _with_files(files, brought.files)
            if why := await asyncio.to_thread(mistake_of, files):  # by itself the folder has none
                own = f"Longshore puts files of its own into {PurePosixPath(DIFF_PATH).parent}"
                raise SpecError(str(folder), (f"{folder}: {why}; {own}: rename what is there",))
            to = UploadTo(self._database(), store, tenant, cache, caches / "uploads")
            uploaded = await upload(
                folder, files, to, self._told, anew=self._anew, waits=self._waits
            )
            asked, texts = spec.environment, dict[str, str]()
            if brought is not None:
                uploaded = replace(uploaded, environment=brought.said)
                asked, texts = brought.environment, brought.texts
            elif asked is not None:
                texts, _ = await asyncio.to_thread(_texts_of, asked, folder)
        self._say(uploaded)
        return _Stored(uploaded.code, folder, found, brought and asked, texts, asked)

    async def _refuse(self, spec: JobSpec, folder: Path, found: FoundFiles) -> None:
        """Raise SpecError where a file that a job needs of its folder does not come along, or is a
        lock for another Python than the nodes of its pool have."""
        needs = {} if self._script is None else {self._script: "script"}
        if spec.environment is not None:
            needs |= dict.fromkeys(spec.environment.needs, "environment")
        lacking = tuple(_lacking(folder, found, needs))
        if spec.workdir is not None and not _has_folder(folder, found, spec.workdir):
            what = f"there is no folder {brief(spec.workdir)} in the code that the job brings"
            lacking += (f"workdir: {what}",)
        if not lacking and (why := await self._wrong_environment(spec, folder)):
            lacking = (f"environment: {why}",)
        if lacking:
            raise SpecError(str(folder), lacking)

    async def _wrong_environment(self, spec: JobSpec, folder: Path | None) -> str:
        """Return why what a job's environment is made from can be used nowhere, or on no node of
        its pool; empty where it can, or where that cannot be seen here."""
        asked = spec.environment
        if asked is None or asked.current:
            return ""
        texts, why = await asyncio.to_thread(_texts_of, asked, folder)
        if why or asked.lock is None or asked.lock not in texts:
            return why
        pythons = await pythons_of(self._database(), spec.pool)
        why = why_unfit(texts[asked.lock], asked.python, pythons)
        return f"{brief(asked.lock)} {why}: lock it for that one" if why else ""


def _texts_of(asked: JobEnvironment, folder: Path | None) -> tuple[Mapping[str, str], str]:
    """Return the texts that an environment is made from, or why they can be used nowhere."""
    from longshore.activities.node.environment_recipe import CANNOT_BE_MADE, texts_of

    if folder is not None and not folder.exists():  # of a commit, which was looked at before
        return {}, ""
    try:
        return texts_of(asked, folder)[0], ""
    except NotReadyError as error:
        return {}, str(error).removeprefix(CANNOT_BE_MADE)


def _knowing_environment(
    spec: Spec, asked: JobEnvironment | None, texts: Mapping[str, str], tenant: str | None
) -> Spec:
    """Return a job with its environment and the digest of that; without one where a file of it
    cannot be seen here, as that of a commit that another job of a DAG brought."""
    from longshore.activities.node.environment_recipe import code_of, digest_of

    if asked is None:
        return spec
    if not texts.keys() >= set(asked.needs):
        return spec.model_copy(update={"environment": asked.as_asked})
    code = code_of(tenant or spec.tenant, spec.code and spec.code.snapshot)
    digest = digest_of(asked, texts, code)
    return spec.model_copy(update={"environment": asked.model_copy(update={"digest": digest})})


async def hold_for_schedule(
    database: Database, name: str, spec: JobSpec | DagSpec | None, *, alone: bool
) -> None:
    """Keep the code of what a schedule starts as long as the schedule is there; with `alone`
    nothing else of it any more. Raises StaleError where it is not stored."""
    holder = f"schedule:{name}"
    jobs: Iterable[JobSpec] = ()
    if spec is not None:
        jobs = spec.jobs.values() if isinstance(spec, DagSpec) else (spec,)
    digests = {job.code.snapshot for job in jobs if job.code is not None and job.code.snapshot}
    async with database.transaction() as connection:
        if alone:
            await release_snapshots(connection, holder)
        for digest in sorted(digests):
            assert spec is not None
            await hold_snapshot(connection, spec.tenant, digest, holder)


def _has_folder(root: Path, found: FoundFiles, folder: str) -> bool:
    """Return whether a folder comes along, by a file, a link or a folder in it."""
    path = os.path.normpath(folder)
    others = (*found.files, *found.links)
    if path == "." or any(each.path.startswith(f"{path}/") for each in others):
        return True
    if any(each == path or each.startswith(f"{path}/") for each in found.folders):
        return True
    links = {link.path for link in found.links}
    through = {path, *(str(above) for above in PurePosixPath(path).parents)}
    # A commit's folder is gone when a second job of a DAG is looked at.
    return not links.isdisjoint(through) and ((root / path).is_dir() or not root.exists())


def _lacking(folder: Path, found: FoundFiles, needs: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with each file that is needed, by who needs it."""
    links = {link.path for link in found.links}
    there = {file.path for file in found.files} | links
    for need, whose in needs.items():
        path = PurePosixPath(os.path.normpath(need))
        through_link = any(str(above) in links for above in path.parents)
        is_file = (folder / path).is_file() or not folder.exists()  # of a commit it is gone
        if str(path) in there or (through_link and is_file):
            continue
        if (folder / path).is_file():
            yield (
                f"{whose}: {brief(str(path))} is ignored, and so left behind: name it with "
                f"--include {shlex.quote(f'/{path}')}, or ignore it no more"
            )
        else:
            yield f"{whose}: there is no {brief(str(path))} in the code that the job brings"


@contextlib.contextmanager
def _with_diff(folder: Path, found: FoundFiles) -> Iterator[FoundFiles]:
    """Yield the files with one more: what they changed of the commit."""
    taken = {file.path for file in found.files}
    diff = diff_to_commit(folder, taken) if found.commit is not None and found.changed else b""
    if not diff:
        yield found
        return
    with tempfile.NamedTemporaryFile(prefix="longshore-diff-") as file:
        file.write(diff)
        file.flush()
        yield _with_files(found, {DIFF_PATH: Path(file.name)})


def _with_files(found: FoundFiles, more: Mapping[str, Path]) -> FoundFiles:
    """Return the files with these in the place of those of the same path."""
    others = [each for each in found.files if each.path not in more]
    added = [
        FoundFile(path=path, source=str(source), stat=source.lstat())
        for path, source in more.items()
    ]
    return replace(found, files=(*others, *added))
