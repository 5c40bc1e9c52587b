"""Has so many GiB of state on the GPU, saves them when it is stopped, and goes on from them.

Prints `ready` when it has them, and at the end as JSON what saving and loading took.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

parser = argparse.ArgumentParser()
parser.add_argument("--gib", type=float, required=True)
arguments = parser.parse_args()
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
checkpoint = Path(os.environ["LONGSHORE_CHECKPOINT_DIR"]) / "state.pt"
began = time.monotonic()
if checkpoint.exists():
    saved = torch.load(checkpoint, map_location="cuda", weights_only=True)
    took = time.monotonic() - began
    total = float(saved["state"].double().sum())
    print(json.dumps({"loaded_in": round(took, 2), "sum": total}))
    sys.exit(0)
state = torch.arange(int(arguments.gib * 2**28), device="cuda", dtype=torch.float32) % 1000
print(f"ready {float(state.double().sum())}", flush=True)
stop.wait()
began = time.monotonic()
draft = checkpoint.with_suffix(".tmp")
torch.save({"state": state}, draft)
took = time.monotonic() - began
draft.replace(checkpoint)
with Path(os.environ["LONGSHORE_SAVED"]).open("a") as said:
    said.write(f"saved, step 1, took {took:.3f}s\n")
print(f"saved {arguments.gib} GiB in {took:.2f} s", flush=True)
sys.exit(128 + signal.SIGTERM)
