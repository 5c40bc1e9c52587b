"""What an environment is made from: the texts that a job brings, a Python, the indexes.

Equal recipes have one identity, and are one environment on a node.
"""

import configparser
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from longshore.activities.node.conda_file import CondaFile, CondaFileError, read_conda_file
from longshore.activities.node.launch import clean_env
from longshore.activities.node.preparing import NotReadyError
from longshore.activities.node.requirement_lines import INCLUDES, is_local, statements
from longshore.models.environment import CURRENT_FOLDER, JobEnvironment
from longshore.models.retry import FailureClass
from longshore.models.visible import brief

CANNOT_BE_MADE = "its environment cannot be made: "
LARGEST = 16 * 2**20
"""Bytes of a file that an environment is made from."""
_PROBE = (
    "import json,platform,sys,sysconfig;print(json.dumps([sys.executable,platform.python_version()"
    ",sys.implementation.cache_tag,sysconfig.get_platform(),''.join(platform.libc_ver())]))"
)
_NO_TEXT = (
    "it is not UTF-8 text. Save a text as UTF-8; a `script` finds all other files of the code "
    "without their names here, and is run anew when one of them changes"
)
_PROBE_SECONDS = 60.0
_KNOWN_FOR = 60.0
"""Seconds in which a Python is not asked again what it is."""
_BROUGHT = re.compile(rf"\./{re.escape(CURRENT_FOLDER)}/([0-9a-f]{{64}})/[^/\s]+\.whl")
"""A wheel that a submit built, by its digest: the line changes with it."""
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
}
"""What pip is told, by pip.conf or PIP_*, and what uv calls it."""
_INDEX_NAMES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL",
                "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INDEX_STRATEGY", "UV_CONFIG_FILE",
                "UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_CONSTRAINT", "UV_OVERRIDE")  # fmt: skip
_PASSED_ON = (*_INDEX_NAMES, "SSL_CERT_FILE", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS",
              "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_OFFLINE", "UV_KEYRING_PROVIDER",
              "UV_PYTHON_DOWNLOADS", "UV_PYTHON_INSTALL_DIR")  # fmt: skip


@dataclass(frozen=True)
class Interpreter:
    """A Python of this node."""

    path: str
    version: str
    tag: str
    platform: str
    libc: str


@dataclass(frozen=True)
class Recipe:
    """All that an environment follows from."""

    asked: JobEnvironment
    python: Interpreter | None
    """None of one of conda, which brings its own."""
    texts: Mapping[str, str]
    """By path below the folder of the code, with what requirements files include."""
    code: str
    """The tenant and the snapshot, where there is a script: it may install what is in there."""
    variables: Mapping[str, str]
    """For uv: indexes and how they are reached, from the settings of the agent."""
    conda: CondaFile | None = None
    platform: str = ""
    """Of one of conda: what its packages depend on of this machine."""

    @functools.cached_property
    def identity(self) -> str:
        """A digest of it, which names the environment."""
        indexes = {name: value for name, value in self.variables.items() if name in _INDEX_NAMES}
        made_from = [
            self.asked.model_dump(mode="json", exclude={"conda", "digest"}),
            vars(self.python) if self.python else None, sorted(self.texts.items()),
            sorted(indexes.items()), self.code if self.asked.script else "",
        ]  # fmt: skip
        if self.has_no_index:  # those of before were built from the public index all the same
            made_from.append("--no-index")
        if self.conda is not None:  # others have the identity that they had before there was this
            made_from += [self.asked.conda, self.conda.channels, self.platform]
        return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]

    @property
    def digest(self) -> str:
        """What `digest_of` says of it, which the submit of its job said too."""
        return digest_of(self.asked, self.texts, self.code)

    @property
    def has_no_index(self) -> bool:
        """Whether only what `UV_FIND_LINKS` names may be installed. It is an option of uv, which
        has no variable for it: without the option it would ask the public index."""
        return has_no_index(self.variables)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        on = f"Python {self.python.version}" if self.python else self.platform.partition(" ")[0]
        return f"{self.asked.text}, {on}"


