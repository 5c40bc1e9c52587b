"""`longshore place` on the example files, and how its answer looks."""

import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from longshore.client.gang_view import slots
from longshore.client.place import by_rule, foreseen_by_rule, rules_of_gangs, run_place
from longshore.client.place_view import render_foreseen, render_gang_rules, render_place
from longshore.models.domains import Foreseen
from longshore.models.errors import SpecError
from longshore.models.placement import Decision, PackingRule, RejectionCode
from longshore.models.pool import PoolSpec
from longshore.models.preemption import PreemptionPlan, Victim
from longshore.scheduling.cycle import foresee
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import NOW as THEN
from tests.support.packing import POLICY, a_job, a_node, running

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def shown(
    *, terminal: bool, width: int = 100, state: str = "state.yaml", job: str = "job.yaml"
) -> str:
    return drawn(EXAMPLES / state, EXAMPLES / job, terminal=terminal, width=width)


def drawn(state_file: Path, job_file: Path, *, terminal: bool, width: int) -> str:
    state, job, decision = run_place(state_file, job_file, NOW)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
    assert state.now is not None
    view = render_place(decision, job, state.now, state.packer_nodes(), plain=not terminal)
    console.print(view, soft_wrap=not terminal)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_example_goes_to_the_contiguous_gpus() -> None:
    state, job, decision = run_place(EXAMPLES / "state.yaml", EXAMPLES / "job.yaml", NOW)
    assert state.now == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert (job.id, job.gpus) == ("train-small", 4)
    assert (decision.node_id, decision.gpu_indices) == ("half-full", (4, 5, 6, 7))
    assert [c.node_id for c in decision.candidates] == ["half-full", "fragmented"]
    assert [(r.node_id, r.code) for r in decision.rejections] == [
        ("expiring", RejectionCode.EXPIRY)
    ]
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


def test_a_state_that_names_no_rule_is_decided_as_a_pool_that_names_none(tmp_path: Path) -> None:
    text = (EXAMPLES / "state.yaml").read_text()
    assert "  rule: seed-score" in text
    unnamed = re.sub(r"policy:\n  rule: seed-score.*\n", "", text)
    (tmp_path / "state.yaml").write_text(unnamed)
    state, _, decision = run_place(tmp_path / "state.yaml", EXAMPLES / "job.yaml", NOW)
    assert state.policy == PoolSpec().packing
    assert decision.terms is not None
    assert decision.terms.rule is PackingRule.KEEP_ROOM
    # The half-full node with a run of GPUs, not the one with 0, 2, 4 and 6.
    assert (decision.node_id, decision.gpu_indices) == ("half-full", (4, 5, 6, 7))


def test_the_clock_counts_where_the_state_names_no_time(tmp_path: Path) -> None:
    (tmp_path / "state.yaml").write_text("nodes: []\n")
    state, job, decision = run_place(tmp_path / "state.yaml", EXAMPLES / "job.yaml", NOW)
    assert (state.now, job.submitted_at) == (NOW, NOW)
    assert decision.node_id is None


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "state.yaml").write_text("nodez: []\n")
    with pytest.raises(SpecError, match=r"state\.yaml:1: nodez: .* did you mean nodes\?"):
        run_place(tmp_path / "state.yaml", EXAMPLES / "job.yaml", NOW)


def test_plain_text_has_every_number_and_cuts_nothing() -> None:
    text = shown(terminal=False, width=20)
    assert "\x1b" not in text
    assert "half-full   [xxxx####]  0.719  0.719  0.000  0.000   0.000\n" in text
    assert "fragmented  [#x#x#x#x]  0.250  0.750  1.000" in text
    assert "expiring  has 1h left, job wants 1h and a margin of 5m  expires-too-soon\n" in text
    assert max(len(line) for line in text.splitlines()) > 20


def test_a_terminal_gets_tables() -> None:
    text = shown(terminal=True)
    assert "\x1b[" in text
    assert "[xxxx####]" in text
    assert "Candidates, best first" in text


