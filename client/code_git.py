"""The code of a Git commit: fetched into a private clone, and put into a folder for a while."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from longshore.client.code_options import absolute_path
from longshore.client.code_tree import OF_LFS, read_with_git
from longshore.models.addresses import without_secrets
from longshore.models.errors import SpecError
from longshore.models.text import listed
from longshore.models.visible import shown

MOST_DIFF = 1_000_000
"""Bytes of a diff that are kept."""
DIFF_PATH = ".longshore/diff.patch"
"""Where a snapshot has what its folder had changed of the commit."""
_KEPT_FOR = 30 * 86400.0
"""Seconds that a clone is kept after its last use."""
_POLL = 0.1
"""Seconds between tries to lock a clone that another submit fetches."""
_KEPT_BY_LFS = ":(attr:filter=lfs)"
_WITH_LFS = tuple(
    word for key, value in OF_LFS.items() for word in ("-c", f"filter.lfs.{key}={value}")
)
"""Else it fetches files and leaves their pointers, where nobody ran `git lfs install`."""
_NAME = "printf '%s\\0' \"$displaypath\""
_SHA = re.compile(r"[0-9a-f]{7,64}")
_FROM_HEAD = re.compile(r"(?:HEAD|@)((?:[~^].*)?)")
"""That of the repository: the clone has one of its own, which leads elsewhere."""
_CUT = b"\n(cut: the diff is longer than 1 MB; the files themselves are whole)\n"


@contextlib.asynccontextmanager
async def checked_out(
    repository: str, ref: str | None, cache: Path
) -> AsyncIterator[tuple[Path, str]]:
    """Yield a folder with the files of a commit, submodules and LFS files too, and the commit.

    `repository` is a URL or a path, and `ref` a branch, tag or commit of it; its default branch
    without. Raises SpecError where there is none, or Git cannot read it.
    """
    if shutil.which("git") is None:
        raise SpecError("code", ("git: is not installed here: give a folder, or install Git",))
    source = _source(repository)
    clone = cache / hashlib.sha256(source.encode()).hexdigest()[:20]
    clone.parent.mkdir(parents=True, exist_ok=True)
    lock = clone.with_suffix(".lock").open("w")
    try:
        # Of two submits one fetches, and the other finds it. A thread that waits for the lock
        # could not be interrupted.
        while not _locked(lock.fileno()):  # noqa: ASYNC110 (another process has it)
            await asyncio.sleep(_POLL)
    except BaseException:
        lock.close()
        raise
    thread = asyncio.get_running_loop().run_in_executor(None, _check_out, source, ref, clone, lock)
    try:
        found = await asyncio.shield(thread)
    except asyncio.CancelledError:
        thread.add_done_callback(_remove_forsaken)  # it goes on, and has the lock as long
        raise
    try:
        yield found.folder, found.commit
    finally:
        await asyncio.to_thread(found.remove)


@dataclass(frozen=True)
class _Checkout:
    """A folder with the files of a commit, which is locked as long as somebody reads it."""

    folder: Path
    commit: str
    locked: int
    """Its descriptor."""

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.locked)


def _remove_forsaken(thread: "asyncio.Future[_Checkout]") -> None:
    if not thread.cancelled() and thread.exception() is None:
        thread.result().remove()


def _check_out(source: str, ref: str | None, clone: Path, lock: IO[str]) -> _Checkout:
    """Return a new folder with the files of a commit. Ends the lock of the clone: others may use
    it while the files are read."""
    with lock:
        os.utime(lock.fileno())
        _sweep(clone.parent)
        _sweep_trees(clone)
        _update(source, clone)
        commit = _commit_of(source, ref, clone)
        _git("-C", clone, "worktree", "prune")
        tree = Path(tempfile.mkdtemp(prefix=f"{clone.name}-", suffix=".tree", dir=clone.parent))
        descriptor = os.open(tree, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Forced twice: Git locks it while it checks out, and one that was killed leaves that.
            force = ("--force", "--force")
            _git("-C", clone, "worktree", "add", *force, "--quiet", "--detach", tree, commit)
            _complete(source, tree)
        except BaseException:
            shutil.rmtree(tree, ignore_errors=True)
            os.close(descriptor)
            raise
    return _Checkout(tree, commit, descriptor)


def _locked(descriptor: int) -> bool:
    """Take a lock that nobody else has; return whether this one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_MOST_CHANGED = 1000
"""Files that a diff names: a command line has a limit."""


def diff_to_commit(folder: Path, taken: Collection[str]) -> bytes:
    """Return what the tracked files of a folder that are `taken` along have changed since its
    commit, cut at 1 MB: what is left out, as a key, is in no diff either."""

    def diff(*asked: str) -> bytes:
        said = read_with_git(
            folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--relative",
            "--ignore-submodules=dirty", "--submodule=short", *asked, looks_at_files=True,
        )  # fmt: skip
        return said.stdout if said is not None else b""

    names = diff("--name-only", "-z", "HEAD", "--", ".").split(b"\0")
    wanted = [name for name in (os.fsdecode(each) for each in names) if name in taken]
    if not wanted:
        return b""
    found = diff("HEAD", "--", *(f":(literal){name}" for name in wanted[:_MOST_CHANGED]))
    return found if len(found) <= MOST_DIFF else found[: MOST_DIFF - len(_CUT)] + _CUT


def _source(repository: str) -> str:
    """Return what Git is given: a URL as it is, a path as an absolute one."""
    path = absolute_path(repository)
    return str(path) if path.is_dir() else repository


