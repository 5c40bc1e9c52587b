"""The page of nodes as HTML: what a cell says, what is folded, what it costs with thousands."""

import re
import time
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from longshore.console.gpu_cells import cells_html, in_words
from longshore.console.nodes_view import (
    FOLDED_FROM,
    LINES,
    NO_DOMAIN,
    groups_of,
    lines_of,
    pages_html,
    pools_html,
    sums_html,
)
from longshore.models.domains import DomainNode, DomainView, PoolTopology
from longshore.models.node import NodeState
from longshore.models.pool import PoolSpec
from longshore.models.views import GPUView, NodeView, PartView, PoolView

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_gpu(index: int, **fields: Any) -> GPUView:
    basics = {"index": index, "model": "H100", "vram": 80, "vram_used": 0}
    return GPUView.model_validate({**basics, **fields})


def held(index: int, job: str, **fields: Any) -> GPUView:
    return a_gpu(index, job_id=f"{job}-id", job_name=job, vram_used=80, **fields)


def a_node(name: str = "node-a", *gpus: GPUView, **fields: Any) -> NodeView:
    basics = {
        "id": name, "pool": "default", "tier": "FAST", "provider": "own", "state": "READY",
        "epoch": 1, "simulated": False, "gpu_type": "H100", "gpus": gpus, "cpus": 64,
        "cpus_used": 8, "ram": 512, "ram_used": 64, "registered_at": NOW - HOUR, "labels": {},
    }  # fmt: skip
    return NodeView.model_validate({**basics, **fields})


def idle(name: str, **fields: Any) -> NodeView:
    return a_node(name, *(a_gpu(i) for i in range(8)), **fields)


def full(name: str, **fields: Any) -> NodeView:
    return a_node(name, *(held(i, f"of-{name}") for i in range(8)), **fields)


def topology(domain: str, nodes: list[NodeView], pool: str = "default") -> PoolTopology:
    """Return what `longshore topology` says of these nodes; of no domain without its name."""
    members = tuple(
        DomainNode(
            node_id=node.id, state=node.state, flavor="h100", gpus=len(node.gpus),
            used=(used := sum(bool(gpu.job_id or gpu.parts) for gpu in node.gpus)),
            free=len(node.gpus) - used if node.state is NodeState.READY else 0,
        )
        for node in nodes
    )  # fmt: skip
    if not domain:
        return PoolTopology(pool=pool, unlabelled=members)
    return PoolTopology(pool=pool, domains=(DomainView.of(domain, members),))


def page_of(nodes: list[NodeView], domain: str = "eu/c1/a", *, fold: bool = True) -> str:
    groups = groups_of(nodes, [topology(domain, nodes)])
    lines = lines_of(groups, fold=fold)[:LINES]
    return pools_html(lines, groups, NOW, {"show": "folded"})


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def test_every_use_of_a_gpu_has_a_look_and_words_of_its_own():
    shared = a_gpu(
        2, vram_used=60, milli_used=750,
        parts=(PartView(job_id="x", job_name="nb", vram=40, milli=500),
               PartView(job_id="y", job_name="ev", vram=20, milli=250)),
    )  # fmt: skip
    mig = a_gpu(
        3, mig=True, vram_used=40,
        parts=(PartView(job_id="z", job_name="serve", vram=40, mig="3g.40gb", slices=0b1111),),
    )  # fmt: skip
    node = a_node(
        "n", held(0, "train"), held(1, "gang", spare=True), shared, mig, a_gpu(4, vram_used=9),
        a_gpu(5),
    )  # fmt: skip
    assert in_words(node) == (
        "GPU 0 held by train, GPU 1 spare of gang, "
        "GPU 2 shared, 750 of 1000 in use: nb 500/1000 and ev 250/1000, "
        "GPU 3 in MIG mode, 4 of 8 slices in use: serve 3g.40gb, "
        "GPU 4 with 9 GB in use outside Longshore, GPU 5 free"
    )
    cells = cells_html(node)
    looks = re.findall(r'<i class="g ([^"]*)" title', cells)
    assert re.fullmatch(r"c\d", looks[0])
    assert re.fullmatch(r"spare c\d", looks[1])
    assert looks[2:] == ["parts", "parts mig", "taken", "free"]
    assert [text_of(cell) for cell in cells.split("</i>")[:-1]] == [
        "a", "b", "75", "4/8", "×", "·",
    ]  # fmt: skip
    assert 'title="GPU 1 spare of gang"' in cells
    lent = a_node("n", held(0, "gang", spare=True, lent_to="guest-id"))
    assert in_words(lent) == "GPU 0 spare of gang, lent to guest-id"
    assert "b guest-id on a lent spare" in text_of(page_of([lent]))
    assert f'role="img" aria-label="{in_words(node).replace(chr(39), "&#x27;")}"' in cells


