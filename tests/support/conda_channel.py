"""A channel of conda made on the spot: a folder of small packages, and what it lists."""

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

SUBDIRS = ("noarch", "linux-64", "linux-aarch64")


class CondaChannel:
    """The channel in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listed: dict[str, object] = {}
        self._write_lists()

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        depends: tuple[str, ...] = (),
        files: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """Add a package: without `files` a program of its name that says its version."""
        texts = dict(files or ({} if links else {f"bin/{name}": f"#!/bin/sh\necho {version}\n"}))
        index = {
            "name": name, "version": version, "build": "0", "build_number": 0,
            "depends": list(depends), "subdir": "noarch", "noarch": "generic",
        }  # fmt: skip
        paths = [
            {
                "_path": path, "path_type": "hardlink", "size_in_bytes": len(text.encode()),
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
            }
            for path, text in texts.items()
        ]  # fmt: skip
        nothing = hashlib.sha256().hexdigest()
        paths += [
            {"_path": path, "path_type": "softlink", "size_in_bytes": 0, "sha256": nothing}
            for path in links or {}
        ]
        texts |= {
            "info/index.json": json.dumps(index),
            "info/paths.json": json.dumps({"paths_version": 1, "paths": paths}),
        }
        archive = self.folder / "noarch" / f"{name}-{version}-0.tar.bz2"
        with tarfile.open(archive, "w:bz2") as tar:
            for path, text in texts.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(text.encode())
                entry.mode = 0o755 if path.startswith("bin/") else 0o644
                tar.addfile(entry, io.BytesIO(text.encode()))
            for path, target in (links or {}).items():
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
        data = archive.read_bytes()
        self._listed[archive.name] = {
            **index, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(),
            "md5": hashlib.md5(data).hexdigest(),
        }  # fmt: skip
        self._write_lists()

    def add_python(self) -> None:
        """Add a package `python` that is the one of this machine, in a virtual environment: what
        is installed with it comes into the environment."""
        python = os.path.realpath(sys.executable)
        version = ".".join(map(str, sys.version_info[:3]))
        home = f"home = {Path(python).parent}\nversion = {version}\n"
        self.add("python", version, files={"pyvenv.cfg": home}, links={"bin/python": python})

    def _write_lists(self) -> None:
        for subdir in SUBDIRS:
            (self.folder / subdir).mkdir(parents=True, exist_ok=True)
            listed = {
                "info": {"subdir": subdir}, "packages.conda": {}, "repodata_version": 1,
                "packages": self._listed if subdir == "noarch" else {},
            }  # fmt: skip
            (self.folder / subdir / "repodata.json").write_text(json.dumps(listed))
