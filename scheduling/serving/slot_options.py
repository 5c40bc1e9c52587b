"""Where a slot of a model may be loaded, and what each way costs.

Fewest GPUs first. On one GPU: where memory is free, the cheapest and then the tightest; else where
the slots that leave, or the wait until a GPU loads nothing else, cost least. On several: on one
node, those that the fastest links connect.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from longshore.models.placement import GPUChoice
from longshore.models.text import amount, format_places, span
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.links import choose_linked, slowest_link
from longshore.scheduling.serving.sizes import split_layers
from longshore.scheduling.serving.slot_board import Board, Floats, Ints
from longshore.scheduling.serving.slots import ServedModel, SlotOption
from longshore.scheduling.serving.victims import Asker, Candidate
from longshore.scheduling.words import format_link

_LOOKED_AT = 32
"""GPUs, or nodes, whose victims are compared: those that look cheapest."""
REJECTED = 3
"""Options that a decision names beside the chosen one."""
_MOST_SPLIT = 16
"""GPUs over which layers are spread."""
_HOUR = timedelta(hours=1)


class Asked(NamedTuple):
    """A model that asks for a slot."""

    model: ServedModel
    asker: Asker
    requests: int


class Way(NamedTuple):
    """A way to give a model a slot, before `option_of` says it in words. Of many a few are named,
    and words take as long as the search."""

    rows: tuple[int, ...]
    """Its GPUs, as the board counts them."""
    mbs: tuple[int, ...]
    leaving: tuple[Candidate, ...]
    wait: timedelta
    """Until its GPUs load nothing else."""
    drain: timedelta
    """Until those that leave have answered what they have."""
    waiting: int
    """Micro-dollars of the longer of the two."""
    free_at: datetime | None
    """When its GPUs load nothing else; None: now."""
    price: int
    """Micro-dollars: of the wait, and of those that leave."""


def options(board: Board, asked: Asked) -> list[Way]:
    """Return the ways for the fewest GPUs that there is one for, cheapest first."""
    for mbs in asked.model.sizes:
        found = _on_one(board, asked, mbs[0]) if len(mbs) == 1 else _on_several(board, asked, mbs)
        if found:
            return found
    if asked.model.split is None:
        return []
    return _in_layers(board, asked, 2 if asked.model.sizes else 1)


def free_gpu(board: Board, model: ServedModel, mb: int) -> int | None:
    """Return the GPU with free memory that is cheapest, then the tightest; None where none is."""
    rows = np.flatnonzero(board.lasting(model) & ~board.busy & (board.room >= mb))
    if not len(rows):
        return None
    rows = rows[board.price[rows] == board.price[rows].min()]
    return int(rows[np.argmin(board.room[rows])])


def wait_price(board: Board, asked: Asked, wait: timedelta) -> int:
    """Return micro-dollars that it costs that the requests wait, with those that come meanwhile,
    each for half of it."""
    hours = wait / _HOUR
    return round(board.policy.wait_price * hours * (asked.requests + asked.model.use * hours / 2))


def _on_one(board: Board, asked: Asked, mb: int) -> list[Way]:
    if (free := free_gpu(board, asked.model, mb)) is not None:
        return [_way_of(board, asked, [free], [mb], ())]
    could = board.room + board.yielding(asked.asker).mb
    rows = np.flatnonzero(board.lasting(asked.model) & (could >= mb))
    # No less than this does it cost there, so those that may be cheapest are looked at.
    bound = board.least_prices(rows, mb, asked.asker, asked.model.load_time)
    for at in np.flatnonzero(board.busy[rows]):
        bound[at] += wait_price(board, asked, _wait_for(board, [int(rows[at])]))
    order = np.argsort(bound, kind="stable")[:_LOOKED_AT]
    found: list[Way] = []
    for row, least_price in zip(rows[order].tolist(), bound[order].tolist(), strict=True):
        if _settled(found, least_price):
            break
        if (way := _way(board, asked, [row], [mb])) is not None:
            found.append(way)
    return _cheapest(board, found)


def _on_several(board: Board, asked: Asked, mbs: Sequence[int]) -> list[Way]:
    """Return the ways on GPUs of one node that load nothing."""
    number, mb = len(mbs), max(mbs)
    found: list[Way] = []
    for usable, free, least_price, prices in _nodes(board, asked, number, mb):
        if _settled(found, least_price):
            break
        for rows in _sets(board, usable, free, number):
            if _settled(found, max([prices[row] for row in rows])):
                continue
            if (way := _way(board, asked, rows, mbs)) is not None:
                found.append(way)
    return _cheapest(board, found)


def _in_layers(board: Board, asked: Asked, fewest: int) -> list[Way]:
    """Return the ways on the fewest GPUs of a node over which the layers can be spread."""
    split = asked.model.split
    if split is None:
        return []
    could = board.room + board.yielding(asked.asker).mb
    for number in range(fewest, min(split.layers, _MOST_SPLIT) + 1):
        found: list[Way] = []
        for usable, _, _, _ in _nodes(board, asked, number, split.fixed + split.mb):
            for room in (board.room, could):
                rows = sorted(sorted(usable, key=lambda row: (-int(room[row]), row))[:number])
                mbs = split_layers(split, [int(room[row]) for row in rows])
                if mbs is not None and (way := _way(board, asked, rows, mbs)) is not None:
                    found.append(way)
                    break
        if found:
            return _cheapest(board, found)
    return []


def _nodes(
    board: Board, asked: Asked, number: int, mb: int
) -> Iterator[tuple[list[int], list[int], float, dict[int, float]]]:
    """Yield for each node with enough GPUs those that could have so many MB, of these the ones
    that have it free, what a set of them costs at least, and each of them; of many nodes those
    that look cheapest, these first."""
    could = board.room + board.yielding(asked.asker).mb
    rows = np.flatnonzero(board.lasting(asked.model) & ~board.busy & (could >= mb))
    if not len(rows):
        return
    costs = board.least_prices(rows, mb, asked.asker, asked.model.load_time)
    bound = _dearest_of_cheapest(board, rows, costs, number)
    for node in np.argsort(bound, kind="stable")[:_LOOKED_AT].tolist():
        least_price = float(bound[node])
        if least_price == math.inf:  # too few of its GPUs
            return
        begin, end = np.searchsorted(rows, board.first_of[node : node + 2])
        usable = rows[begin:end]
        free = usable[board.room[usable] >= mb].tolist()
        usable = usable.tolist()
        prices = dict(zip(usable, costs[begin:end].tolist(), strict=True))
        yield usable, free, least_price, prices


def _dearest_of_cheapest(board: Board, rows: Ints, costs: Floats, number: int) -> Floats:
    """Return what so many GPUs of each node cost at least, infinity where it has fewer: one slot
    may have memory of several, and is to count once."""
    begin = board.first_of
    of_node = np.full((len(begin) - 1, max(int(np.diff(begin).max()), number)), math.inf)
    nodes = board.node_of[rows]
    of_node[nodes, rows - begin[nodes]] = costs
    return np.partition(of_node, number - 1, axis=1)[:, number - 1]


def _settled(found: Sequence[Way], least_price: float) -> bool:
    """Return whether no way that costs so much at least is the best, or needs be named."""
    if len(found) <= REJECTED:
        return False
    return least_price > min(each.price for each in found) + 1


def _sets(board: Board, usable: list[int], free: list[int], number: int) -> list[list[int]]:
    """Return the sets of GPUs of a node to compare: the best connected of those with free memory,
    or of all."""
    found: list[list[int]] = []
    for rows in (free, usable) if len(free) < len(usable) else (free,):
        if len(rows) < number:
            continue
        node = board.gpus[rows[0]].node
        by_index = {board.gpus[row].index: row for row in rows}
        mask = mask_of(by_index)
        chosen = choose_linked(
            board.state.topologies.get(node), mask, mask, number, GPUChoice.CONTIGUOUS
        )
        found.append([by_index[index] for index in chosen.indices])
    return found


def _way(board: Board, asked: Asked, rows: Sequence[int], mbs: Sequence[int]) -> Way | None:
    leaving = board.leaving_on(rows, mbs, asked.asker, asked.model.load_time)
    return None if leaving is None else _way_of(board, asked, rows, mbs, leaving)


def _way_of(
    board: Board,
    asked: Asked,
    rows: Sequence[int],
    mbs: Sequence[int],
    leaving: tuple[Candidate, ...],
) -> Way:
    wait, drain = _wait_for(board, rows), board.drain_time(leaving)
    waiting = wait_price(board, asked, max(wait, drain))
    return Way(
        tuple(rows), tuple(mbs), leaving, wait, drain, waiting,
        board.now + wait if any(row in board.free_at for row in rows) else None,
        waiting + sum(each.price for each in leaving),
    )  # fmt: skip


def option_of(board: Board, asked: Asked, way: Way) -> SlotOption:
    """Return a way in words."""
    memory = board.memory_of(way.rows, way.mbs)
    victims = tuple(board.victim(each, asked.asker, asked.model.load_time) for each in way.leaving)
    where = format_places([(memory[0].gpu.node, [each.gpu.gpu_index for each in memory])])
    topology = board.state.topologies.get(memory[0].gpu.node)
    where += format_link(slowest_link(topology, [each.gpu.gpu_index for each in memory]))
    parts: list[str] = []
    if victims:
        leave = "; ".join(victim.reason for victim in victims)
        parts.append(f"without {leave}")
    if way.free_at is not None or way.drain:
        after = "the load there" if way.free_at is not None else "their last requests"
        waits = span(max(way.wait, way.drain))
        parts.append(f"after {after}, {amount(way.waiting)} for {waits} of waiting")
    if not parts:
        parts.append("with memory that is free")
    evictions = sum(victim.price for victim in victims)
    reason = f"{where} {', '.join(parts)}"
    return SlotOption(memory, victims, evictions, way.waiting, way.free_at, reason)


def _wait_for(board: Board, rows: Sequence[int]) -> timedelta:
    """Return how long it takes until GPUs load nothing else."""
    ends: list[datetime] = [board.free_at[row] for row in rows if row in board.free_at]
    return max([end - board.now for end in ends], default=timedelta(0))


def _cheapest(board: Board, found: Sequence[Way]) -> list[Way]:
    """Return ways by price; of equal ones first where nobody waits, then by links, then the
    tightest, then by name."""

    def order(way: Way) -> tuple[object, ...]:
        memory = board.memory_of(way.rows, way.mbs)
        node = memory[0].gpu.node
        indices = [each.gpu.gpu_index for each in memory]
        link = slowest_link(board.state.topologies.get(node), indices)
        left = sum(int(board.room[row]) for row in way.rows)
        speed = link.gb_per_second if link else 0
        return way.price, way.free_at is not None, -speed, left, node, indices

    unique = {(way.rows, way.mbs): way for way in found}
    return sorted(unique.values(), key=order)  # pyright: ignore[reportArgumentType]
