"""Multiplies matrices on the GPU for so many seconds, from when a file is there.

Prints `ready` before it, and at the end as JSON how many products it computed a second.
"""

import argparse
import json
import time
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=4.0)
parser.add_argument("--size", type=int, default=2048)
parser.add_argument("--go", type=Path, required=True)
arguments = parser.parse_args()
matrix = torch.randn(arguments.size, arguments.size, device="cuda", dtype=torch.bfloat16)
for _ in range(50):
    matrix = torch.tanh(matrix @ matrix)
torch.cuda.synchronize()
print("ready", flush=True)
while not arguments.go.exists():
    time.sleep(0.01)
began, products = time.monotonic(), 0
while time.monotonic() - began < arguments.seconds:
    for _ in range(20):
        matrix = torch.tanh(matrix @ matrix)
    torch.cuda.synchronize()
    products += 20
print(json.dumps({"each_second": products / (time.monotonic() - began)}))
