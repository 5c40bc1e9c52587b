"""Waits until the process at the other end of its input ends, then stops the stack in a folder.

Run as `python -m tests.support.guard FOLDER`. Tests that are killed leave no servers behind.
"""

import sys
from pathlib import Path

from client.process import leave
from models.settings import Settings
from workers.stack import Stack


def main() -> None:
    sys.stdin.read()
    Stack(Settings(state_dir=Path(sys.argv[1]))).stop(lambda line: None)
    leave(0)


if __name__ == "__main__":
    main()
