"""What is kept of the files of a model."""

from longshore.models.model_memory import ModelMemory, Serving
from longshore.models.model_registry import ModelFacts


def facts(files: str = "", files_since: int = 0) -> ModelFacts:
    memory = ModelMemory(
        source="", architecture="llama", serving=Serving(), weights=1, tensor_types={}, cache=0,
        cells=0, state=0, compute=0, overhead=0, total=1, exact=True,
    )  # fmt: skip
    return ModelFacts(memory=memory, files=files, files_since=files_since)


def test_what_is_not_known_of_files_is_not_written():
    """A version before them reads what this one stores then."""
    assert facts().model_dump().keys().isdisjoint({"files", "files_since"})
    assert ModelFacts.model_validate_json(facts("a", 2).model_dump_json()) == facts("a", 2)


def test_files_that_were_not_read_now_are_told_from_others_later():
    """Else a store that is away for a moment hides the next change of them."""
    unread = facts().after(facts("a", 2), 3)
    assert (unread.files, unread.files_since) == ("a", 2)
    assert facts("a").after(unread, 4).files_since == 2
    assert facts("b").after(unread, 4).files_since == 4
