"""Which cycles of a graph are named: each edge on one lies on one that is named."""

import time
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.dag_edges import Edge
from longshore.scheduling.dag_cycles import cycles
from longshore.scheduling.dag_problems import problems

MANY = 1000


def edges_of(cycle: Sequence[str]) -> set[tuple[str, str]]:
    return set(zip(cycle, (*cycle[1:], cycle[0]), strict=True))


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw what each of a few jobs comes after, in any order."""
    names = draw(st.permutations([f"j{number}" for number in range(draw(st.integers(1, 9)))]))
    return {
        name: draw(st.lists(st.sampled_from(names).filter(name.__ne__), max_size=4, unique=True))
        if len(names) > 1
        else []
        for name in names
    }


def reached(after: Mapping[str, Sequence[str]], start: str) -> dict[str, int]:
    """Return what a job comes after, and in how many steps."""
    found, ahead = {start: 0}, [start]
    for job in ahead:
        for up in after[job]:
            if up not in found:
                found[up] = found[job] + 1
                ahead.append(up)
    return found


@given(graphs(), st.integers(0, 3))
def test_each_edge_on_a_cycle_is_on_a_named_one(after: dict[str, list[str]], few: int):
    found = cycles(after, MANY)
    assert found.left_out is None
    named: set[tuple[str, str]] = set()
    position = {name: number for number, name in enumerate(after)}
    for cycle in found.found:
        assert len(set(cycle)) == len(cycle)
        assert all(up in after[name] for name, up in edges_of(cycle))
        assert cycle[0] == min(cycle, key=position.__getitem__)
        news = edges_of(cycle) - named
        shortest = [reached(after, up).get(name, MANY) + 1 for name, up in news]
        assert len(cycle) in shortest, "the shortest for an edge that none before it has"
        named |= edges_of(cycle)
    on_one = {
        (name, up) for name, ups in after.items() for up in ups if name in reached(after, up)
    }
    assert named == on_one
    first = cycles(after, few)
    assert first.found == found.found[:few]
    assert (first.left_out is None) == (len(found.found) <= few)
    if first.left_out:
        assert first.left_out in on_one.difference(*map(edges_of, first.found))
        assert set(first.left_out) <= first.beside


def test_a_cycle_behind_shorter_ones_is_named():
    edge = Edge()
    file = {"p": {"q": edge}, "q": {"r": edge, "p": edge}, "r": {"s": edge, "q": edge},
            "s": {"p": edge}}  # fmt: skip
    assert [each.message for each in problems(file, most=10)] == [
        "a cycle: p comes after q (success); q comes after p (success)",
        "a cycle: q comes after r (success); r comes after q (success)",
        "a cycle: p comes after q (success); q comes after r (success); "
        "r comes after s (success); s comes after p (success)",
    ]


def test_exactly_as_many_cycles_as_are_told_are_all():
    edge = Edge()
    for pairs, told in ((20, 20), (21, 21)):
        file = {f"j{n}": {f"j{n ^ 1}": edge} for n in range(2 * pairs)}
        found = problems(file, most=100)
        assert len(found) == told
        assert ("there may be more" in found[-1].message) == (pairs > 20)


def large() -> Iterator[dict[str, list[str]]]:
    names = [f"j{number}" for number in range(MANY)]
    yield {name: [other for other in names if other != name] for name in names}
    # No cycle, one through all, and many edges back beside one chain.
    yield {name: names[:number] for number, name in enumerate(names)}
    yield {name: names[:number] or names[-1:] for number, name in enumerate(names)}
    yield {name: [names[n - 1], *names[n + 1 :]] for n, name in enumerate(names)}


def test_a_large_dense_graph_takes_no_time():
    for after in large():
        began = time.process_time()
        cycles(after, 20)
        assert time.process_time() - began < 20, "0.1 to 0.3 s where nothing else runs"
