"""Draw the sample from the full lists.

python examples/trace/packing/sample.py FOLDER

The folder holds openb_node_list_gpu_node.csv and openb_pod_list_default.csv, as they are or with
.gz. Writes the two files beside this one.
"""

import gzip
import random
import sys
from pathlib import Path

NODES, PODS = 60, 400
SEED = 20261120


def main() -> None:
    folder, here = Path(sys.argv[1]), Path(__file__).parent
    draw(folder / "openb_node_list_gpu_node.csv", NODES, here / "openb_node_list_gpu_node.csv")
    draw(folder / "openb_pod_list_default.csv", PODS, here / "openb_pod_list_sample.csv")


def draw(source: Path, count: int, target: Path) -> None:
    """Write the header and `count` rows drawn at random, in their order."""
    if source.exists():
        text = source.read_text()
    else:
        text = gzip.decompress(Path(f"{source}.gz").read_bytes()).decode()
    header, *rows = text.splitlines()
    picked = sorted(random.Random(SEED).sample(range(len(rows)), count))
    target.write_text("\n".join([header, *(rows[i] for i in picked)]) + "\n")


if __name__ == "__main__":
    main()
