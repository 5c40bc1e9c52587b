"""Waits until the process at the other end of its input ends, then stops the stack in a folder.

Run as `python -m tests.support.guard FOLDER`. Tests that are killed leave no servers behind.
"""

import sys
from pathlib import Path


def main() -> None:
    sys.stdin.read()
    folder = Path(sys.argv[1])
    if any(folder.glob("run/*.json")):
        _stop(folder)


def _stop(folder: Path) -> None:
    """Stop what nobody else did, and remove what it stored."""
    # Imported late: it takes half a second of a processor, and most often there is nothing to do.
    from longshore.client.process import leave
    from longshore.models.settings import Settings
    from longshore.workers.stack import Stack

    stack = Stack(Settings(state_dir=folder))
    if stack.stop(lambda line: None):
        stack.purge()
    leave(0)


if __name__ == "__main__":
    main()
