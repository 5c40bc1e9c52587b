"""A state folder of its own for the command line, run as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.local_stack import free_ports

PROGRAM = str(Path(sys.executable).parent / "longshore")


class Home:
    """A state folder of its own, and the environment that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        port, ui_port = free_ports(2)
        self.env = os.environ | {
            "LONGSHORE_STATE_DIR": str(self.folder),
            "LONGSHORE_TEMPORAL_PORT": str(port),
            "LONGSHORE_TEMPORAL_UI_PORT": str(ui_port),
        }

    def longshore(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *args],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    def up(self, *args: str) -> dict[str, Any]:
        done = self.longshore("up", "--json", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
