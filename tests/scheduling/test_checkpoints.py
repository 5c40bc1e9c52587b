"""Which checkpoints count, which stay, and what an attempt goes on from."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.checkpoint import LocalCheckpoint, ManifestName, SavedLine
from longshore.scheduling.checkpoints import (
    belongs_to,
    gathered,
    halvings,
    resume,
    resumes_without_store,
    surplus,
    whole,
)

RANKS = st.integers(1, 3)


@st.composite
def stored(draw: st.DrawFn) -> list[ManifestName]:
    """What the ranks of a job stored in up to three attempts, some of it not by all."""
    names: dict[str, ManifestName] = {}
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        ranks, steps = draw(RANKS), draw(st.booleans())
        for number in range(1, draw(st.integers(1, 5)) + 1):
            for rank in draw(st.sets(st.integers(0, ranks - 1))):
                name = ManifestName(
                    attempt=attempt, number=number, rank=rank, ranks=ranks,
                    step=number * 10 if steps else None,
                )  # fmt: skip
                names[str(name)] = name
    return draw(st.permutations(list(names.values())))


@given(stored())
def test_a_name_says_all_that_it_was_made_of(names: list[ManifestName]) -> None:
    assert [ManifestName.parse(str(name)) for name in names] == names


@given(stored())
def test_whole_means_from_every_rank_once(names: list[ManifestName]) -> None:
    found = whole(names)
    for one in found:
        assert [name.rank for name in one.manifests] == list(range(one.manifests[0].ranks))
        assert len({(name.attempt, name.number, name.step) for name in one.manifests}) == 1
    assert list(found) == sorted(found, key=lambda one: one.order, reverse=True)
    assert sum(map(len, gathered(names))) == len(names)


@given(stored(), st.integers(1, 3), RANKS)
def test_the_newest_whole_ones_stay_whoever_prunes(
    names: list[ManifestName], keep: int, ranks: int
) -> None:
    left = list(names)
    for rank in range(ranks):
        gone = surplus(left, keep, rank, ranks)
        left = [name for name in left if str(name) not in gone]
    assert whole(left)[:keep] == whole(names)[:keep]
    kept = whole(names)[:keep]
    if len(kept) == keep:
        assert whole(left) == kept


def test_a_damaged_one_takes_no_place_of_those_that_stay() -> None:
    old, used, damaged, new = (ManifestName(attempt=1, number=number) for number in range(1, 5))
    names = (old, used, damaged, new)
    assert surplus(names, 2, 0, 1) == {str(old), str(used)}
    assert surplus(names, 2, 0, 1, [damaged]) == {str(old)}
    assert surplus(names, 1, 0, 1, [damaged]) == {str(old), str(used), str(damaged)}


@given(stored(), st.integers(1, 3))
def test_what_may_become_whole_stays(names: list[ManifestName], keep: int) -> None:
    found = whole(names)[:keep]
    newer = {str(name) for name in names if found and name.order > found[0].order}
    for rank in range(3):
        assert not surplus(names, keep, rank, 3) & newer


def test_a_gang_goes_on_from_the_store_and_one_process_from_the_newer() -> None:
    names = [ManifestName(attempt=1, number=2)]
    (newest,) = whole(names)
    local = LocalCheckpoint(folder="/f", attempt=1, number=2)
    older = local.model_copy(update={"number": 1})
    assert resume(local, newest, ranks=1).keep_local
    assert not resume(older, newest, ranks=1).keep_local
    assert not resume(None, newest, ranks=1).keep_local
    assert not resume(local, newest, ranks=2).keep_local
    assert resume(None, None, ranks=1).keep_local


def test_where_nothing_whole_is_stored_all_ranks_of_a_gang_begin_anew() -> None:
    saved_alone = LocalCheckpoint(folder="/f", attempt=1, number=2, ranks=2)
    for local in (saved_alone, None):
        assert resume(local, None, ranks=2).anew
    assert resume(saved_alone, None, ranks=1).anew  # one rank's part
    assert not resume(saved_alone.model_copy(update={"ranks": 1}), None, ranks=1).anew


def test_without_the_store_only_who_ran_here_last_goes_on() -> None:
    saved_here = LocalCheckpoint(folder="/f", attempt=1, number=2)
    went_on_here = saved_here.model_copy(update={"ran": 3})
    assert resumes_without_store(saved_here, attempt=2, ranks=1)
    assert not resumes_without_store(saved_here, attempt=3, ranks=1)
    assert resumes_without_store(went_on_here, attempt=4, ranks=1)
    assert not resumes_without_store(went_on_here, attempt=5, ranks=1)
    assert not resumes_without_store(went_on_here, attempt=4, ranks=2)
    part_of_a_gang = went_on_here.model_copy(update={"ranks": 2})
    assert not resumes_without_store(part_of_a_gang, attempt=4, ranks=1)
    assert not resumes_without_store(None, attempt=2, ranks=1)


@given(st.integers(0, 20), st.integers(1, 8))
def test_an_unchanged_file_is_for_one_rank_to_publish(origin: int, ranks: int) -> None:
    owners = [rank for rank in range(ranks) if belongs_to(origin, rank, ranks)]
    assert len(owners) == 1
    assert origin >= ranks or owners == [origin]


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 5))
def test_each_second_save_is_left_out_by_each_halving(first: int, apart: int, times: int) -> None:
    left = [first + number * apart for number in range(1, 65)]
    for halved in range(times):
        left = [step for step in left if halvings(step, apart) > halved]
        assert len(left) == 64 >> (halved + 1)
        assert {after - step for step, after in pairwise(left)} == {apart << (halved + 1)}


def test_a_line_says_step_and_time() -> None:
    assert SavedLine.parse("saved") == SavedLine()
    said = SavedLine.parse(" saved, step 12, took 3.5s\r")
    assert said
    assert said.took
    assert (said.step, said.took.total_seconds()) == (12, 3.5)
    for line in ("", "saved 12", "Saved, step 12", "saved, step -1", "saved, step 12 of 20"):
        assert SavedLine.parse(line) is None
