"""The process that `benchmarks.preemption_live` stops: it saves for so many seconds and leaves.

    python benchmarks/slow_saver.py SECONDS MEGABYTES JOURNAL

Into the journal go lines with an attempt, a word (`began`, `asked`, `saved`) and the Unix time.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path


def main(seconds: float, megabytes: int, journal: Path) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    state = os.urandom(2**20) * megabytes
    note(journal, "began")
    stop.wait()
    note(journal, "asked")
    time.sleep(seconds)
    draft = Path(os.environ["LONGSHORE_CHECKPOINT_DIR"], "state.draft")
    draft.write_bytes(state)
    draft.replace(draft.with_name("state"))
    with Path(os.environ["LONGSHORE_SAVED"]).open("a") as said:
        said.write(f"saved, took {seconds}s\n")
    note(journal, "saved")
    return 128 + signal.SIGTERM


def note(journal: Path, word: str) -> None:
    with journal.open("a") as file:
        file.write(f"{os.environ['LONGSHORE_ATTEMPT']} {word} {time.time()}\n")


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