def test_a_gpu_that_engines_share_is_as_full_as_its_memory():
    shared = a_gpu(
        0, vram=80, vram_used=60, milli_used=750,
        parts=(PartView(job_id="x", job_name="chat", vram=40, milli=500, runs_engine=True),
               PartView(job_id="y", job_name="tally", vram=20, milli=250, runs_engine=True)),
    )  # fmt: skip
    node = a_node("n", shared)
    assert in_words(node) == "GPU 0 shared, 60GB of 80GB in use: chat 40GB and tally 20GB"
    cells = cells_html(node)
    assert text_of(cells) == "75"
    assert re.findall(r"height:(\d+)%", cells) == ["50", "25"]


def test_an_idle_gpu_is_not_free_where_its_node_takes_no_work():
    node = idle("n", state="DRAINING")
    assert in_words(node) == "GPUs 0-7 idle, on a node that takes no work"
    assert 'class="g free"' not in cells_html(node)


def test_a_row_says_all_of_a_node():
    node = a_node(
        "node-a", held(0, "train"), a_gpu(1), state="DRAINING", state_reason="a fan is <loud>",
        simulated=True, hostname="rack7", expires_at=NOW + 3 * HOUR,
    )  # fmt: skip
    html = page_of([node])
    said = text_of(html)
    for part in (
        "Pool default", "1 node, 1 used and 0 free of 2 GPUs", "Domain eu/c1/a", "node-a",
        "FAST · own · rack7", "cordoned a fan is <loud>", "2 × H100 simulated", "8 of 64",
        "64 of 512GB", "in 3h", "20 Nov 15:00:00", "a train 1 GPU",
    ):  # fmt: skip
        assert part in said, part
    assert "75 % of its time since it joined is left" in html
    assert 'href="/jobs/train-id"' in html
    assert "<loud>" not in html
    assert html.count('scope="col"') == 6
    assert '<th scope="row" class="fold">' in html
    assert '<th scope="rowgroup"' in html


@pytest.mark.parametrize(
    ("fields", "said"),
    [({}, "never"), ({"expires_at": NOW - HOUR}, "over"), ({"expires_at": NOW + HOUR}, "in 1h")],
)
def test_when_a_node_ends(fields: dict[str, Any], said: str):
    assert said in text_of(page_of([idle("n", **fields)]))


def test_nodes_of_no_domain_stand_together_and_last():
    labelled, other = idle("a"), idle("b")
    both = PoolTopology(
        pool="default",
        domains=topology("eu/c1/a", [labelled]).domains,
        unlabelled=topology("", [other]).unlabelled,
    )
    groups = groups_of([other, labelled], [both])
    assert [(group.domain, group.nodes[0].id) for group in groups] == [("eu/c1/a", "a"), ("", "b")]
    assert [g.domain for g in groups_of([other, labelled], [both], "eu/c1/a")] == ["eu/c1/a"]
    assert [g.domain for g in groups_of([other, labelled], [both], NO_DOMAIN)] == [""]
    assert "No domain" in pools_html(lines_of(groups, fold=True), groups, NOW, {})