def test_storage_and_power_of_the_candidates_are_shown(tmp_path: Path) -> None:
    state, job = tmp_path / "state.yaml", tmp_path / "job.yaml"
    state.write_text(
        "now: 2026-11-20T12:00:00Z\n"
        "nodes:\n"
        "- {id: roomy, gpus: 8, storage_bandwidth: 10GB/s, storage_used: 2, power: 5.6kW,"
        " power_used: 700, gpu_power: 700W}\n"
        "- {id: unlimited, gpus: 8}\n"
        "- {id: slow, gpus: 8, storage_bandwidth: 1GB/s}\n"
        "- {id: weak, gpus: 8, power: 1kW}\n"
    )
    job.write_text(
        "name: reads\ngpus: 4\nstorage_bandwidth: 3GB/s\npower_per_gpu: 500W\ncommand: x\n"
    )
    text = drawn(state, job, terminal=False, width=200)
    for part in ("storage", "2GB/s of 10GB/s", "power", "700W of 5600W", "no limit"):
        assert part in text
    assert "3GB/s of storage, 500W a GPU" in text
    assert "slow  has 1GB/s of 1GB/s storage bandwidth free, job wants 3GB/s" in text
    assert "weak  has 1000W of 1000W power left, job draws 2000W for 4 GPUs" in text


def test_labels_that_a_job_asks_for_are_shown_with_what_the_nodes_have(tmp_path: Path) -> None:
    state = (EXAMPLES / "state.yaml").read_text()
    state = state.replace("  - id: fragmented", "  - id: fragmented\n    labels: {zone: a}")
    (tmp_path / "state.yaml").write_text(state)
    job = (EXAMPLES / "job.yaml").read_text() + "constraints: [zone=a, '!ib']\n"
    (tmp_path / "job.yaml").write_text(job)
    text = drawn(tmp_path / "state.yaml", tmp_path / "job.yaml", terminal=False, width=100)
    assert text.startswith("EXISTING_NODE  fragmented")
    assert "128GB RAM, on a node with zone=a, on a node with !ib, for 1h" in text
    assert re.search(r"half-full +has no label zone, job wants zone=a +label-mismatch", text)


def test_what_data_is_there_counts_and_is_shown(tmp_path: Path) -> None:
    state, job = tmp_path / "state.yaml", tmp_path / "job.yaml"
    state.write_text(
        "now: 2026-11-20T12:00:00Z\n"
        "nodes:\n- {id: a, gpus: 8}\n- {id: b, gpus: 8, data: [imagenet]}\n"
    )
    data = "{imagenet: {from: 's3://sets/imagenet/', size: 30GB}, other: 10GB}"
    job.write_text(f"name: reads\ndata: {data}\ncommand: x\n")
    _, _, decision = run_place(state, job, NOW)
    assert decision.node_id == "b"
    text = drawn(state, job, terminal=False, width=200)
    assert "data on the node +0.150" in text


def test_slots_without_a_node_draw_what_is_known() -> None:
    assert slots((1, 2), None) == "·##"
    assert slots((), None) == ""


def test_the_example_of_a_gang_goes_to_one_domain() -> None:
    files = EXAMPLES / "state-topology.yaml", EXAMPLES / "gang.yaml"
    _, job, decision = run_place(*files, NOW)
    assert job.gang is not None
    shares = [(m.node_id, len(m.gpu_indices), m.group) for m in decision.members]
    assert shares == [("a2", 8, 0), ("a3", 8, 1)]
    assert (decision.node_id, decision.gpu_indices) == ("a2", tuple(range(8)))
    assert decision.gang is not None
    left = {room.domain: room.residual for room in decision.gang.domains}
    assert left == {"lone": 4, "eu-north/c1/a": 6, "eu-north/c1/b": 7}
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


def test_plain_text_has_the_groups_and_what_each_domain_has_left() -> None:
    text = shown(terminal=False, width=20, state="state-topology.yaml", job="gang.yaml")
    assert "EXISTING_NODE  16 GPUs in 2 groups on 2 nodes of eu-north/c1/a\n" in text
    assert "16 x GPU with 40GB in groups of 8, 16 cores" in text
    assert "0      eu-north/c1/a  a2    [########]  pcie5 64 GB/s\n" in text
    assert "eu-north/c1/a  3      24    22    22      6\n" in text
    assert "Candidates" not in text


def test_a_terminal_gets_tables_of_groups_and_domains() -> None:
    text = shown(terminal=True, state="state-topology.yaml", job="gang.yaml")
    assert "│ 1     │ eu-north/c1/a │ a3   │ [########] │ pcie5 64 GB/s │" in text
    assert "│ eu-north/c1/b │     2 │   16 │    7 │      7 │    7 │" in text


