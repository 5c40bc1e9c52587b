"""How a job's checkpoint looks among the facts of the job."""

from datetime import datetime

from rich.console import RenderableType

from longshore.models.checkpoint import CheckpointInfo
from longshore.models.checkpointing import CheckpointDecision, CheckpointTerm
from longshore.models.node_messages import Progress
from longshore.models.text import ago, dollars
from longshore.models.units import format_bytes


def checkpoint_facts(
    progress: Progress | None, stored: CheckpointInfo | None, now: datetime
) -> list[tuple[str, RenderableType]]:
    """Return what the process says of its last checkpoint, what is stored, and what is wrong."""
    said = progress.checkpoint if progress else None
    facts: list[tuple[str, RenderableType]] = []
    if said is not None and (stored is None or said.order > stored.order):
        where = "is in the store" if said.published else "not in the store"
        facts.append(("checkpoint", f"{_line(said, now)}, {where}"))
    if stored is not None:
        facts.append(("checkpoint", f"{_line(stored, now)}, is in the store"))
    return facts + trouble_facts(progress.checkpoint_error if progress else "")


def trouble_facts(error: str) -> list[tuple[str, RenderableType]]:
    """Return what is wrong with the checkpoints of a process, as it says."""
    return [("checkpoint", f"trouble: {error}")] if error else []


def saving_facts(
    decision: CheckpointDecision | None, now: datetime
) -> list[tuple[str, RenderableType]]:
    """Return what was decided last about a save, with what counted."""
    if decision is None:
        return []
    asked = "asked to save" if decision.save else "not asked to save"
    facts: list[tuple[str, RenderableType]] = [
        ("saving", f"{asked} {ago(decision.at, now)}: {decision.reason}")
    ]
    if decision.terms:
        counted = ", ".join(_term(term) for term in decision.terms)
        cost = f"GPUs {dollars(decision.write)}, storage {dollars(decision.storage)}"
        facts.append(("", f"may be lost: {counted}; a save: {cost}"))
    return facts


def _term(term: CheckpointTerm) -> str:
    return f"{term.name} {dollars(term.value)} ({100 * term.chance:.2g}%)"


def _line(info: CheckpointInfo, now: datetime) -> str:
    step = f"step {info.step}" if info.step is not None else f"number {info.number}"
    took = "" if info.write_seconds is None else f", written in {info.write_seconds:.1f}s"
    return (
        f"{step} of attempt {info.attempt}, {ago(info.saved_at, now)}, "
        f"{format_bytes(info.bytes)}{took}"
    )
