"""What the process of a malleable job is told of its size."""

from pathlib import Path

from longshore.activities.node.launch import prepare
from longshore.models.placement import Rank
from tests.agent.conftest import LocalNode


def sizes_seen(
    box: LocalNode, folder: Path, *nodes: tuple[int, ...], before: int | None = None
) -> dict[str, str]:
    """Return the variables of rank 0 of a job with these GPUs on its nodes."""
    request = box.request("true", gang={}, malleable={"min": 2, "max": 8, "step": 2})
    ranks = tuple(
        Rank(rank=rank, node_id=f"n{rank}", epoch=1, gpu_indices=gpus)
        for rank, gpus in enumerate(nodes)
    )
    placement = request.placement.model_copy(
        update={"gpu_indices": nodes[0], "ranks": ranks if len(nodes) > 1 else ()}
    )
    asked = request.model_copy(update={"placement": placement, "gpus_before": before})
    env = prepare(asked, box.identity, box.inventory, folder / "run", folder / "job").env
    return {
        name.removeprefix("LONGSHORE_GPUS"): value
        for name, value in env.items()
        if name.startswith("LONGSHORE_GPUS") and name != "LONGSHORE_GPUS_PER_NODE"
    }


def test_it_is_told_its_size_and_its_bounds(box: LocalNode, tmp_path: Path) -> None:
    assert sizes_seen(box, tmp_path, (1, 3)) == {"": "2", "_MIN": "2", "_MAX": "8"}


def test_of_several_nodes_the_sum_and_the_size_before(box: LocalNode, tmp_path: Path) -> None:
    seen = sizes_seen(box, tmp_path, (1, 3), (0, 1), before=8)
    assert seen == {"": "4", "_MIN": "2", "_MAX": "8", "_BEFORE": "8"}


def test_a_rigid_job_is_told_nothing_of_sizes(box: LocalNode, tmp_path: Path) -> None:
    env = prepare(box.request("true"), box.identity, box.inventory, tmp_path / "run",
                  tmp_path / "job").env  # fmt: skip
    assert not {name for name in env if name.startswith("LONGSHORE_GPUS")}
