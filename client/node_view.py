"""How nodes and pools look: a row for each, with GPUs drawn as cells."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from string import ascii_letters

from rich.console import RenderableType
from rich.table import Table

from longshore.client.limits import limit_columns
from longshore.client.prices import price_words
from longshore.client.terminal import WIDE, SeveralLines, Text, a_table
from longshore.client.words import SIMULATED, styled
from longshore.models.buying import Among, BuyingPolicy
from longshore.models.checkpointing import CheckpointPolicy
from longshore.models.gpu_hour_price import format_gpu_hour_price
from longshore.models.job import Tier
from longshore.models.node import NodeState
from longshore.models.preemption import Overcommit, PreemptionLevels, PreemptionPolicy
from longshore.models.resources import WHOLE
from longshore.models.score import ScorePolicy
from longshore.models.text import ago, count, format_dollars, format_duration
from longshore.models.units import format_gb
from longshore.models.views import GPUView, NodeView, PartView, PoolView
from longshore.models.visible import in_one_line

FREE, TAKEN = "·", "×"
"""A free GPU, and one whose memory is taken by no job of ours."""
LEGEND = "Each letter is a job, (ab) a GPU that two share, · a free GPU."
_LEAST_OF_A_NAME = 10
"""Characters that a line of a table always has for the name of a node; longer ones are folded."""
_LEAST_OF_A_REASON = 24
"""Characters that a table always has for why a node is in its state; all of it is in the JSON."""
_LEAST_OF_A_KIND = 24
"""Characters that a table always has for how many GPUs of which type: an agent names the type."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan")


