"""Counts to 20, a step a second. Stopped and started again, it goes on where it was.

It saves when it is asked to stop, and every five steps as well: a node that is lost asks nobody.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

STEPS = 20
SAVE_EVERY = 5
STOPPED = 128 + signal.SIGTERM

folder = Path(os.environ["LONGSHORE_CHECKPOINT_DIR"])
checkpoint = folder / "state.json"  # the folder is this job's own
progress = Path(os.environ["LONGSHORE_PROGRESS_FILE"])


def main() -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    step, total = load()
    if step:
        print(f"attempt {os.environ['LONGSHORE_ATTEMPT']} goes on after step {step}", flush=True)
    while step < STEPS:
        stop.wait(1)  # the work of a step
        if stop.is_set():
            save(step, total)
            print(f"saved step {step}, stopping", flush=True)
            return STOPPED
        step, total = step + 1, total + step + 1
        print(f"step {step} of {STEPS}, total {total}", flush=True)
        progress.write_text(f"{step}/{STEPS} total {total}\n")
        if step % SAVE_EVERY == 0:
            save(step, total)
    print(f"the total is {total}", flush=True)
    return 0


def load() -> tuple[int, int]:
    """Return the step and the total that were saved last; zeros where nothing was."""
    try:
        saved = json.loads(checkpoint.read_text())
    except FileNotFoundError:
        return 0, 0
    return saved["step"], saved["total"]


def save(step: int, total: int) -> None:
    """Replace the checkpoint as one step: whoever is killed while saving keeps the last one."""
    draft = checkpoint.with_suffix(".draft")
    draft.write_text(json.dumps({"step": step, "total": total}))
    draft.replace(checkpoint)
    with Path(os.environ["LONGSHORE_SAVED"]).open("a") as said:
        said.write(f"saved, step {step}\n")  # now it may be published


if __name__ == "__main__":
    sys.exit(main())
