"""What of a folder is sent: packs, chunks, and what stays where it lies."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.snapshot import Part
from longshore.scheduling.code_packs import (
    LARGE,
    LARGEST_OBJECT,
    MOST_SPARSE,
    PackPlan,
    Placed,
    plan_packs,
)


def _part(name: int, size: int, offset: int = 0) -> Part:
    return Part(object=f"{name:064x}.00000000", offset=offset, size=size)


def _stored(plan: PackPlan, sizes: dict[str, int]) -> dict[str, Placed]:
    """Return where all lies once a plan was carried out."""
    found: dict[str, dict[int, Part]] = {sha: dict(placed) for sha, placed in plan.kept.items()}
    number = 1000 + sum(len(placed) for placed in plan.kept.values())
    for pack in plan.packs:
        number, offset = number + 1, 0
        for sha in pack:
            found[sha][0] = _part(number, sizes[sha], offset)
            offset += sizes[sha]
    for chunk in plan.chunks:
        number += 1
        found[chunk.sha256][chunk.at] = _part(number, chunk.size)
    return dict(found)


SIZES = st.one_of(
    st.integers(0, 100_000), st.integers(LARGE - 2, LARGE + 2), st.integers(0, 60_000_000)
)


@given(st.lists(SIZES, max_size=40), st.data())
def test_all_of_each_content_is_in_parts_and_nothing_is_sent_twice(
    sizes: list[int], data: st.DataObject
) -> None:
    contents = {f"{number:064x}": size for number, size in enumerate(sizes)}
    plan = plan_packs(contents, {})
    assert all(sum(contents[sha] for sha in pack) <= LARGEST_OBJECT for pack in plan.packs)
    stored = _stored(plan, contents)
    for sha, size in contents.items():
        assert sum(part.size for part in stored.get(sha, {}).values()) == size
    lost = data.draw(st.sets(st.sampled_from(sorted(stored)) if stored else st.nothing()))
    again = plan_packs(contents, {sha: at for sha, at in stored.items() if sha not in lost})
    assert again.anew == lost


def test_packs_of_many_small_files_are_nearly_full() -> None:
    contents = {f"{number:064x}": 20_000 for number in range(50_000)}
    plan = plan_packs(contents, {})
    assert len(plan.packs) == 63  # 1 GB
    assert all(len(pack) * 20_000 > LARGEST_OBJECT / 2 for pack in plan.packs[:-1])


def test_a_chunk_that_arrived_of_a_large_file_is_not_sent_again() -> None:
    sha, size = "a" * 64, 40_000_000
    plan = plan_packs({sha: size}, {sha: {0: _part(1, LARGEST_OBJECT)}})
    assert [(chunk.at, chunk.size) for chunk in plan.chunks] == [
        (16_000_000, 16_000_000), (32_000_000, 8_000_000),
    ]  # fmt: skip


def test_a_part_of_another_size_is_not_taken_for_the_content() -> None:
    assert plan_packs({"a" * 64: 10}, {"a" * 64: {0: _part(1, 9)}}).packs == (("a" * 64,),)


def test_many_nearly_empty_objects_are_packed_anew() -> None:
    few = {f"{number:064x}": 100 for number in range(MOST_SPARSE)}
    known: dict[str, Placed] = {sha: {0: _part(at, 100)} for at, sha in enumerate(few)}
    assert not plan_packs(few, known).anew
    many = {**few, "f" * 64: 100, "e" * 64: 5_000_000}
    known |= {"f" * 64: {0: _part(900, 100)}, "e" * 64: {0: _part(901, 5_000_000)}}
    plan = plan_packs(many, known)
    assert plan.anew == many.keys() - {"e" * 64}
    assert len(plan.packs) == 1