def recipe_of(asked: JobEnvironment, code: Path | None, path: str, named: str = "") -> Recipe:
    """Return the recipe of what a job asks for. `code` is the folder of its code, as it was
    brought, and `named` whose and which that is; `path` the PATH of jobs.

    Raises NotReadyError where a file is not there or cannot be used, or the node has no such
    Python.
    """
    if asked.current:
        raise _bad(
            "a submit puts a requirements file in the place of `current`, and this job was "
            "started by other means"
        )
    texts, conda = texts_of(asked, code)
    variables = variables_of_uv(os.environ)
    if conda is not None:
        return Recipe(asked, None, texts, named, variables, conda, _platform_of_conda())
    python = _interpreter(asked.python, path)
    return Recipe(asked, python, texts, named, variables)


def digest_of(asked: JobEnvironment, texts: Mapping[str, str], code: str) -> str:
    """Return a digest of what a job brings for its environment, which is known without a node:
    neither its Python nor its indexes. `code` is as in a `Recipe`."""
    wanted = asked.model_dump(mode="json", exclude={"digest"})
    brought = [wanted, sorted(texts.items()), code if asked.script else ""]
    return hashlib.sha256(json.dumps(brought).encode()).hexdigest()[:32]


def code_of(tenant: str, snapshot: str | None) -> str:
    """Return which code a script of a job could install."""
    return f"{tenant} {snapshot or ''}"


def texts_of(asked: JobEnvironment, code: Path | None) -> tuple[dict[str, str], CondaFile | None]:
    """Return the texts that an environment is made from, by path below the folder of the code, and
    what its environment.yml says. Raises NotReadyError where one cannot be used on any node."""
    texts: dict[str, str] = {}
    for name in asked.paths:
        if isinstance(asked.requirements, str) and name == asked.requirements:
            _requirements(code, name, texts)
        else:
            texts[name] = _read(code, name)
    for name in asked.needs:
        if name not in texts:
            texts[name] = _read(code, name)
    for line in asked.requirements if isinstance(asked.requirements, tuple) else ():
        _refuse_local(line, "environment")
    return texts, None if asked.conda is None else _conda(code, asked.conda, texts)


def variables_of_uv(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what uv is told of indexes: its own variables, and else those of pip."""
    found = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    pip = _settings_of_pip(environ)
    for option, name in _OF_PIP.items():
        value = environ.get(f"PIP_{option.upper().replace('-', '_')}") or pip.get(option)
        if value and name not in found:
            found[name] = " ".join(value.split())
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(re.split(r"[\s,]+", found["UV_FIND_LINKS"]))
    if environ.get("PIP_CERT"):
        found.setdefault("SSL_CERT_FILE", environ["PIP_CERT"])
    return found


def has_no_index(variables: Mapping[str, str]) -> bool:
    """Return whether what `variables_of_uv` says forbids all indexes."""
    return variables.get("UV_NO_INDEX", "").lower() not in ("", "0", "false", "no", "off")


def run_uv(*words: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a short command of uv, without a look at any project. Raises OSError."""
    return subprocess.run(
        [find_uv_bin(), *words], env=dict(env), capture_output=True, text=True, check=False,
        timeout=_PROBE_SECONDS,
    )  # fmt: skip


@functools.cache
def python_of_jobs() -> Interpreter | None:
    """Return the `python3` of jobs, where there is one. Asked once: it changes with the machine,
    and then the agent begins anew."""
    try:
        return _interpreter(None, clean_env(os.environ).get("PATH", os.defpath))
    except NotReadyError:
        return None


def _settings_of_pip(environ: Mapping[str, str]) -> dict[str, str]:
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [Path("/etc/pip.conf"), config / "pip/pip.conf", Path.home() / ".pip/pip.conf"]
    if environ.get("PIP_CONFIG_FILE"):
        files = [Path(environ["PIP_CONFIG_FILE"])]
    parser = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error, OSError, UnicodeError):
        parser.read(files)
        return dict(parser["global"]) if parser.has_section("global") else {}
    return {}


def _conda(code: Path | None, name: str, texts: dict[str, str]) -> CondaFile:
    """Read an environment.yml, and add what its `pip` section includes."""
    try:
        found = read_conda_file(texts[name])
    except CondaFileError as error:
        raise _bad(f"{brief(name)}: {error}") from None
    for line in found.pip:
        _requirement(code, line, name, texts)
    return found


