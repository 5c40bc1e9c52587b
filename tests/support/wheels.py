"""An index of packages made on the spot: a folder of wheels."""

import base64
import ensurepip
import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest


def settings_of_index(folder: Path) -> dict[str, str]:
    """Return the variables with which a folder of wheels is the only index."""
    return {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


def be_the_only_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a folder of wheels be the only index of this process, and of those that it starts."""
    for name in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings_of_index(folder).items():
        monkeypatch.setenv(name, value)


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, requires: tuple[str, ...] = (),
    tag: str = "py3-none-any", python: str = ">=3.8",
) -> Path:  # fmt: skip
    """Make a wheel of a module that says its version, with a program of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {python}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}/__init__.py": f"version = '{version}'\n\n\ndef main():\n    print(version)\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(
        f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items()
    )
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def add_pip(folder: Path) -> None:
    """Add what `uv venv --seed` installs: the wheels that come with Python, and before Python 3.12
    a package `wheel`."""
    for wheel in (Path(ensurepip.__file__).parent / "_bundled").glob("*.whl"):
        shutil.copy(wheel, folder)
    make_wheel(folder, "wheel")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
