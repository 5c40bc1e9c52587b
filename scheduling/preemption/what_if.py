"""A hypothetical cluster for preemption: nodes and their jobs, with or without some of them.

Every answer is the packer's own: the same views, columns and scans as a cycle's.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import Decision, GPUChoice, PackingPolicy, PackingRule, RunningJob
from longshore.models.preemption import GainedGPUs
from longshore.models.topology import Gang
from longshore.scheduling.gangs.decision import place_gang
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import (
    Answers,
    Offer,
    need_of_share,
    offers_from,
    offers_when_empty,
)
from longshore.scheduling.gangs.plan import Shares, could_hold, fits_gang, why_never
from longshore.scheduling.gangs.start import first_gang_start
from longshore.scheduling.packer import placing, waiting
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.filters import LabelNames
from longshore.scheduling.placement.gpus import mask_of
from longshore.scheduling.placement.mix import NO_MIX, Mix
from longshore.scheduling.placement.reservations import open_from
from longshore.scheduling.placement.scan import Scan, Scanner
from longshore.scheduling.placement.state import (
    Hold,
    Need,
    NodeView,
    held_gpus,
    view_node,
    without_job,
)
from longshore.scheduling.preemption.held import held_by, hold_of, with_share
from longshore.scheduling.preemption.starts import Starts

Out = frozenset[str]
"""Ids of jobs that are taken away."""
NOBODY: Out = frozenset()


class WhatIfCluster:
    """Nodes with what runs there; changes only by `remove`, `hold`, `put` and `reserve`, of which
    `tried` takes back all but the last."""

    def __init__(
        self,
        nodes: Sequence[Node],
        running: Iterable[RunningJob],
        packing: PackingPolicy,
        now: datetime,
        mix: Mix = NO_MIX,
        labels: LabelNames = None,
    ) -> None:
        """`labels` are those that whoever asks names; all without."""
        self.packing = packing
        self.now = now
        self._mix = mix
        self._labels = labels
        # Whether a job fits is the same by each rule, and asked far more often than where it goes.
        self._plain = packing.model_copy(update={"rule": PackingRule.SEED_SCORE})
        self._nodes = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
        self._running: dict[str, list[RunningJob]] = {name: [] for name in self._nodes}
        self._reserved: dict[str, list[Hold]] = {name: [] for name in self._nodes}
        for job in sorted(running, key=lambda job: (job.node_id, job.job_id)):
            if job.node_id in self._running:
                self._running[job.node_id].append(job)
        self._on: dict[str, set[str]] = {}
        """By id of a job: the nodes that it runs on."""
        for name, jobs in self._running.items():
            for job in jobs:
                self._on.setdefault(job.job_id, set()).add(name)
        self._views = {name: self._view(name, NOBODY) for name in self._nodes}
        self._names = list(self._nodes)
        self._positions = {name: position for position, name in enumerate(self._names)}
        self._columns: Columns | None = None
        """Of the nodes as they are; made when they are asked first, and changed with them."""
        self._scanners: dict[PackingRule, Scanner] = {}
        self._starts: Starts | None = None
        """Made when it is asked first, and changed with the nodes."""
        self._open: dict[tuple[Need, Gang | None], tuple[str, ...]] = {}
        self._fits: dict[tuple[Need, Gang | None], bool] = {}
        self._gang_starts: dict[tuple[Need, Gang], tuple[datetime, Shares] | None] = {}
        """Both as the nodes are now."""
        self.changes: list[str] = []
        """The nodes that changed, in order."""
        self._before: dict[str, tuple[Node, list[RunningJob]]] | None = None
        """While something is tried: nodes that it has changed, as they were."""

    def nodes_for(self, job: JobRequest) -> tuple[str, ...]:
        """Return the nodes that could take the job, or a share of it, were nobody there."""
        need = Need.of(job, self.packing)
        starts = self._starts_now()
        asks = need, job.gang
        if asks not in self._open:
            if job.gang is not None:
                offers = offers_when_empty(job, job.gang, self._gang_nodes())
                places = np.array([offer.position for offer in offers.made], np.intp)
            else:
                places = starts.suited(need)
            self._open[asks] = self._named(starts.lasting(places, need))
        return self._open[asks]

    def why_never(self, job: JobRequest) -> str:
        """Return why no nodes could hold the job, were they ready and nobody there; empty where
        they could."""
        if job.gang is not None:
            never = why_never(job, self._gang_nodes(), self.packing)
            return never.text if never else ""
        suited = self._starts_now().suited(Need.of(job, self.packing))
        return "" if len(suited) else "no known node could ever hold it"

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def as_it_is(self) -> tuple[tuple[Node, ...], tuple[RunningJob, ...]]:
        """Return the nodes, and what runs there."""
        running = tuple(job for jobs in self._running.values() for job in jobs)
        return tuple(self._nodes.values()), running

    def decide(self, job: JobRequest, out: Out = NOBODY) -> Decision:
        """Return the packer's decision on the nodes without these jobs: where a cycle would place
        the job, by the pool's rule."""
        if job.gang is not None:
            return place_gang(job, self._gang_nodes(out), self.packing, self.now, explain=False)
        with self._without(out):
            scan = self._scan(Need.of(job, self.packing), self.packing)
            best = scan.best(1)
            return placing(job, scan, best) if best else waiting(job, scan)

    def fits(self, job: JobRequest, out: Out = NOBODY) -> bool:
        """Return whether there is room for the job without these jobs, beside all others."""
        need = Need.of(job, self._plain)
        known = None if out else self._fits.get((need, job.gang))
        if known is not None:
            return known
        if job.gang is not None:
            fits = fits_gang(job, self._gang_nodes(out), self.packing, self.now)
        else:
            with self._without(out):
                fits = self._scan(need, self._plain).option_count > 0
        if not out:
            self._fits[need, job.gang] = fits
        return fits

    def free_gpus(self, name: str) -> int:
        """Return how many GPUs of a node no job has."""
        return self._views[name].free.bit_count()

    def node_fits(self, name: str, need: Need, out: Out) -> bool:
        """Return whether one node has room for a whole job without these jobs."""
        view = self._thinned(name, out)
        return open_from(view, need, self.now, GPUChoice.FIRST_FREE) is not None

    def gang_on(self, names: Sequence[str], job: JobRequest, gang: Gang) -> Callable[[Out], bool]:
        """Return what says whether a gang fits on these nodes without some jobs, for as long as
        nothing changes."""
        here = {name: frozenset(hold.job_id for hold in self._views[name].holds) for name in names}
        answers = Answers()
        offers: dict[tuple[str, Out], Offer | None] = {}

        def ask(name: str, out: Out) -> Offer | None:
            node = self._nodes_of_gangs.only(self._thinned(name, out))
            made = offers_from(job, gang, node, self.packing, self.now, answers).made
            return made[0] if made else None

        def offer(name: str, out: Out) -> Offer | None:
            asks = name, out & here[name]
            if asks not in offers:
                offers[asks] = ask(*asks)
            return offers[asks]

        now = {name: offer(name, NOBODY) for name in names}

        def fits(out: Out) -> bool:
            left = {name: offer(name, out) for name in self._nodes_of(out) if name in here}
            return could_hold(job, filter(None, (now | left).values()), self.packing)

        return fits

    def first_start(self, job: JobRequest, not_of: Out = NOBODY) -> datetime | None:
        """Return when the job can start if nobody is stopped, and as if these never ended; None
        where that is not known."""
        if job.gang is not None:
            found = self._first_gang_start(job, job.gang)
            return found[0] if found else None
        first = self._first(Need.of(job, self._plain), not_of)
        return first and first[1]

    def _first(self, need: Need, not_of: Out) -> tuple[NodeView, datetime] | None:
        """Return where the need can be held first as if these never ended, and when."""
        starts = self._starts_now()
        staying = {name: self._view(name, NOBODY, not_of) for name in self._nodes_of(not_of)}
        for name, view in staying.items():
            starts.change(self._positions[name], view)
        first = starts.first(need)
        for name in staying:
            starts.change(self._positions[name], self._views[name])
        if first is None:
            return None
        name = self._names[first[0]]
        return staying.get(name, self._views[name]), first[1]

    def _first_gang_start(self, job: JobRequest, gang: Gang) -> tuple[datetime, Shares] | None:
        asks = Need.of(job, self.packing), gang
        if asks not in self._gang_starts:
            self._gang_starts[asks] = first_gang_start(
                job, self._gang_nodes(), self.packing, self.now, self._starts_now().given_back
            )
        return self._gang_starts[asks]

    @contextmanager
    def tried(self) -> Generator[None]:
        """Take back at the end what has been removed, held and put since."""
        fits, gang_starts, changes = self._fits, self._gang_starts, len(self.changes)
        self._before = {}
        try:
            yield
        finally:
            before, self._before = self._before, None
            for name, (node, running) in before.items():
                for job in self._running[name]:
                    self._on[job.job_id].discard(name)
                self._nodes[name], self._running[name] = node, running
                for job in running:
                    self._on.setdefault(job.job_id, set()).add(name)
                self._changed(name)
            # All is as it was, and so is what was known of it.
            del self.changes[changes:]
            self._fits, self._gang_starts = fits, gang_starts

    def _note(self, name: str) -> None:
        if self._before is not None and name not in self._before:
            self._before[name] = self._nodes[name], [*self._running[name]]

    def remove(self, out: Out) -> None:
        """Take jobs away."""
        for name in self._nodes_of(out):
            self._note(name)
            jobs = self._running[name]
            for job in [job for job in jobs if job.job_id in out]:
                self._nodes[name] = without_job(self._nodes[name], job)
                jobs.remove(job)
            self._changed(name)
        for job_id in out:
            self._on.pop(job_id, None)

    def hold(self, shares: Iterable[RunningJob]) -> None:
        """Keep GPUs for a job from now on; those that it has already stay as they are."""
        for share in shares:
            jobs = self._running.get(share.node_id)
            if jobs is None or any(job.job_id == share.job_id for job in jobs):
                continue
            self._note(share.node_id)
            self._nodes[share.node_id] = with_share(self._nodes[share.node_id], share)
            jobs.append(share)
            self._on.setdefault(share.job_id, set()).add(share.node_id)
            self._changed(share.node_id)

    def put(self, job: JobRequest, gains: Iterable[GainedGPUs]) -> None:
        """Give GPUs to the job from now on."""
        need = Need.of(job, self.packing)
        for gain in gains:
            end = need.end_from(self.now)
            self.hold([held_by(job, gain, end, self._nodes[gain.node_id])])

    def reserve(self, job: JobRequest, not_of: Out = NOBODY) -> bool:
        """Keep the first start of a job that waits, as if these never ended; False where none is
        known."""
        need = Need.of(job, self.packing)
        if job.gang is not None:
            found = self._first_gang_start(job, job.gang)
            if found is None:
                return False
            start, shares = found
            for name, indices in shares:
                share = need_of_share(need, len(indices))
                power = self._nodes[name].gpu_power
                held = held_gpus(job, self._nodes[name], indices)
                self._keep(name, hold_of(job.id, share, power, mask_of(held), start))
            return True
        first = self._first(need, not_of)
        if first is None:
            return False
        view, start = first
        chosen = open_from(view, need, start, self.packing.gpu_choice)
        assert chosen is not None  # that is how the start was found
        parts = need.parts(chosen.indices, chosen.slices)
        hold = hold_of(job.id, need, view.node.gpu_power, chosen.mask, start, parts)
        self._keep(view.node.id, hold)
        return True

    def _scan(self, need: Need, packing: PackingPolicy) -> Scan:
        if packing.rule not in self._scanners:
            scanner = Scanner(self._columns_now(), packing, self._mix)
            self._scanners[packing.rule] = scanner
        return self._scanners[packing.rule].scan(need)

    def _named(self, places: NDArray[np.intp]) -> tuple[str, ...]:
        return tuple(self._names[int(place)] for place in places)

    def _starts_now(self) -> Starts:
        if self._starts is None:
            nodes, views = list(self._nodes.values()), list(self._views.values())
            self._starts = Starts(nodes, views, self.now, self._labels)
        return self._starts

    def _columns_now(self) -> Columns:
        if self._columns is None:
            views = list(self._views.values())
            empty = [replace(view, reserved=[]) for view in views]
            self._columns = Columns(empty, self.now, labels=self._labels)
            for position, view in enumerate(views):
                for hold in view.reserved:
                    self._columns.reserve(position, hold)
        return self._columns

    @contextmanager
    def _without(self, out: Out) -> Generator[None]:
        """Have the columns without these jobs for a while."""
        names = self._nodes_of(out)
        for name in names:
            self._columns_now().replace(self._positions[name], self._view(name, out))
        try:
            yield
        finally:
            for name in names:
                self._show(name)

    def _nodes_of(self, out: Out) -> list[str]:
        """Return the nodes that these jobs run on, in order."""
        names = set[str]().union(*(self._on.get(job_id, ()) for job_id in out))
        return sorted(names, key=self._positions.__getitem__)

    def _gang_nodes(self, out: Out = NOBODY) -> GangNodes:
        """Return the nodes without these jobs, as gangs look at them."""
        views = self._views
        if out:
            views = views | {name: self._view(name, out) for name in self._nodes_of(out)}
        return self._nodes_of_gangs.showing(list(views.values()))

    @cached_property
    def _nodes_of_gangs(self) -> GangNodes:
        return GangNodes.of(list(self._views.values()), self._labels)

    def _view(self, name: str, out: Out, not_of: Out = NOBODY) -> NodeView:
        """Return a node read anew, as if these jobs had never been there, and as if nobody knew
        when those end."""
        node = self._nodes[name]
        for job in self._running[name]:
            if job.job_id in out:
                node = without_job(node, job)
        known = [job for job in self._running[name] if job.job_id not in out | not_of]
        view = view_node(node, known, self.now)
        view.reserved.extend(self._reserved[name])
        return view

    def _thinned(self, name: str, out: Out) -> NodeView:
        """Return a node's view with fewer holds: enough for what looks at holds alone."""
        view = self._views[name]
        return replace(view, holds=[hold for hold in view.holds if hold.job_id not in out])

    def _keep(self, name: str, hold: Hold) -> None:
        self._reserved[name].append(hold)
        self._changed(name)

    def _changed(self, name: str) -> None:
        self._views[name] = self._view(name, NOBODY)
        self.changes.append(name)
        self._fits, self._gang_starts = {}, {}
        if self._starts is not None:
            self._starts.change(self._positions[name], self._views[name])
        if self._columns is not None:
            self._show(name)

    def _show(self, name: str) -> None:
        """Have the columns hold what the node holds now; they change their views."""
        view = replace(self._views[name], holds=[*self._views[name].holds])
        self._columns_now().replace(self._positions[name], view)


def gains_of(decision: Decision) -> tuple[GainedGPUs, ...]:
    """Return what a decision gives its job; nothing where the job waits."""
    return tuple(
        GainedGPUs(node_id=name, gpu_indices=indices, slices=decision.slices)
        for name, indices in decision.held
    )