def nodes_table(nodes: Sequence[NodeView], now: datetime, width: int) -> Table:
    """Return a row for each node: its GPUs, what is used, until when, and what runs there."""
    wide = width >= WIDE
    headings = ["node", "state", "GPUs", "", "CPUs", "RAM", "ends", "jobs"]
    limits = limit_columns(nodes)
    headings[6:6] = [heading for heading, _ in limits]
    if wide:
        headings[2:2] = ["pool", "tier", "provider"]
    table = a_table(headings, right=("CPUs", "RAM"), fold=("node", "state", "GPUs", "jobs"))
    # Where all columns together are too wide, the last ones are cut off, and not the first two.
    name, state, *_ = table.columns
    name.min_width = min(_LEAST_OF_A_NAME, max((len(node.id) for node in nodes), default=0))
    state.min_width = max((len(state_of(node)) for node in nodes), default=0)
    for node in nodes:
        row: list[RenderableType] = [
            _name(node, wide),
            _state(node, longest=max(width // 4, _LEAST_OF_A_REASON)),
            _kind(node, longest=max(width // 4, _LEAST_OF_A_KIND), two_lines=not wide),
            cells(node),
            f"{node.cpus_used:g}/{node.cpus:g}",
            f"{node.ram_used:.0f}/{node.ram:.0f}GB",
            "never" if node.expires_at is None else ago(node.expires_at, now),
            _jobs(node),
        ]
        row[6:6] = [words(node) for _, words in limits]
        if wide:
            row[2:2] = [node.pool, node.tier.value, node.provider]
        table.add_row(*row)
    return table


def cells(node: NodeView) -> Text:
    """Return a cell for each GPU between brackets: a letter for each job.

    The letters of jobs that share a GPU, or have MIG instances of it, stand between round ones;
    so do those of a gang and of the job that runs on the spare that it lends.
    """
    letters = letters_of(node)
    drawn = Text("[")
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        if gpu.job_id is not None and gpu.lent_to is None:
            letter = letters[gpu.job_id]
            drawn.append(letter, style=_colour(letter))
        elif jobs := _jobs_of(gpu):
            drawn.append("(")
            for job_id in jobs:
                drawn.append(letters[job_id], style=_colour(letters[job_id]))
            drawn.append(")")
        elif gpu.vram_used:
            drawn.append(TAKEN, style="dim")
        else:
            drawn.append(FREE)
    return drawn.append("]")


def letters_of(node: NodeView) -> dict[str, str]:
    """Return a letter for each job of a node, in the order of its GPUs."""
    ordered = sorted(node.gpus, key=lambda gpu: gpu.index)
    jobs = dict.fromkeys(job_id for gpu in ordered for job_id in _jobs_of(gpu))
    return {job: ascii_letters[i] if i < len(ascii_letters) else "#" for i, job in enumerate(jobs)}


def state_of(node: NodeView) -> str:
    """Return a node's state as people say it: one that drains is CORDONED while its jobs stay, and
    DRAINED when they have left."""
    if node.state is NodeState.DRAINING and not node.clearing:
        return "CORDONED"
    return "DRAINED" if node.drained else node.state.value


def pools_table(pools: Sequence[PoolView], now: datetime) -> Table:
    table = a_table(
        ("pool", "growth", "nodes", "GPUs used", "running", "queued", "held", "last cycle"),
        right=("nodes", "GPUs used", "running", "queued", "held"),
        fold=("pool",),
    )
    for pool in pools:
        table.add_row(
            pool.spec.name,
            pool.spec.growth.value,
            str(pool.nodes),
            f"{pool.gpus_used}/{pool.gpus}",
            str(pool.running),
            f"{pool.queued}, {pool.set_aside} set aside" if pool.set_aside else str(pool.queued),
            str(pool.held),
            _last_cycle(pool, now),
        )
    return table


def pool_facts(pool: PoolView) -> list[tuple[str, RenderableType]]:
    """Return a pool's settings in words."""
    packing = pool.spec.packing
    weights = ", ".join(
        f"{name} {value:g}" for name, value in packing.weights.model_dump().items()
    )
    return [
        ("growth", pool.spec.growth.value),
        ("rule", packing.rule.value),
        ("weights", weights),
        ("safety margin", format_duration(packing.safety_margin)),
        ("GPU choice", packing.gpu_choice.value),
        ("gang packing", packing.gang_packing.value),
        ("reservations", f"at most {packing.starts_kept}"),
        ("order in a class", packing.in_order.value),
        *_score(packing.score),
        *_unstoppable(packing.unstoppable_least),
        ("class rises", _rises(packing.class_rises_every)),
        ("interval", format_duration(pool.spec.interval)),
        ("time limit of jobs", _limit(pool.spec.max_duration)),
        ("malleable jobs grow", _grows(pool.spec.grow_after)),
        ("price of a GPU-hour", price_words(pool.spec, pool.price)),
        ("jobs start", _starts_below(pool.spec.start_below)),
        ("buying", buying_words(pool.spec.buying)),
        ("preemption", _preemption(pool.spec.preemption)),
        ("checkpoints", _checkpoints(pool.spec.checkpoints)),
    ]


def _score(score: ScorePolicy | None) -> list[tuple[str, RenderableType]]:
    """Return what puts the queue into order beside that, where anything does."""
    if score is None:
        return []
    weights = ", ".join(f"{name} {of:g}" for name, of in score.used.named() if of)
    shares = [f"{tenant} {share:g}" for tenant, share in sorted(score.shares.items())]
    bars = {"jobs start from": score.start_above, "and are bought for from": score.buy_above}
    said = [f"{what} {bar:g} on" for what, bar in bars.items() if bar is not None]
    lines: list[tuple[str, RenderableType]] = [
        ("score", f"{score.profile or 'own weights'}: {weights}"),
    ]
    if score.by_share:
        rest = "others as in the tree of tenants" if shares else "as in the tree of tenants"
        lines.append(("shares", f"{', '.join([*shares, rest])}; "
                      f"half-life {format_duration(score.half_life)}"))  # fmt: skip
    return [*lines, ("score needed", ", ".join(said))] if said else lines


def node_line(node: NodeView) -> str:
    """Return a node in one line, for what is not a terminal."""
    mark = f" ({SIMULATED})" if node.simulated else ""
    running = _jobs(node).plain
    return f"node {node.id}{mark} {node.state.value} {cells(node).plain} {running}".rstrip()


def _unstoppable(least: timedelta) -> list[tuple[str, str]]:
    return (
        [("jobs that cannot stop", f"count as {format_duration(least)} at least")] if least else []
    )


def _rises(every: timedelta) -> str:
    return f"by one for each {format_duration(every)} in the queue" if every else "never"


def _grows(after: timedelta) -> str:
    return f"onto GPUs that were idle for {format_duration(after)}" if after else "never"


def _starts_below(price: int | None) -> str:
    return "at any price" if price is None else f"below {format_gpu_hour_price(price)}"


def _limit(limit: timedelta | None) -> str:
    return "none" if limit is None else f"{format_duration(limit)} at most, and by default"


def buying_words(policy: BuyingPolicy) -> str:
    """Return by which rule a pool buys, and for how much at most."""
    if not policy.enabled:
        return "off"
    caps = (
        ("a purchase", policy.caps.per_purchase),
        ("a day", policy.caps.per_day),
        *((f"a day for {tier}", cap) for tier, cap in policy.caps.per_tier_day.items()),
        ("a day for a tenant", policy.caps.per_tenant_day),
    )
    most = ", ".join(f"at most {format_dollars(cap)} {of}" for of, cap in caps if cap is not None)
    prices = [
        f"a GPU-hour at {'any price' if cap is None else f'most {format_dollars(cap)}'} for {tier}"
        for tier in Tier
        for cap in [policy.max_price.get(tier)]
    ]
    kind = f" {policy.fast_warm_type}" if policy.fast_warm_type else ""
    warm = f"at least {count(policy.fast_warm_gpus, f'{kind} GPU'.strip())} kept warm"
    return "; ".join(
        [
            f"by {policy.rule.value}, {most or 'without a cap'}",
            *prices,
            *([warm] if policy.fast_warm_gpus else []),
            *_from_whom(policy),
        ]
    )


def _from_whom(policy: BuyingPolicy) -> list[str]:
    """Return which types, sellers, regions and countries a policy names."""
    found = [f"{', '.join(policy.instance_types)} alone"] if policy.instance_types else []
    for name in ("sellers", "regions", "countries"):
        among: Among = getattr(policy, name)
        if among.include:
            found.append(f"{name} {', '.join(among.include)} alone")
        if among.exclude:
            found.append(f"no {name} {', '.join(among.exclude)}")
    return [*found, *(["community hosts too"] if policy.community else [])]


def _preemption(policy: PreemptionPolicy) -> str:
    if not policy.enabled:
        return "off"
    draws = ""
    if policy.overcommit is Overcommit.LOTTERY:
        draws = "; by lottery where budgets pay for more than there is"
    from_whom = "bands" if policy.levels is PreemptionLevels.BANDS else "classes"
    return (
        f"from lower {from_whom}, at most {count(policy.max_victims, 'job')} for one, none within "
        f"{format_duration(policy.near_end)} of its end{draws}"
    )


def _checkpoints(policy: CheckpointPolicy) -> str:
    if not policy.enabled:
        return "not asked for"
    shortest, longest = format_duration(policy.min_interval), format_duration(policy.max_interval)
    return f"asked for where they are worth it, {shortest} to {longest} apart"


def _name(node: NodeView, wide: bool) -> Text:
    name = Text(node.id)
    if wide and node.hostname and node.hostname != node.id:
        name.append(f" on {node.hostname}", style="dim")
    return name


def _state(node: NodeView, *, longest: int) -> Text:
    state = Text(state_of(node), style=styled(node.state).style)
    if node.state is not NodeState.READY and node.state_reason:
        state.append(f" {_cut(node.state_reason, longest)}", style="dim")
    return state


def _cut(text: str, longest: int) -> str:
    shown = in_one_line(text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _kind(node: NodeView, *, longest: int, two_lines: bool) -> Text:
    what = _cut(f"{len(node.gpus)} x {node.gpu_type or 'GPU'}", longest)
    if not node.simulated:
        return Text(what)
    kind = SeveralLines([what, ""]) if two_lines else Text(f"{what} ")
    return kind.append(SIMULATED, style="yellow")


def _jobs(node: NodeView) -> Text:
    whole = [gpu for gpu in node.gpus if gpu.job_id is not None]
    names = {gpu.job_id: gpu.job_name or gpu.job_id for gpu in whole}
    names |= {gpu.lent_to: f"{gpu.lent_to} on a lent spare" for gpu in whole if gpu.lent_to}
    names |= {
        part.job_id: f"{part.job_name} {share_of(part, gpu)}"
        for gpu in node.gpus
        for part in gpu.parts
    }
    running = Text()
    for job_id, letter in letters_of(node).items():
        running.append(" " if running else "").append(letter, style=_colour(letter))
        running.append(f"={names[job_id]}")
    return running


def _jobs_of(gpu: GPUView) -> tuple[str, ...]:
    if gpu.job_id is not None:
        return (gpu.job_id,) if gpu.lent_to is None else (gpu.job_id, gpu.lent_to)
    return tuple(part.job_id for part in gpu.parts)


def share_of(part: PartView, gpu: GPUView) -> str:
    """Return what a job has of a GPU: ``500/1000``, the profile of its MIG instance, or its memory
    where that is the larger part, or it runs an engine."""
    if part.mig:
        return part.mig
    by_memory = bool(gpu.vram) and part.vram / gpu.vram > part.milli / WHOLE
    by_memory = by_memory or part.runs_engine
    return format_gb(part.vram) if by_memory else f"{part.milli}/{WHOLE}"


def _colour(letter: str) -> str:
    return f"bold {_COLOURS[ord(letter) % len(_COLOURS)]}"


def _last_cycle(pool: PoolView, now: datetime) -> str:
    if pool.last_cycle_at is None:
        return "-"
    took = "" if pool.last_cycle_ms is None else f", took {pool.last_cycle_ms:.0f} ms"
    return f"{ago(pool.last_cycle_at, now)}{took}"