def test_each_rule_has_a_value_and_reasons_for_a_gang() -> None:
    state, job, decision = run_place(EXAMPLES / "state-topology.yaml", EXAMPLES / "gang.yaml", NOW)
    nodes = state.packer_nodes()
    foreseen = Foreseen(
        pool="default", at=NOW, request=job, decision=decision, running=0, ahead=0,
        placed_ahead=0, kept_ahead=0, simulated=True,
        by_rule=by_rule(PackingRule, job, nodes, state.policy, NOW),
        by_gang_packing=by_rule(rules_of_gangs(job), job, nodes, state.policy, NOW),
    )  # fmt: skip
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    console.print(render_foreseen(foreseen, nodes, plain=True), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    heading, *rows = text[text.index("By rule") :].splitlines()[1 : len(PackingRule) + 2]
    assert heading.split() == ["rule", "node", "GPUs", "value", "why"]
    left = "6 of 22 free GPUs left in eu-north/c1/a"
    said = f"a2, a3  GPUs 0-7; GPUs 0-7  1 domain, 2 nodes  {decision.reason}; {left}"
    assert {row.split("  ", 1)[1].strip() for row in rows} == {said}
    (_, _, *rows) = text[text.index("By gang_packing") :].splitlines()[:4]
    assert [row.split()[:2] for row in rows] == [["best-fit", "(used)"], ["pack-to-empty", "a2,"]]
    assert "its nodes are simulated. Nothing was placed." in text


def test_whom_it_stops_comes_before_when_it_would_start_else() -> None:
    node, job = a_node("n", gpus=1), a_job("this", gpus=2)
    nobody = PreemptionPlan(job_id=job.id, at=THEN, reason="nobody may be stopped for it")
    victim = Victim(
        job_id="low", priority=1, nodes=("n",), gpus=1, recompute=0, write=0, requeue=0, total=0
    )
    stops = nobody.model_copy(update={"victims": (victim,), "reason": "stop low: it loses $0.00"})
    for plan, first in ((stops, "Preemption: stop low"), (nobody, "REQUEST_MORE_CAPACITY")):
        foreseen = Foreseen(
            pool="default", at=THEN, request=job, running=1, ahead=0, placed_ahead=0,
            kept_ahead=0, decision=foresee(job, [], [node], [], POLICY, THEN).decision, stops=plan,
        )  # fmt: skip
        console = Console(file=io.StringIO(), force_terminal=False, width=100)
        console.print(render_foreseen(foreseen, [node], plain=True), soft_wrap=True)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert text.startswith(first)
        assert ("If nobody were stopped:\nREQUEST_MORE_CAPACITY" in text) is plan.preempts
        assert text.count("Preemption: ") == 1


def test_the_rules_of_gangs_are_compared_where_they_differ() -> None:
    """One takes the domain with the least room that suffices, the other the one with most."""
    nodes = [in_domain("A", "a1"), in_domain("A", "a2"), in_domain("B", "b1")]
    gang = a_gang(6)
    used = foresee(gang, [], nodes, [], POLICY, THEN).decision
    rules = rules_of_gangs(gang)
    found = by_rule(rules, gang, nodes, POLICY, THEN)
    assert foreseen_by_rule(rules, used, gang, [], nodes, [], POLICY, THEN) == found
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    console.print(render_gang_rules(found, used.gang and used.gang.packing, plain=True))
    assert isinstance(console.file, io.StringIO)
    said = " ".join(console.file.getvalue().split())
    assert "best-fit (used) b1 GPUs 0-5 1 domain, 1 node 6 GPUs on 1 node of" in said
    assert "2 of 8 free GPUs left in r/c/B pack-to-empty a1 GPUs 0-5 1 domain, 1 node" in said
    assert "10 of 16 free GPUs left in r/c/A" in said
    assert rules_of_gangs(a_job()) == ()


def test_by_each_rule_a_pool_keeps_what_waits_before_the_job_and_what_runs() -> None:
    nodes = [a_node("n1", busy=range(4)), a_node("n2", busy=range(6))]
    wide = a_job("wide", 8, priority=9)
    runs = [running("old", "n1", range(4), timedelta(minutes=30))]
    mine = a_job("mine", 2)
    used = foresee(mine, [wide], nodes, runs, POLICY, THEN).decision
    found = foreseen_by_rule(PackingRule, used, mine, [wide], nodes, runs, POLICY, THEN)
    assert found[POLICY.rule] is used
    # The four that are free on n1 are kept for the wide job, whatever the rule.
    assert {decision.node_id for decision in found.values()} == {"n2"}
    assert list(found) == list(PackingRule)


def test_the_job_before_it_goes_where_each_rule_puts_it() -> None:
    nodes = [a_node("n1", busy=range(6)), a_node("n2", busy=range(2))]
    first, mine = a_job("first", 2, priority=9), a_job("mine", 2)
    for rule in PackingRule:
        policy = POLICY.model_copy(update={"rule": rule})
        alone = foresee(mine, [first], nodes, [], policy, THEN).decision
        used = foresee(mine, [first], nodes, [], POLICY, THEN).decision
        found = foreseen_by_rule([rule], used, mine, [first], nodes, [], POLICY, THEN)
        assert found == {rule: alone}


def test_spares_and_other_groups_are_drawn_apart(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "{name: two, command: 'true', gpus: 6, gpu_type: h100, expected_duration: 1m,"
        " gang: {group_gpus: 3, spares_per_group: 1, allow_cross_group_spread: false}}"
    )
    text = drawn(EXAMPLES / "state-topology.yaml", job, terminal=False, width=20)
    lines = text.splitlines()
    first = lines.index("Groups") + 2
    assert lines[first : first + 4] == [
        "0      eu-north/c1/a  a1    [xx+++###]  nvlink 450 GB/s",
        "       spares         a2    [#+······]",
        "1      eu-north/c1/a  a1    [xx###+++]  pcie5 64 GB/s",
        "       spares         a2    [+#······]",
    ]
    assert lines[0].endswith("6 GPUs in 2 groups on 1 node of eu-north/c1/a, 2 of 2 spares found")


def test_a_gang_that_does_not_fit_says_what_each_domain_has(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{name: big, command: 'true', gpus: 48, cpus: 1, gang: {group_gpus: 24}}")
    text = drawn(EXAMPLES / "state-topology.yaml", job, terminal=False, width=20)
    assert text.startswith("REQUEST_MORE_CAPACITY  no known nodes could ever hold it together: ")
    assert "needs 2 groups of 24 GPUs, each in one domain, and 1 would fit; " in text
    assert "eu-north/c1/a has 24, eu-north/c1/b has 16 (6 nodes: " in text  # when empty
    assert "lone  does not name its region, cluster, fabric.domain" in text


def test_a_gang_whose_groups_are_too_large_is_refused_where_it_is_read(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: big\ncommand: 'true'\ngpus: 8\ngang: {group_gpus: 9}\n")
    with pytest.raises(SpecError, match=r"gang\.group_gpus: is 9, but the job has 8 GPUs in all"):
        run_place(EXAMPLES / "state-topology.yaml", job, NOW)


def test_shares_and_instances_are_drawn() -> None:
    share = shown(terminal=False, state="state-shares.yaml", job="share.yaml")
    assert "500/1000 of GPU 3: the best of 1 candidate" in share
    assert "half (FAST): 500/1000 of a GPU with 20GB, 1 core," in share
    # Held; 6 and 2 tenths in use; the job; a GPU in MIG mode of which half is taken, one empty.
    assert "[x62#5···]" in share
    wide = shown(terminal=False, state="state-shares.yaml", job="wide-share.yaml")
    assert "250/1000 of each of GPUs 1-2: the best of 1 candidate" in wide
    assert "wide (FAST): 250/1000 of each of 2 GPUs with 10GB, 1 core," in wide
    assert "[x##·5···]" in wide
    instance = shown(terminal=False, state="state-shares.yaml", job="mig.yaml")
    assert "box-1  [x62·#···] slice 6" in instance


@pytest.mark.parametrize(
    ("state", "job", "said"),
    [
        ("job.yaml", "state.yaml", "job.yaml: is a job file: --state takes the nodes"),
        ("job.yaml", "job.yaml", "job.yaml: is a job file: --state takes the nodes"),
        ("state.yaml", "state.yaml", "state.yaml: is a state file: --job takes the job"),
    ],
)
def test_files_in_each_other_s_place_are_said_in_one_sentence(
    state: str, job: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        run_place(EXAMPLES / state, EXAMPLES / job, NOW)
    assert len(refused.value.problems) == 1
