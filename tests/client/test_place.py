"""`longshore place` on the example files, and how its answer looks."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from client.place import run_place
from client.place_view import render_place, slots
from models.errors import SpecError
from models.placement import Decision, RejectionCode

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def shown(*, terminal: bool, width: int = 100) -> str:
    state, job, decision = run_place(EXAMPLES / "state.yaml", EXAMPLES / "job.yaml", NOW)
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


def test_slots_without_a_node_draw_what_is_known() -> None:
    assert slots((1, 2), None) == "·##"
    assert slots((), None) == ""
