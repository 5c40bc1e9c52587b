"""Nodes of a state file, as the packer gets them."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from longshore.models.document import load_document
from longshore.models.job import Tier
from longshore.models.mig import positions_of
from longshore.models.node import GPU
from longshore.models.statefile import ClusterState, Links, NodeEntry
from longshore.models.topology import LinkClass, NodeTopology

STATE = """
blocks:
  - {id: b, provider: prime, tier: FLEX, end: 2026-11-21T12:00:00Z}
nodes:
  - id: short
    block: b
    gpus: 4
    vram: 40GB
    used: {0: job-a, 2: {vram: 10GB}, 3: {job: job-b, vram: 20GB}}
  - id: full
    block: b
    provider: own
    tier: FAST
    expires_at: 2026-11-20T13:00:00+01:00
    gpus: [{index: 3, vram: 24GB}, {index: 1, vram: 24GB, job_id: x}]
"""


def test_a_block_fills_in_what_its_node_leaves_out() -> None:
    short, full = load_document(STATE, "state.yaml", ClusterState).packer_nodes()
    assert (short.provider, short.tier, short.block_id) == ("prime", Tier.FLEX, "b")
    assert short.expires_at == datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert (full.provider, full.tier) == ("own", Tier.FAST)
    assert full.expires_at == datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_short_and_full_lists_of_gpus() -> None:
    short, full = load_document(STATE, "state.yaml", ClusterState).packer_nodes()
    assert short.gpus == (
        GPU(index=0, vram=40, vram_used=40, job_id="job-a"),
        GPU(index=1, vram=40),
        GPU(index=2, vram=40, vram_used=10),
        GPU(index=3, vram=40, vram_used=20, job_id="job-b"),
    )
    assert [gpu.index for gpu in full.gpus] == [3, 1]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"gpus": 2, "used": {2: "x"}}, "there is no GPU 2 among 2"),
        ({"gpus": -1}, "must be from 0 to 1,024, got -1"),
        ({"gpus": ({"index": 0, "vram": 1},), "used": {0: "x"}}, "not both"),
        ({"gpus": ({"index": 0, "vram": 1},) * 2}, "GPU indices must differ"),
    ],
)
def test_gpus_that_do_not_agree_are_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        NodeEntry.model_validate({"id": "a", **fields})


def test_links_written_short_are_a_topology() -> None:
    entry = NodeEntry.model_validate(
        {
            "id": "a",
            "gpus": 3,
            "links": {"islands": [[0, 2], [1]], "within": "nvlink", "nics": {1: "mlx5_0"}},
            "conformance": "driver-550",
        }
    )
    node = entry.node(None)
    near, far = LinkClass.NVLINK, LinkClass.PCIE5
    assert node.topology == NodeTopology(
        gpus=(0, 1, 2),
        links=((None, far, near), (far, None, far), (near, far, None)),
        nics=(None, "mlx5_0", None),
    )
    assert node.conformance == "driver-550"
    assert NodeEntry(id="b", gpus=1).node(None).topology is None


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ({"islands": [[0, 1], [1]]}, "GPU 1 is in two islands"),
        ({"islands": [[0]], "nics": {3: "x"}}, "nics: GPU 3 is in no island"),
        ({"islands": [[0]], "between": "isdn"}, "Input should be"),
    ],
)
def test_links_that_do_not_agree_are_refused(links: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Links.model_validate(links)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([{"id": "a", "gpus": 1}, {"id": "a", "gpus": 1}], "the id a is given twice"),
        ([{"id": "a", "gpus": 1, "block": "zz"}], "node a: no block zz"),
    ],
)
def test_names_that_do_not_agree_are_refused(nodes: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ClusterState.model_validate({"nodes": nodes})


def test_gpus_in_parts_are_written_short() -> None:
    entry = NodeEntry.model_validate(
        {
            "id": "n", "gpus": 4, "gpu_type": "H100", "mig": [2, 3],
            "used": {0: {"milli": 300, "vram": "20GB"}, 2: {"slices": [4, 5, 6, 7]}},
        }
    )  # fmt: skip
    shared, empty, half, idle = entry.node(None).gpus
    assert (shared.milli_used, shared.vram_used, shared.job_id) == (300, 20, None)
    assert empty.parts is None
    assert (half.slices_used, half.vram_used) == (0b11110000, 40)
    assert (idle.mig, idle.slices_used) == (positions_of("H100", 80), 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"used": {0: {"milli": 300}}}, "milli needs vram"),
        ({"used": {0: {"milli": 300, "vram": 1, "job": "a"}}}, "one of job, milli and slices"),
        ({"used": {0: {"slices": [1]}}}, "GPU 0 has slices in use: name it in mig as well"),
        ({"mig": [0], "used": {0: "job"}}, "GPU 0 is in MIG mode: give the slices in use"),
        ({"mig": [4]}, "mig: there is no GPU 4 among 4"),
        ({"mig": [0], "gpu_type": "T4"}, "mig: T4 of 80GB is none of A100-40GB"),
        ({"mig": [0], "gpus": [{"index": 0, "vram": 80}]}, "or a full list of `gpus`"),
        ({"used": {0: {"slices": [8]}}, "mig": [0]}, "less than 8"),
    ],
)
def test_parts_that_cannot_be_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NodeEntry.model_validate({"id": "n", "gpus": 4, "gpu_type": "H100", **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cpus": 8, "cpus_used": 9}, "cpus_used is 9 cores, more than the 8 cores that there is"),
        ({"ram": "64GB", "ram_used": "65GB"}, "ram_used is 65GB, more than the 64GB"),
        ({"storage_bandwidth": 4, "storage_used": 5}, "storage_used is 5GB/s, more than the 4GB"),
        ({"power": 1000, "power_used": 1001}, "power_used is 1001W, more than the 1000W"),
        ({"used": {1: {"job": "a", "vram": 81}}}, "GPU 1: vram_used is 81GB, more than the 80GB"),
        (
            {"gpus": [{"index": 3, "vram": 80, "vram_used": 81}]},
            "GPU 3: vram_used is 81GB, more than the 80GB that there is",
        ),
        ({"links": {"islands": [[0, 4]]}}, "links: there is no GPU 4 among 4"),
    ],
)
def test_more_in_use_than_there_is_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NodeEntry.model_validate({"id": "n", "gpus": 4, **fields})


def test_what_nobody_limits_may_be_in_use() -> None:
    NodeEntry.model_validate({"id": "n", "gpus": 4, "storage_used": 5, "power_used": 700})
