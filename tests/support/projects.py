"""A Python project whose wheel is built without an index: its build backend lies beside it."""

from pathlib import Path

_PYPROJECT = """
[project]
name = "{name}"
version = "1.2"

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
_BACKEND = """
import os
import tarfile
import zipfile

NAME = "{name}"
HERE = os.path.dirname(os.path.abspath(__file__))


def _wheel(folder, files):
    info = NAME + "-1.2.dist-info"
    files[info + "/METADATA"] = "Metadata-Version: 2.1\\nName: " + NAME + "\\nVersion: 1.2\\n"
    files[info + "/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    lines = "".join(path + ",,\\n" for path in [*files, info + "/RECORD"])
    name = NAME + "-1.2-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in (files | {{info + "/RECORD": lines}}).items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return name


def build_wheel(folder, config_settings=None, metadata_directory=None):
    open(os.path.join(HERE, "built"), "w").close()  # as setuptools leaves its build folder
    with open(os.path.join(HERE, NAME + ".py")) as file:
        return _wheel(folder, {{NAME + ".py": file.read()}})


def build_sdist(folder, config_settings=None):
    name = NAME + "-1.2"
    with tarfile.open(os.path.join(folder, name + ".tar.gz"), "w:gz") as archive:
        for file in ("pyproject.toml", "backend.py", NAME + ".py"):
            archive.add(os.path.join(HERE, file), name + "/" + file)
    return name + ".tar.gz"


def build_editable(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder, {{NAME + ".pth": HERE + "\\n"}})
"""


def make_project(folder: Path, name: str, text: str) -> Path:
    """Make a project of one module with this text."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(name=name))
    (folder / "backend.py").write_text(_BACKEND.format(name=name))
    (folder / f"{name}.py").write_text(text)
    return folder