@functools.cache
def _platform_of_conda() -> str:
    """Return what packages of conda are chosen by on this machine: platform, kernel, libc, GPU
    driver, processor."""
    try:
        import rattler
    except ImportError as error:
        raise _bad(
            f"conda environments need py-rattler in the Python of the agent: {error}"
        ) from None
    found = sorted(str(each.into_generic()) for each in rattler.VirtualPackage.detect())
    return " ".join([str(rattler.Subdir.current()), *found])


def _requirements(code: Path | None, name: str, texts: dict[str, str]) -> None:
    """Add a requirements file and what it includes."""
    if name in texts:
        return
    texts[name] = _read(code, name)
    for line in texts[name].removeprefix("\ufeff").replace("\\\n", " ").splitlines():
        _requirement(code, line, name, texts)


def _requirement(code: Path | None, line: str, where: str, texts: dict[str, str]) -> None:
    if (brought := _BROUGHT.fullmatch(line.strip())) is not None:
        _check(code, line.strip(), brought.group(1))
        return
    _refuse_local(line, where)
    for option, value in statements(line):
        if option in INCLUDES and "://" in value:
            raise _bad(
                f"{where} names {brief(line.strip())}: what is behind a URL may change without a "
                "change of this line. Put the file into the code of the job, and name its path"
            )
        if option in INCLUDES:
            _requirements(code, os.path.normpath(Path(where).parent / value), texts)


def _refuse_local(line: str, where: str) -> None:
    if any(is_local(option, value) for option, value in statements(line)):
        raise _bad(
            f"{where} names {brief(line.strip())}, which is no package of an index: what is in a "
            "folder may change without a change of this line. Install it in a `script`, or put "
            "the folder on PYTHONPATH; an index in a folder of every node is written "
            "`--find-links file:///srv/wheels`"
        )


def _file(code: Path | None, name: str) -> Path:
    if code is None:
        raise _bad(f"{brief(name)} is looked for in the code of the job, and it brings none")
    file = code / name
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(code)):
        raise _bad(f"{brief(name)} leads out of the code of the job")
    return file


def _read(code: Path | None, name: str) -> str:
    file = _file(code, name)
    try:
        if file.stat().st_size > LARGEST:
            raise _bad(f"{brief(name)} has more than {LARGEST:,} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else _NO_TEXT
        raise _bad(f"{brief(name)} of its code cannot be read: {why}") from None


def _check(code: Path | None, name: str, digest: str) -> None:
    """Raise NotReadyError where a wheel is not the one that its line names: others who name that
    one get this environment too."""
    try:
        with _file(code, name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _bad(f"{brief(name)} of its code cannot be read: {error.strerror}") from None
    if found != digest:
        raise _bad(f"{brief(name)} of its code is another than its line says")


def _interpreter(asked: str | None, path: str) -> Interpreter:
    return _known_interpreter(asked, path, int(time.monotonic() / _KNOWN_FOR))


@functools.lru_cache(maxsize=32)
def _known_interpreter(asked: str | None, path: str, _minute: int) -> Interpreter:
    env = {"PATH": path, **{k: os.environ[k] for k in ("HOME", *_PASSED_ON) if k in os.environ}}
    if asked is None:
        program = shutil.which("python3", path=path)
        if program is None:
            raise _bad(f"this node has no python3 on the PATH of jobs ({path})")
    else:
        env.setdefault("UV_PYTHON_DOWNLOADS", "never")
        found = run_uv("python", "find", "--system", "--no-project", asked, env=env)
        program = found.stdout.strip()
        if found.returncode or not program:
            said = found.stderr.strip().removeprefix("error: ").partition("\n")[0]
            raise _bad(f"this node has no Python {asked}: {said}")
    try:
        told = subprocess.run(
            [program, "-I", "-c", _PROBE], env=env, capture_output=True, text=True, check=True,
            timeout=_PROBE_SECONDS,
        )  # fmt: skip
        return Interpreter(*json.loads(told.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        raise _bad(f"the Python {program} of this node does not run: {error}") from None


def _bad(why: str) -> NotReadyError:
    return NotReadyError(FailureClass.START, f"{CANNOT_BE_MADE}{why}")
