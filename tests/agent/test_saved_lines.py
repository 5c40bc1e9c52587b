"""The lines by which a job says that it has saved: added, or the file written anew."""

from pathlib import Path

import pytest

from longshore.activities.node.saved_lines import SavedLines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "saved"


def news(lines: SavedLines) -> tuple[int, int | None]:
    """Return how many checkpoints are new, and the step of the last."""
    found = lines.read()
    assert found.problem == ""
    return found.checkpoints, found.last.step if found.last else None


@pytest.mark.parametrize(
    "texts",
    [
        ["saved, step 9\n", "saved, step 10\n", "saved, step 11\n", "saved, step 100\n"],
        ["saved, step 9\n", "saved, step 10, took 3.5s\n", "saved, step 11\n"],
        ["saved, step 1\n", "saved, step 2\n\n\n", "saved, step 3\n\n\n\n"],
    ],
    ids=["a digit more", "a word more", "lines more"],
)
def test_a_file_that_is_written_anew_is_read_anew(path: Path, texts: list[str]) -> None:
    lines = SavedLines(path)
    for text in texts:
        path.write_text(text)  # as `>` in a shell: the same file
        said = text.split(",")[1].split()[1]
        assert news(lines) == (1, int(said)), text
        assert news(lines) == (0, None)


def test_lines_that_are_added_are_read_once(path: Path) -> None:
    lines = SavedLines(path)
    path.write_text("saved, step 1\nsaved, st")
    assert news(lines) == (1, 1)
    with path.open("a") as file:
        file.write("ep 2\nsaved, step 3\n")
    assert news(lines) == (2, 3)
    with path.open("a") as file:
        file.write("\nsaved\n")
    assert news(lines) == (1, None)
    assert news(lines) == (0, None)


def test_a_file_in_the_place_of_another_is_read_anew(path: Path) -> None:
    lines = SavedLines(path)
    path.write_text("saved, step 1\n")
    assert news(lines) == (1, 1)
    draft = path.with_name("draft")
    draft.write_text("saved, step 1\nsaved, step 2\n")
    draft.rename(path)
    assert news(lines) == (2, 2)
