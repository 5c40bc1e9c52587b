"""What is written about the settings of a pool, made from `longshore pool set`: docs/pools.md.

`python -m longshore.client.pool_page` writes the page; a test holds page and command equal.
"""

import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from typer.models import OptionInfo

from longshore.client.pool_commands import pool_set
from longshore.models.pool import PoolSpec

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pools.md"


def page() -> str:
    """Return docs/pools.md."""
    defaults = _defaults(PoolSpec.new("default"))
    rows = [
        f"| `{flag}` | {defaults[name]} | {_what(option, kind)} | {_MORE[name]} |"
        for name, flag, option, kind in options()
    ]
    return "\n".join([_HEAD, *rows, _TAIL])


def options() -> Iterator[tuple[str, str, OptionInfo, Any]]:
    """Yield name, flag, option and type of each setting."""
    for name, parameter in inspect.signature(pool_set).parameters.items():
        kind, option = get_args(parameter.annotation)
        if isinstance(option, OptionInfo) and name != "as_json":
            yield name, f"--{name.replace('_', '-')}", option, kind


def _what(option: OptionInfo, kind: Any) -> str:
    """Return what a setting does, and what it may be where it is one of a few."""
    text = re.sub(r" \(docs/[^)]*\)", "", option.help or "")
    for each in get_args(kind):
        if isinstance(each, type) and issubclass(each, StrEnum):
            *first, last = [f"`{member.value}`" for member in each]
            text += f" One of {', '.join(first)} and {last}."
    return text.replace("|", "\\|")


def _defaults(new: PoolSpec) -> dict[str, str]:
    """Return what a pool that is made has of each."""
    stored = new.model_dump(mode="json")
    packing = stored["packing"]
    weights = ", ".join(f"{name}={value:g}" for name, value in packing["weights"].items())
    found = {
        "growth": stored["growth"],
        "weights": weights,
        "packing": f"rule={packing['rule']}",
        "max_reservations": new.packing.starts_kept,
        "profile": packing["score"]["profile"],
        "score": f"half_life={packing['score']['half_life']}",
        **{
            name: packing[name]
            for name in (
                "safety_margin", "gpu_choice", "gang_packing", "order", "class_rises_every",
            )
        },
        **{name: stored[name] for name in ("interval", "grow_after")},
        **{
            name: f"enabled={str(stored[name]['enabled']).lower()}"
            for name in ("buying", "preemption", "checkpoints")
        },
    }  # fmt: skip
    written = {name: f"`{value}`" for name, value in found.items()}
    nothing = ("term_weights", "max_duration", "price", "pricing", "start_below")
    return written | dict.fromkeys(nothing, "none")


_MORE = {
    "growth": "[below](#growth)",
    "weights": "[packing](architecture.md#packing)",
    "safety_margin": "[nodes that end](operations.md#nodes-that-end)",
    "packing": "[packing](architecture.md#packing)",
    "gpu_choice": "[below](#gpus-of-a-node)",
    "gang_packing": "[gangs](topology.md#how-a-gang-is-placed)",
    "max_reservations": "[concepts](concepts.md)",
    "order": "[the order of the queue](queue.md)",
    "profile": "[the score](score.md)",
    "term_weights": "[the score](score.md)",
    "score": "[the score](score.md)",
    "class_rises_every": "[concepts](concepts.md)",
    "interval": "[below](#cycles)",
    "grow_after": "[elastic jobs](elastic.md#it-grows-by-itself)",
    "max_duration": "[concepts](concepts.md)",
    "price": "[prices over time](price-series.md#where-the-price-comes-from)",
    "pricing": "[prices over time](price-series.md#where-the-price-comes-from)",
    "start_below": "[prices over time](price-series.md#who-waits)",
    "buying": "[what to buy](buying.md#switching-it-on)",
    "preemption": "[preemption](preemption.md#settings)",
    "checkpoints": "[preemption](preemption.md#settings)",
}

_HEAD = """\
# Settings of a pool

`longshore pool set NAME` makes a pool, or changes one: it keeps each setting that is not named.
Its next cycle goes by the new ones. `longshore pool show NAME` shows them all.

```console
$ longshore pool set owned --growth fixed --interval 10s
pool owned is set; its next cycle uses this (longshore pool show owned)
```

A pool is also made by its first node or its first job. The defaults below are those of a pool that
is made. One from an earlier version keeps what it had.

This page is made from the command by `make docs`.

| option | default of a new pool | what it does | more |
|---|---|---|---|"""

_TAIL = """
Options of `NAME=VALUE` hold several settings. The page beside each lists them.

## Growth

`growth` says what becomes of a job that no node of the pool could hold, even an empty one.

- `open`: nodes may join, or be bought. The job waits, with that reason.
- `fixed`: what is there is all. The job is refused at its submit, with exit code 69. What was
  taken once (a job, an array, a DAG or a service) waits where its nodes have gone, as in a
  restart of their agents.

## GPUs of a node

`gpu_choice` says which free GPUs of a node a job gets. `contiguous` takes, of two or more whose
links are known, those with the fastest links ([topology](topology.md)); else the run with the
fewest gaps. `first-free` takes the first by index.

## Cycles

A cycle starts when something has changed, as when a job comes or ends. `interval` is the longest
time between two cycles while jobs wait, 100 ms at least. `longshore cycles` shows
how often a pool plans, and what that takes.
"""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
