"""Fits a line to points: the script of docs/first-job.md."""

import csv
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

data = Path(os.environ["LONGSHORE_DATA_DIR"], "points")  # what the node fetched
rows = [row for file in sorted(data.glob("*.csv")) for row in csv.reader(file.open())]
x, y = np.array(rows, dtype=float).T

saved = Path("saved/fit.json")  # in the folder of --checkpoint
state = json.loads(saved.read_text()) if saved.exists() else {"epoch": 0, "a": 0.0, "b": 0.0}
print(f"{len(x)} points, from epoch {state['epoch']}", flush=True)

while state["epoch"] < 60 and not stop:
    error = state["a"] * x + state["b"] - y
    state["a"] -= 0.1 * float(np.mean(error * x))
    state["b"] -= 0.1 * float(np.mean(error))
    state["epoch"] += 1
    time.sleep(0.3)  # what a GPU would do
    print(f"epoch {state['epoch']}: loss {np.mean(error**2):.4f}", flush=True)
    Path(os.environ["LONGSHORE_PROGRESS_FILE"]).write_text(f"{state['epoch']}/60")

if stop:
    saved.with_suffix(".tmp").write_text(json.dumps(state))
    saved.with_suffix(".tmp").rename(saved)
    sys.exit("stopped, and saved")
Path("results").mkdir(exist_ok=True)
Path("results/line.json").write_text(json.dumps(state))