def test_what_is_alike_is_one_row_and_what_is_not_is_not():
    alike = [idle(f"idle-{n}") for n in range(5)] + [full(f"full-{n}") for n in range(4)]
    odd = [
        a_node("mixed", held(0, "train"), *(a_gpu(i) for i in range(1, 8))),
        idle("other-gpu", gpu_type="A100"),
        idle("cordoned", state="DRAINING"),
        a_node("standby", *(held(i, "gang", spare=True) for i in range(8))),
    ]
    nodes = sorted([*alike, *odd], key=lambda node: node.id)
    groups = groups_of(nodes, [topology("eu/c1/a", nodes)])
    lines = lines_of(groups, fold=True)
    assert sorted(len(line.nodes) for line in lines) == [1, 1, 1, 1, 4, 5]
    assert sorted(line.nodes[0].id for line in lines if len(line.nodes) == 1) == sorted(
        node.id for node in odd
    )
    said = text_of(pools_html(lines, groups, NOW, {"show": "folded", "page": "2"}))
    assert "5 nodes idle-0 to idle-4 ready all idle: 40 GPUs" in said
    assert "4 nodes full-0 to full-3 ready all full: 32 GPUs" in said
    assert "4 jobs List them" in said
    html = pools_html(lines, groups, NOW, {"show": "folded", "page": "2"})
    assert "?show=all&amp;pool=default&amp;domain=eu%2Fc1%2Fa" in html
    assert len(lines_of(groups, fold=False)) == len(nodes)


def test_few_that_are_alike_are_not_folded():
    nodes = [idle(f"n-{n}") for n in range(FOLDED_FROM - 1)]
    groups = groups_of(nodes, [topology("a", nodes)])
    assert len(lines_of(groups, fold=True)) == FOLDED_FROM - 1


def test_the_sums_are_those_of_the_topology():
    nodes = [full("a"), idle("b"), idle("c", state="DRAINING", simulated=True)]
    groups = groups_of(nodes, [topology("x", nodes)])
    pool = PoolView(spec=PoolSpec(), nodes=3, gpus=24, gpus_used=8, queued=3, held=1, running=1)
    said = text_of(sums_html(groups, [pool], None, ""))
    for part in (
        "Nodes 3 2 ready", "GPUs 24", "Used 8 33 %", "Free 8", "Idle, take no work 8",
        "Simulated 8", "Jobs running 1", "Jobs waiting 3 and 1 held",
    ):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize(
    ("pool", "domain", "waiting"), [(None, "", 7), ("default", "", 3), (None, "x", 3)]
)
def test_jobs_that_wait_in_a_pool_without_nodes_count(pool: str | None, domain: str, waiting: int):
    nodes = [idle("a")]
    pools = [
        PoolView(spec=PoolSpec(), nodes=1, gpus=8, gpus_used=0, queued=3, held=0, running=0),
        PoolView(
            spec=PoolSpec(name="none"), nodes=0, gpus=0, gpus_used=0, queued=4, held=0, running=0
        ),
    ]
    groups = groups_of(nodes, [topology("x", nodes)], domain or None)
    said = text_of(sums_html(groups, pools, pool, domain))
    assert said.endswith(f"Jobs waiting {waiting}")


def test_pages_lead_on_and_back():
    asked = {"pool": "a b", "show": "all"}
    assert pages_html(1, 1, asked) == ""
    first, middle, last = (pages_html(page, 3, asked) for page in (1, 2, 3))
    assert "Previous" not in first
    assert "Next" not in last
    assert "pool=a+b&amp;show=all&amp;page=3" in middle
    assert "Page 2 of 3" in text_of(middle)


def test_three_thousand_nodes_are_little_for_a_browser():
    mixed = [
        a_node(f"mixed-{n:04}", held(0, f"job-{n}"), *(a_gpu(i) for i in range(1, 8)))
        for n in range(1000)
    ]
    nodes = [*mixed, *(idle(f"idle-{n:04}") for n in range(1000)),
             *(full(f"full-{n:04}") for n in range(1000))]  # fmt: skip
    before = time.process_time()
    groups = groups_of(nodes, [topology("eu/c1/a", nodes)])
    lines = lines_of(groups, fold=True)
    html = pools_html(lines[:LINES], groups, NOW, {})
    took = time.process_time() - before
    assert len(lines) == 1002
    assert html.count("<tr") < LINES + 10
    assert len(html) < 400_000
    assert took < 50, "1 s where nothing else runs"
