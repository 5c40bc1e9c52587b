"""The benchmark of slots on a short trace: its world, its ways, and that ours is better."""

import csv
import gzip
import random
from pathlib import Path

import pytest

from benchmarks.slots import WAYS, Row, replay, seeds_of
from benchmarks.slots_plans import measure
from benchmarks.slots_world import World, requests_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of ten minutes: four requests a second."""
    made = tmp_path_factory.mktemp("traces")
    chance = random.Random(1)
    for name in ("conv", "code"):
        with gzip.open(made / f"azure_llm_2023_{name}_dev.csv.gz", "wt") as file:
            lines = csv.writer(file)
            lines.writerow(["t_s", "context_tokens", "generated_tokens"])
            at = 0.0
            for _ in range(2400):
                at += chance.expovariate(4)
                lines.writerow([f"{at:.3f}", chance.randint(100, 3000), chance.randint(5, 300)])
    return made


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    return [row for found in replay(folder, 1.5, [1, 2], [15]) for row in found]


def test_a_seed_makes_the_same_requests(folder: Path):
    path = folder / "azure_llm_2023_conv_dev.csv.gz"
    assert requests_of(path, 1, 1.5) == requests_of(path, 1, 1.5)
    assert requests_of(path, 2, 1.5) != requests_of(path, 1, 1.5)
    assert seeds_of("2-4") == [2, 3, 4]


def test_every_way_answers_every_request(rows: list[Row]):
    assert [row.way for row in rows if not row.way.startswith("-")] == 2 * list(WAYS)
    assert all(row.loads > 0 for row in rows)


def test_ours_is_sooner_than_the_others(rows: list[Row]):
    others = [row for row in rows if not row.way.startswith("ours")]
    assert all(row.mean_ratio < 0.9 for row in others)


def test_a_load_is_played_the_same_again(folder: Path):
    requests, sizes = requests_of(folder / "azure_llm_2023_conv_dev.csv.gz", 1, 1.5)
    first, again = (World(requests, sizes, 15).run(WAYS["ours"]()) for _ in range(2))
    assert first == again


def test_a_fleet_is_planned():
    times = measure(gpus=64, models=40, waiting=10, rounds=3)
    assert times.slots > 100
    assert times.loads > 0
