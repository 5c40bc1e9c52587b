"""What models are said to need, beside what an engine takes."""

from benchmarks.model_memory import headers, memory


def test_models_are_said_to_need_what_they_take_and_little_more() -> None:
    rows = list(memory(scale=6))
    assert {row.model for row in rows} >= {"llama", "gemma3, windows", "mamba"}
    for row in rows:
        # These are a sixth as large: what the process itself takes counts more.
        assert 0.95 <= row.ratio <= 1.3, row


def test_both_readers_are_timed() -> None:
    read = headers(2_000)
    assert read.times == read.package / read.ours > 0
