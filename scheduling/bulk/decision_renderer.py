"""Renders full decisions, with candidates and reasons, from the arrays of a pass."""

from collections.abc import Collection, Sequence
from typing import Any

from longshore.models.job_request import JobRequest
from longshore.models.placement import (
    Candidate,
    Decision,
    PackingPolicy,
    RejectionCode,
    ScoreTerm,
    ScoreTerms,
)
from longshore.scheduling.bulk.arrays import Answers, Ints
from longshore.scheduling.bulk.questions import NEVER, NO_START, PLACED, RESERVED_ALL
from longshore.scheduling.bulk.tables import Tables
from longshore.scheduling.packer import (
    behind_reservations,
    placed_on,
    waits,
    waits_as,
)
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.holders import Holders
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.layouts import CODES
from longshore.scheduling.placement.links import slowest_link
from longshore.scheduling.placement.parts import WHOLE
from longshore.scheduling.placement.rules import in_words


class DecisionRenderer:
    """Renders the decisions of one pass."""

    def __init__(
        self,
        jobs: Sequence[JobRequest],
        slots: Ints,
        answers: Answers,
        tables: Tables,
        policy: PackingPolicy,
        keeper: HeadroomKeeper | None,
        wanted: Collection[str] | None,
    ) -> None:
        """`slots` has the row of each job's need, `answers` what was decided for it. Of those that
        wait only the `wanted` are told."""
        self._wanted = wanted
        self._jobs = jobs
        self._slots = slots
        self._answers = answers
        self._tables = tables
        self._policy = policy
        self._names = [] if keeper is None else [
            *keeper.names, "GPUs left without cores or RAM", "what is free on the node",
        ]  # fmt: skip
        self.alike: list[int] = []
        """By row of a need: a number. Needs that differ in time and data alone have the same."""
        self.holders: dict[int, Holders] = {}
        """By this number, of needs that wait: nodes that could hold them when empty."""
        self.chosen: dict[int, Chosen] = {}
        """By job that was placed, as far as decisions are made."""
        self._terms: dict[tuple[int, int, float], ScoreTerms] = {}
        self._told: dict[tuple[int, int, tuple[int, ...]], Decision] = {}
        """What a job was told whose need has this number, and that waits so where nodes say so."""

    def begin(self, alike: list[int]) -> None:
        """Take other current needs; `alike` is said above."""
        self.alike = alike
        self.holders.clear()

    def render_decisions(self, begin: int, end: int, decisions: list[Decision | None]) -> None:
        """Put the decisions of these jobs into the list, where the caller has not decided."""
        self._terms.clear()  # rows are of other needs now
        self._told.clear()
        answers, slots = self._answers, self._slots[begin:end].tolist()
        kinds = answers.kind[begin:end].tolist()
        counts = answers.counts[begin:end].tolist()
        shown = zip(
            *(
                column[begin:end].tolist()
                for column in (answers.node, answers.group, answers.total, answers.used,
                               answers.gap, answers.expiry, answers.provider)
            ),
            strict=True,
        )  # fmt: skip
        rows = zip(range(begin, end), slots, kinds, counts, shown, strict=True)
        for j, slot, kind, count, facts in rows:
            job = self._jobs[j]
            if kind == PLACED:
                decisions[j] = self._placed(j, job, slot, count, facts)
            elif kind in (NEVER, NO_START, RESERVED_ALL) and (
                self._wanted is None or job.id in self._wanted
            ):
                decisions[j] = self._waits(job, kind, slot, count)

    def _placed(
        self, j: int, job: JobRequest, slot: int, counts: list[int], facts: tuple[list[Any], ...]
    ) -> Decision:
        nodes, groups, totals, *terms_of = facts
        candidates: list[Candidate] = []
        tables = self._tables
        views = tables.columns.views
        for i, group in enumerate(groups):
            if group < 0:
                break
            node = views[int(nodes[i])].node
            chosen = tables.chosen(slot, group)
            if not i:
                self.chosen[j] = chosen
            topology = node.topology
            candidates.append(
                Candidate.trusted(
                    node_id=node.id,
                    gpu_indices=chosen.indices,
                    slices=chosen.slices,
                    link=slowest_link(topology, chosen.indices) if topology else None,
                    terms=self._terms_for(j, slot, group, i, totals[i], terms_of),
                )
            )
        return placed_on(job, tuple(candidates), rejected_of(counts), counts[-1])

    def _terms_for(
        self, j: int, slot: int, group: int, i: int, total: float, of: list[list[float]]
    ) -> ScoreTerms:
        used, gap, expiry, provider = of
        beside = [] if i else self._beside(slot, group, gap[i])
        in_full = not i and bool(self._names or beside)
        known = None if in_full else self._terms.get((slot, group, total))
        if known is None:
            known = ScoreTerms.trusted(
                rule=self._policy.rule,
                utilization=used[i],
                fragmentation=gap[i],
                expiry=expiry[i],
                provider=provider[i],
                parts=self._parts(j, expiry[i], provider[i], beside) if in_full else (),
                total=total,
            )
            if not in_full:
                self._terms[slot, group, total] = known
        return known

    def _beside(self, slot: int, group: int, gap: float) -> list[tuple[str, float]]:
        """Return what data on the nodes of a class, links and gaps there add, as far as they do
        and are no terms of their own."""
        tables = self._tables
        held = float(tables.f.held[tables.n.data[slot], tables.c.traits[group]])
        links = self._policy.weights.links * tables.chosen(slot, group).link
        parts = [("data on the node", held), ("links between its GPUs", links)]
        if self._names:
            parts.append(("gaps between its GPUs", self._policy.weights.fragmentation * gap))
        return [part for part in parts if part[1]]

    def _parts(
        self, j: int, expiry: float, provider: float, beside: list[tuple[str, float]]
    ) -> tuple[ScoreTerm, ...]:
        if not self._names:  # the score has expiry and provider as terms of its own
            return tuple(in_words(beside, 0.0, 0.0))
        lost = self._answers.parts[j].tolist()
        parts = [(name, -milli / WHOLE) for name, milli in zip(self._names, lost, strict=True)]
        weights = self._policy.weights
        return tuple(
            in_words([*parts, *beside], weights.expiry * expiry, weights.provider * provider)
        )

    def _waits(self, job: JobRequest, kind: int, slot: int, counts: list[int]) -> Decision:
        number = self.alike[slot]
        alike = number, kind, tuple(counts)
        if told := self._told.get(alike):
            return waits_as(job, told)
        rejected, outlook, holders = rejected_of(counts), "", self.holders[number]
        if kind == RESERVED_ALL:
            outlook = behind_reservations(job, self._policy)
        elif kind == NO_START:
            outlook = holders.why_no_start(self._tables.needs[slot])
        told = self._told[alike] = waits(job, rejected, holders.nodes, outlook)
        return told


def rejected_of(counts: list[int]) -> dict[RejectionCode, int]:
    """Return the number of nodes that each constraint ruled out, in the order of the checks."""
    return {code: count for code, count in zip(CODES, counts, strict=False) if count}
