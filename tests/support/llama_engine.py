"""Runs llama.cpp's server on a model, and reads from its log what it has allocated."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from longshore.models.model_memory import CacheType, Serving

_SCRIPT = """
import json, os, sys, urllib.request
import xllamacpp as llama
path, context, requests, kind, batch, tokens = sys.argv[1], *map(int, sys.argv[2:])
wanted = llama.CommonParams()
wanted.model.path = path
wanted.n_ctx, wanted.n_parallel, wanted.n_ubatch = context, requests, batch
wanted.cache_type_k = wanted.cache_type_v = llama.ggml_type(kind)
wanted.no_extra_bufts = True  # no second copy of weights in another order, as GPUs have none
wanted.n_batch = max(batch, wanted.n_batch)
wanted.fit_params, wanted.cache_ram_mib, wanted.verbosity = False, 0, 4
server = llama.Server(wanted)
if tokens:
    asked = {"prompt": [5] * tokens, "n_predict": 1}
    address = server.listening_address + "/completion"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(address, json.dumps(asked).encode(), headers)
    ).read()
used = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("resident", used[0].split()[1], flush=True)
os._exit(0)
"""
_TYPES = {
    CacheType.F32: 0, CacheType.F16: 1, CacheType.Q4_0: 2, CacheType.Q4_1: 3, CacheType.Q5_0: 6,
    CacheType.Q5_1: 7, CacheType.Q8_0: 8, CacheType.BF16: 30,
}  # fmt: skip
MIB = 2**20


@dataclass(frozen=True)
class Allocated:
    """What an engine says it has allocated: bytes, of each buffer to a hundredth of a MiB."""

    weights: float
    cache: float
    state: float
    compute: float
    resident: int
    """The most bytes of its process that were in memory."""
    log: str


def allocated(model: Path, serving: Serving, prompt: int = 0) -> Allocated:
    """Start an engine, and end it when it is ready, or has answered a prompt of so many tokens."""
    context = -(-serving.context // 256) * 256 * serving.concurrency
    asks = (context, serving.concurrency, _TYPES[serving.cache_type], serving.batch, prompt)
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(model), *map(str, asks)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    log = ran.stderr
    assert ran.returncode == 0, log

    def total(what: str) -> float:
        return MIB * sum(map(float, re.findall(rf"{what} buffer size =\s+([\d.]+) MiB", log)))

    resident = re.search(r"resident (\d+)", ran.stdout)
    assert resident is not None, ran.stdout
    return Allocated(
        weights=total("model"), cache=total("KV"), state=total("RS"),
        compute=total("compute") + total("output"), resident=int(resident[1]) * 1024, log=log,
    )  # fmt: skip
