"""The scene of `longshore demo --survive` as people see it: line by line, then side by side."""

import time
from typing import TextIO

from rich.console import RenderableType

from longshore.client.terminal import Text, a_table, heading
from longshore.workers.survival import SurvivalReport, Trained


class Lines:
    """A line for each thing that happens, with the seconds since the beginning."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()

    def __call__(self, kind: str, sentence: str) -> None:
        seconds = time.monotonic() - self._began
        line = f"{seconds:6.1f} s  {kind:<9}  {sentence}".rstrip()
        print(line, file=self._stream, flush=True)


def survival_summary(report: SurvivalReport) -> tuple[RenderableType, ...]:
    """Return the attempts, both results side by side, and the verdict."""
    parts: list[RenderableType] = [Text(), heading("Attempts of the training"), _attempts(report)]
    parts += [Text(), heading("Side by side"), _side_by_side(report), Text()]
    if report.problems:
        return (*parts, *(Text(f"problem: {each}", style="bold red") for each in report.problems))
    verdict = "The same weights, to the last bit."
    return (*parts, Text(verdict, style="bold green"))


def _attempts(report: SurvivalReport) -> RenderableType:
    table = a_table(("#", "node", "epochs", "end"), right=("#",), fold=("end",))
    for each in report.disturbed.attempts:
        epochs = f"{each.resumed_at + 1} to {each.reached}"
        if each.reached == each.resumed_at:
            epochs = f"none after {each.resumed_at}"
        table.add_row(str(each.attempt), each.node_id, epochs, each.end)
    return table


def _side_by_side(report: SurvivalReport) -> RenderableType:
    table = a_table(("", "job", "attempts", "took", "sha256 of the weights"), fold=("job",))
    for name, each in (("disturbed", report.disturbed), ("undisturbed", report.undisturbed)):
        table.add_row(
            name, each.job_id, str(len(each.attempts)), f"{each.seconds:.0f} s", _digest(each)
        )
    return table


def _digest(trained: Trained) -> str:
    return trained.digest or "none was printed"
