"""How near the memory that a model is said to need comes to what an engine takes.

    python -m benchmarks.model_memory [--scale 1] [--json]

Models of over half a GB are written with random weights and loaded by llama.cpp's own server; what
its process had in memory after a prompt that fills a batch stands beside the estimate, and beside
the usual rule of thumb: the size of the file and a fifth. The header of a vocabulary of 128,000
tokens is read by ours and by the package `gguf`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import gguf

from longshore.activities.serving.model_files import read_model
from longshore.models.model_memory import Serving
from longshore.scheduling.serving.memory import estimate
from tests.support.gguf_models import Model, write
from tests.support.llama_engine import allocated

_ENGINE = 0.06
"""GB that the process of an engine takes beside its buffers here, without a GPU: Python, and the
libraries."""
_LARGE = Model(layers=24, width=1024, heads=16, key_heads=4, inner=4096, vocabulary=32_000)
_CASES: tuple[tuple[str, Model, Serving], ...] = (
    ("llama", _LARGE, Serving(context=4096, concurrency=2)),
    ("llama, 8 at a time", _LARGE, Serving(context=8192, concurrency=8)),
    (
        "llama, Q8_0",
        replace(_LARGE, layers=36, type=gguf.GGMLQuantizationType.Q8_0),
        Serving(context=4096, concurrency=2),
    ),
    (
        "gemma3, windows",
        replace(_LARGE, architecture="gemma3", key=64, window=1024, tied=True),
        Serving(context=16_384, concurrency=2),
    ),
    (
        "qwen3moe, 8 experts",
        replace(_LARGE, architecture="qwen3moe", key=64, layers=12, inner=1024, experts=8, used=2),
        Serving(context=4096, concurrency=2),
    ),
    ("mamba", replace(_LARGE, architecture="mamba", layers=40), Serving(concurrency=4)),
)


@dataclass(frozen=True)
class Row:
    """One model, in GB."""

    model: str
    said: float
    used: float
    ratio: float
    by_thumb: float
    """The rule of thumb, as a ratio of what is used."""


@dataclass(frozen=True)
class Headers:
    """How long the header of a large vocabulary takes to read, in seconds."""

    ours: float
    package: float
    times: float


def memory(scale: int = 1) -> Iterator[Row]:
    """Yield a row for each model; `scale` divides its layers."""
    with tempfile.TemporaryDirectory() as folder:
        for name, whole, serving in _CASES:
            model = replace(whole, layers=max(whole.layers // scale, 6))
            path = write(model, Path(folder) / "model.gguf")
            serving = serving.model_copy(update={"overhead": _ENGINE})
            said = estimate(read_model(str(path)), serving).total / 1e9
            used = allocated(path, serving, serving.batch + 1).resident / 1e9
            thumb = path.stat().st_size * 1.2 / 1e9
            path.unlink()
            yield Row(name, said, used, said / used, thumb / used)


def headers(vocabulary: int = 128_000) -> Headers:
    """Return the times of one reading each, the best of three of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Model(vocabulary=vocabulary), Path(folder) / "model.gguf", None)
        ours = min(_timed(lambda: read_model(str(path))) for _ in range(3))
        package = _timed(lambda: gguf.GGUFReader(path))
    return Headers(ours, package, package / ours)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=int, default=1, help="divides the layers of each model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if not options.json:
        print(f"{'model':24}{'said GB':>10}{'used GB':>10}{'said / used':>14}{'by thumb':>10}")
    rows: list[Row] = []
    for row in memory(options.scale):
        rows.append(row)
        if not options.json:
            print(f"{row.model:24}{row.said:10.3f}{row.used:10.3f}{row.ratio:14.2f}"
                  f"{row.by_thumb:10.2f}", flush=True)  # fmt: skip
    read = headers()
    if options.json:
        print(json.dumps({"models": [asdict(row) for row in rows], "headers": asdict(read)}))
        return
    print(f"header with 128,000 tokens: ours {read.ours:.3f} s, the package gguf "
          f"{read.package:.2f} s, {read.times:.0f} times")  # fmt: skip


if __name__ == "__main__":
    main()
