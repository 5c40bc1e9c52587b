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
    stack = Stack(Settings(state_dir=Path(sys.argv[1])))
    if stack.stop(lambda line: None):  # nobody else did: nobody needs what it stored
        stack.purge()
    leave(0)


if __name__ == "__main__":
    main()