def _sweep(cache: Path) -> None:
    """Remove clones that nobody has used for long, with what a submit that was killed left."""
    before = time.time() - _KEPT_FOR
    for lock in cache.glob("*.lock"):
        with contextlib.suppress(OSError), lock.open("r") as held:
            if lock.stat().st_mtime < before and _locked(held.fileno()):
                clone = lock.with_suffix("")
                for folder in (clone, clone.with_suffix(".new")):
                    shutil.rmtree(folder, ignore_errors=True)  # not the lock: another may wait
                _sweep_trees(clone)
    for tree in cache.glob("tree-*"):  # so an earlier version called them
        with contextlib.suppress(OSError):
            if tree.stat().st_mtime < before:
                shutil.rmtree(tree, ignore_errors=True)


def _sweep_trees(clone: Path) -> None:
    """Remove the folders of a clone, which is locked, that a submit which was killed left."""
    for tree in clone.parent.glob(f"{clone.name}*.tree"):
        with contextlib.suppress(OSError):
            descriptor = os.open(tree, os.O_RDONLY)
            try:
                if _locked(descriptor):
                    shutil.rmtree(tree, ignore_errors=True)
            finally:
                os.close(descriptor)


def _update(source: str, clone: Path) -> None:
    """Bring a clone up to date. One that cannot be, as a Git that was killed left it, is made
    anew, and aside, so that none is there in part."""
    fetch = ("fetch", "--quiet", "--prune", "--force", "origin")
    if clone.exists() and _run("-C", clone, *fetch).returncode == 0:
        return
    if any(clone.parent.glob(f"{clone.name}*.tree")):
        # Somebody reads the files of another commit now, by way of this clone.
        _git("-C", clone, *fetch, said_of=source)
        return
    new = clone.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        _git("init", "--quiet", "--bare", new)
        _git("-C", new, "remote", "add", "--mirror=fetch", "origin", source)
        _git("-C", new, *fetch, said_of=source)
        shutil.rmtree(clone, ignore_errors=True)
        new.rename(clone)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _commit_of(source: str, ref: str | None, clone: Path) -> str:
    """Return the commit that a ref names."""
    ref = ref or "HEAD"
    wanted, sha = (f"refs/tags/{ref}", f"refs/heads/{ref}", ref), ref
    if from_head := _FROM_HEAD.fullmatch(ref):
        heads = _git("-C", clone, "ls-remote", "origin", "HEAD", said_of=source).split()
        if not heads:
            raise SpecError("code", (f"git: {_said(source)} has no commit",))
        sha = heads[0]
        wanted = (sha + from_head[1],)
    for named in wanted:
        if commit := _commit(clone, named):
            return commit
    if _SHA.fullmatch(sha):  # one that no branch has any more; many servers give it all the same
        with contextlib.suppress(SpecError):
            _git("-C", clone, "fetch", "--quiet", "origin", sha, said_of=source)
        if commit := _commit(clone, wanted[-1]):
            return commit
    known = _git("-C", clone, "for-each-ref", "--format=%(refname:short)", "--sort=-creatordate",
                 "--count=5", "refs/heads", "refs/tags").split()  # fmt: skip
    have = f"; it has {', '.join(known)}" if known else ""
    raise SpecError(
        "code", (f"ref: {_said(source)} has no branch, tag or commit {shown(ref)}{have}",)
    )


def _commit(clone: Path, named: str) -> str:
    ran = _run("-C", clone, "rev-parse", "--verify", "--quiet", "--end-of-options",
               f"{named}^{{commit}}")  # fmt: skip
    return ran.stdout.decode().strip() if ran.returncode == 0 else ""


def _complete(source: str, tree: Path) -> None:
    """Fetch what a commit only points to: submodules, and files of Git LFS."""
    if (tree / ".gitmodules").exists():
        # A repository on this machine may have submodules on it; one elsewhere may not.
        local = ["-c", "protocol.file.allow=always"] if Path(source).is_dir() else []
        _git(*local, "-C", tree, "submodule", "update", "--init", "--recursive", "--quiet",
             said_of=source)  # fmt: skip
    modules = _git("-C", tree, "submodule", "foreach", "--recursive", "--quiet", _NAME)
    for folder in (tree, *(tree / path for path in modules.split("\0")[:-1])):
        kept = _git("-C", folder, "ls-files", "-z", "--", _KEPT_BY_LFS).split("\0")[:-1]
        if not kept:
            continue
        if shutil.which("git-lfs") is None:
            why = (
                f"git: {listed(kept, 3)} of {_said(source)} {'is' if len(kept) == 1 else 'are'} "
                "kept by Git LFS, and git-lfs is not installed here: install it"
            )
            raise SpecError("code", (why,))
        _git(*_WITH_LFS, "-C", folder, "lfs", "pull", said_of=source)


def _git(*arguments: str | Path, said_of: str = "") -> str:
    """Run Git; return its output. Raises SpecError with what it says."""
    ran = _run(*arguments)
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.decode(errors="replace").splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal: ", "error: "))]
        said = ": ".join(fatal[:2] or lines[-2:])
        why = without_secrets(said or f"git ended with {ran.returncode}")
        about = f"{_said(said_of)} " if said_of else ""
        raise SpecError("code", (f"git: {about}cannot be read: {why}",))
    return ran.stdout.decode(errors="replace")


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *arguments], capture_output=True, env=_environment(),
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def _said(source: str) -> str:
    return shown(without_secrets(source))


def _environment() -> dict[str, str]:
    """Return ours, without what would point Git at another repository; it asks nobody."""
    mine = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    return {**mine, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


_OF_A_REPOSITORY: Sequence[str] = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX",
    "GIT_COMMON_DIR",
)  # fmt: skip
