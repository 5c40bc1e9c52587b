"""Makes sample.csv again from the full list of pods of the trace (see README.md beside it).

    python examples/trace/sample.py openb_pod_list_default.csv.gz > examples/trace/sample.csv

Of each shape it takes pods at even distances through the list, so that early and late, short and
long ones are there. Nothing is drawn at random: the same list gives the same sample.
"""

import csv
import gzip
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

SHAPES = {"8 GPUs": 3, "4 GPUs": 4, "2 GPUs": 5, "1 GPU": 17, "part of a GPU": 16}
"""How many pods of each shape are taken."""

Row = dict[str, str]


def read_list(path: Path) -> list[Row]:
    """Return the rows of a list of pods, from a .csv or .csv.gz file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(text.splitlines()))


def pick(rows: Iterable[Row]) -> list[Row]:
    """Return the sample. Only pods that ran count: those with a time when they were scheduled."""
    by_shape: dict[str, list[Row]] = {shape: [] for shape in SHAPES}
    for row in rows:
        shape = shape_of(row)
        if shape in by_shape and row["scheduled_time"] and row["deletion_time"]:
            by_shape[shape].append(row)
    picked = [row for shape, count in SHAPES.items() for row in _evenly(by_shape[shape], count)]
    # In the order of a hash of the names the shapes are mixed, and mixed the same way each time.
    return sorted(picked, key=lambda row: hashlib.sha256(row["name"].encode()).digest())


def shape_of(row: Row) -> str:
    """Return the shape in words: ``8 GPUs``, ``1 GPU``, ``part of a GPU``."""
    count = int(row["num_gpu"])
    if count == 1:
        return "1 GPU" if int(row["gpu_milli"]) == 1000 else "part of a GPU"
    return f"{count} GPUs"


def _evenly(rows: list[Row], count: int) -> list[Row]:
    return [rows[(2 * number + 1) * len(rows) // (2 * count)] for number in range(count)]


def main() -> None:
    rows = pick(read_list(Path(sys.argv[1])))
    writer = csv.DictWriter(sys.stdout, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
