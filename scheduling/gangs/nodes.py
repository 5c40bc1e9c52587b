"""The nodes of a plan as gangs look at them. What no plan changes of a node is read once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.models.topology import Gang
from longshore.scheduling.placement.filters import Attributes, LabelNames, attributes_of
from longshore.scheduling.placement.state import Need, NodeView
from longshore.scheduling.topology import Domain, DomainKey, domain_of, flavor_of, sum_domains

Kind = tuple[str, str | None]
"""Flavor and conformance fingerprint."""
_Traits = tuple[Attributes, str]


class Fact(NamedTuple):
    """What no plan changes of a node."""

    domain: DomainKey
    """Where it does not name its fabric, that of its own."""
    kind: Kind
    traits: int
    """Number of what the filters look at, and its flavor."""


@dataclass(frozen=True, slots=True)
class GangNodes:
    """The nodes of a plan. Views may change, or be put in place of others (`showing`): as long as
    they are of the same nodes, with the same labels, sizes and states."""

    views: Sequence[NodeView]
    positions: Mapping[str, int]
    """Of the views, by the ids of their nodes."""
    trait_sets: Sequence[_Traits]
    domain_numbers: NDArray[np.intp]
    """Of each node that of its domain; one without a label is a domain of its own."""
    _facts: Sequence[Fact]
    _held: set[tuple[Need, Gang]] = field(default_factory=set[tuple[Need, Gang]])
    """What they are known to hold when empty."""

    @classmethod
    def of(cls, views: Sequence[NodeView], labels: LabelNames = None) -> "GangNodes":
        """Return the nodes that these views are of; `labels` as in `Columns`."""
        trait_sets: dict[_Traits, int] = {}
        domains: dict[DomainKey, int] = {}
        facts: list[Fact] = []
        for view in views:
            node = view.node
            flavor = flavor_of(node)
            traits = trait_sets.setdefault((attributes_of(node, labels), flavor), len(trait_sets))
            domain = domain_of(node, unlabelled=True)
            assert domain is not None  # its own at least
            domains.setdefault(domain, len(domains))
            facts.append(Fact(domain, (flavor, node.conformance), traits))
        positions = {view.node.id: position for position, view in enumerate(views)}
        numbers = np.array([domains[fact.domain] for fact in facts], np.intp)
        return cls(views, positions, list(trait_sets), numbers, facts)

    def showing(self, views: Sequence[NodeView]) -> "GangNodes":
        """Return the same nodes as these views show them, in the same order."""
        return replace(self, views=views)

    def only(self, view: NodeView) -> "GangNodes":
        """Return one of the nodes, as this view shows it."""
        return self._at([self.positions[view.node.id]], [view])

    def among(self, names: Collection[str]) -> "GangNodes":
        """Return those of the nodes that have these ids, as they are shown."""
        return self.at([at for at, view in enumerate(self.views) if view.node.id in names])

    def at(self, places: Sequence[int]) -> "GangNodes":
        """Return the nodes at these positions, as they are shown."""
        return self._at(places, [self.views[place] for place in places])

    def _at(self, places: Sequence[int], views: Sequence[NodeView]) -> "GangNodes":
        positions = {view.node.id: position for position, view in enumerate(views)}
        facts = [self._facts[place] for place in places]
        numbers = self.domain_numbers[np.array(places, np.intp)]
        return GangNodes(views, positions, self.trait_sets, numbers, facts)

    def each(self) -> Iterable[tuple[NodeView, Fact]]:
        """Return the nodes in the order of their positions."""
        return zip(self.views, self._facts, strict=True)

    def domains(self, gang: Gang) -> tuple[Domain, ...]:
        """Return the domains as a gang sees them, in the order of their keys."""
        return sum_domains(self.views, [domain_for(gang, fact.domain) for fact in self._facts])

    def hold_when_empty(self, whole: Need, gang: Gang) -> bool:
        """Return whether it is known that they hold such a gang when empty and with time left."""
        return (_timeless(whole), gang) in self._held

    def note_held(self, whole: Need, gang: Gang) -> None:
        """Remember that they do."""
        self._held.add((_timeless(whole), gang))


def domain_for(gang: Gang, domain: DomainKey) -> DomainKey | None:
    """Return the domain of a node to a gang: None where the node names none and that counts."""
    return domain if domain.region or gang.unlabelled_nodes else None


def _timeless(whole: Need) -> Need:
    """Return the need without what says for how long."""
    return whole._replace(duration=timedelta(0), must_last=timedelta(0), stay=None)
