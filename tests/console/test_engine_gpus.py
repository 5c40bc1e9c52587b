"""GPUs with engines on the page of services: what engines hold of their memory, and take."""

from datetime import UTC, datetime
from typing import Any

import pytest

from longshore.console.engine_gpus import MOST, engine_gpus, gpus_html
from longshore.models.service import ReplicaView
from longshore.models.serving import EngineStage
from tests.console.test_nodes_view import a_gpu, a_node

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


def an_engine(job_id: str, **fields: Any) -> ReplicaView:
    usual = {
        "job_id": job_id, "service": "chat", "model": "tiny", "revision": 1,
        "stage": EngineStage.READY, "node_id": "n", "gpu_indices": (0,), "leased": 20_000,
        "used": 15_000, "created_at": NOW,
    }  # fmt: skip
    return ReplicaView.model_validate(usual | fields)


def test_each_gpu_has_what_its_engines_hold_and_take_and_what_jobs_have():
    node = a_node("n", a_gpu(0, vram=80, vram_used=50), a_gpu(1, vram=80, vram_used=10), a_gpu(2))
    wide = an_engine("wide", gpu_indices=(0, 1), leased=10_000, used=8_000, service="wide")
    waits = an_engine("waits", node_id=None, gpu_indices=(), stage=None)
    zero, one = engine_gpus([an_engine("a"), wide, waits], [node])
    assert (zero.index, one.index) == (0, 1)
    assert (zero.held, zero.taken, zero.others, zero.free) == pytest.approx((30, 19, 20, 30))
    assert (one.held, one.taken, one.others, one.free) == pytest.approx((10, 4, 0, 70))
    html = gpus_html([zero, one])
    assert (
        "take 19.0GB of the 30.0GB that they hold, jobs have 20.0GB, 30.0GB of 80GB free" in html
    )
    assert 'class="part used" style="width:23.75%"' in html
    assert 'href="/services/wide"' in html


def test_engines_that_take_more_than_they_hold_are_marked():
    node = a_node("n", a_gpu(0, vram=80, vram_used=20))
    html = gpus_html(engine_gpus([an_engine("a", used=30_000)], [node]))
    assert "part bad" in html


def test_no_more_than_so_many_are_shown_and_what_others_wrote_is_not_obeyed():
    bad = "<script>"
    nodes = [a_node(f"{bad}{number:03}", a_gpu(0, vram=80)) for number in range(MOST + 5)]
    engines = [an_engine("a", node_id=node.id, service=bad) for node in nodes]
    html = gpus_html(engine_gpus(engines, nodes))
    assert html.count("<tr>") == MOST + 1
    assert "The first 100 of 105 GPUs." in html
    assert bad not in html
