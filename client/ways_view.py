"""How the ways to start a job look, each with its price."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from longshore.client.terminal import a_table
from longshore.client.words import cell, zone
from longshore.models.preemption import Way
from longshore.models.text import amount

_AMOUNTS = ("lost or paid", "delay", "in all")


def ways_table(ways: Sequence[Way], now: datetime) -> Table:
    """Return a row for each way, the chosen one marked; `now` says which day needs no date."""
    headings = ("", "way", f"start ({zone(now)})", *_AMOUNTS, "why not")
    table = a_table(headings, right=_AMOUNTS, fold=("way", "why not"))
    for way in ways:
        start = cell(way.start, now) if way.start else "not known"
        amounts = (amount(micro) for micro in (way.cost, way.delay, way.total))
        mark, style = ("→", "bold") if way.chosen else ("", "")
        table.add_row(mark, way.title, start, *amounts, way.lost, style=style)
    return table
