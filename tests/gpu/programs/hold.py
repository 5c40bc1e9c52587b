"""Takes so many GiB of the GPU, computes on them, and holds them until a file is there.

Prints `holds` when it has them, and at the end as JSON how many products it computed. With
--deaf it ignores SIGTERM.
"""

import argparse
import json
import signal
import time
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

parser = argparse.ArgumentParser()
parser.add_argument("--gib", type=float, required=True)
parser.add_argument("--until", type=Path)
parser.add_argument("--deaf", action="store_true")
arguments = parser.parse_args()
if arguments.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = torch.empty(int(arguments.gib * 2**30), dtype=torch.uint8, device="cuda")
held.fill_(1)
matrix = torch.randn(1024, 1024, device="cuda")
products = 0
print("holds", flush=True)
while arguments.until and not arguments.until.exists():
    matrix = torch.tanh(matrix @ matrix / 1024)
    products += 1
    torch.cuda.synchronize()
    time.sleep(0.001)
print(json.dumps({"products": products, "gib": arguments.gib, "mean": float(matrix.mean())}))
