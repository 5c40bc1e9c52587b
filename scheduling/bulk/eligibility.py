"""The needs of a pass in arrays, and the eligibility classes of nodes for these needs."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from longshore.models.placement import ScoreWeights
from longshore.scheduling.bulk.arrays import (
    THRESHOLDS,
    EligibilityClasses,
    Floats,
    Ints,
    Longs,
    Needs,
)
from longshore.scheduling.bulk.questions import BY_CALLER
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.filters import asked
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.layouts import FITS
from longshore.scheduling.placement.scan import lasting_codes
from longshore.scheduling.placement.scoring import expiry_penalty, provider_bonus, provider_for
from longshore.scheduling.placement.state import Need

INITIAL_RESERVED_NODES = 8
"""Initial capacity for nodes with reservations."""
_MOST_THRESHOLDS = THRESHOLDS
"""Bounds the number of buckets, not the results."""


def needs_of(needs: Sequence[Need], requests: Sequence[int], columns: Columns) -> Needs:
    """Return the needs as columns, without their rows of `EligibilityClasses`."""
    beside = len(needs), INITIAL_RESERVED_NODES
    powers, amounts = np.unique(columns.trait_sets.gpu_power), len(columns.trait_sets.host)
    wanted = np.array([[need.host(power) for power in powers.tolist()] for need in needs])
    gpus = np.array([need.gpus for need in needs], np.float64)
    vram = np.array([need.vram for need in needs], np.float64)
    mig = np.array([need.mig is not None for need in needs], np.bool_)
    none = np.zeros(len(needs), np.int32)
    return Needs(
        request=np.array(requests, np.int32),
        tier=np.array([need.tier.value == "FLEX" for need in needs], np.uint8),
        vram=vram,
        amount=vram * gpus,
        gpus=gpus,
        mig=mig,
        by_layout=mig | (gpus > 1),
        most_link=np.zeros(len(needs)),
        outlook=np.full(len(needs), BY_CALLER, np.uint8),
        lasting=none,
        duration=none,
        provider=none,
        data=none,
        wanted=wanted.reshape(len(needs), len(powers), amounts).astype(np.float64),
        beside_class=np.full(beside, -1, np.int32),
        beside_code=np.zeros(beside, np.uint8),
        beside_gap=np.zeros(beside),
        beside_link=np.zeros(beside),
        beside_added=np.zeros(beside),
        beside_gpus=np.full(beside, -1, np.int32),
    )


def eligibility_of(
    n: Needs,
    needs: Sequence[Need],
    columns: Columns,
    weights: ScoreWeights,
    keeper: HeadroomKeeper | None,
    nodes: Longs,
) -> tuple[Needs, EligibilityClasses]:
    """Return the needs with their rows, and the eligibility classes; `nodes` has an entry for each
    trait set."""
    trait_sets = columns.trait_sets
    lasting, codes = _asked_once(
        needs,
        # Needs for which the same nodes end too early get the same answers.
        lambda need: (asked(need), trait_sets.ended_before(need.must_last)),
        lambda need: lasting_codes(columns, need),
    )
    code = np.array(codes, np.uint8).reshape(len(codes), len(trait_sets))
    duration, penalties = _asked_once(
        needs,
        lambda need: need.duration if trait_sets.ended_before(2 * need.duration) else None,
        lambda need: expiry_penalty(columns, need.duration),
    )
    by_provider, bonuses = _asked_once(
        needs,
        lambda need: provider_for(need.gpus),
        lambda need: provider_bonus(columns, need.gpus),
    )
    data, holdings = _asked_once(needs, lambda need: need.data, trait_sets.held)
    expiry = np.array(penalties, np.float64).reshape(len(penalties), len(trait_sets))
    provider = np.array(bonuses, np.float64).reshape(len(bonuses), len(trait_sets))
    held = weights.locality * np.array(holdings, np.float64).reshape(
        len(holdings), len(trait_sets)
    )
    power = np.unique(trait_sets.gpu_power, return_inverse=True)[1].astype(np.int32)
    size = keeper.table.size_of_traits if keeper else np.zeros(len(trait_sets), np.intp)
    alike = [trait_sets.amount, trait_sets.unnamed, power, size, *provider]
    of_traits, first = _numbered(np.ascontiguousarray(code.T), np.array(alike, np.float64).T)
    open_at, open_classes = [0], list[int]()
    for row in code:
        open_classes += np.flatnonzero(row[first] == FITS).tolist()
        open_at.append(len(open_classes))
    counted = [np.bincount(row, nodes, FITS + 1) for row in code]
    closed = np.array(counted, np.int32).reshape(-1, FITS + 1)
    closed[:, FITS] = 0
    eligibilities = EligibilityClasses(
        of_traits=of_traits,
        power=power[first],
        amount=trait_sets.amount[first],
        unnamed=trait_sets.unnamed[first],
        size=size[first].astype(np.int32),
        code=code,
        open_at=np.array(open_at, np.int32),
        open=np.array(open_classes, np.int32),
        closed=closed,
        expiry=expiry,
        most_expiry=_most(weights.expiry * expiry, of_traits, len(first)),
        provider=provider,
        most_provider=_most(weights.provider * provider, of_traits, len(first)),
        held=held,
        most_held=_most(held, of_traits, len(first)),
    )
    linked = any(layout.topology for layout in columns.layouts)
    rows = n._replace(
        lasting=lasting, duration=duration, provider=by_provider, data=data,
        most_link=np.where((n.gpus > 1) & linked, weights.links, 0.0),
    )  # fmt: skip
    return rows, eligibilities


def thresholds_of(wanted: Floats) -> Floats:
    """Return the thresholds of each amount of a host: the requested amounts, or an even sample of
    too many."""
    amounts = wanted.shape[-1]
    thresholds = np.full((amounts, THRESHOLDS), np.inf)
    for row in range(amounts):
        asked = np.unique(wanted[..., row])
        asked = asked[asked > 0]
        if len(asked) > _MOST_THRESHOLDS:
            asked = asked[np.linspace(0, len(asked) - 1, _MOST_THRESHOLDS).astype(np.intp)]
        thresholds[row, : len(asked)] = asked
    return thresholds


def _asked_once(
    needs: Sequence[Need], key: Callable[[Need], Hashable], answer: Callable[[Need], Any]
) -> tuple[Ints, list[Any]]:
    """Return the row of each need, and the answers of all trait sets: a row for each key."""
    rows: dict[Hashable, int] = {}
    numbers: list[int] = []
    answers: list[Any] = []
    for need in needs:
        number = rows.setdefault(key(need), len(rows))
        if number == len(answers):
            answers.append(answer(need))
        numbers.append(number)
    return np.array(numbers, np.int32), answers


def _numbered(codes: Any, others: Any) -> tuple[Ints, Longs]:
    """Return the number of each row, equal rows alike, and the first row of each number."""
    seen: dict[tuple[bytes, bytes], int] = {}
    numbers: list[int] = []
    first: list[int] = []
    for at in range(len(codes)):
        number = seen.setdefault((codes[at].tobytes(), others[at].tobytes()), len(seen))
        if number == len(first):
            first.append(at)
        numbers.append(number)
    return np.array(numbers, np.int32), np.array(first, np.int64)


def _most(values: Floats, of_traits: Ints, eligibilities: int) -> Floats:
    most = np.full((len(values), eligibilities), -np.inf)
    for row, found in zip(most, values, strict=True):
        np.maximum.at(row, of_traits, found)
    return most
