"""One trace from the submit of a job to its process, across four processes."""

import subprocess
import sys

import pytest

from tests.support.collector import Collector, Span
from tests.support.local_stack import ROOT
from tests.support.plant import Plant
from tests.support.waiting import eventually

NAMES = {
    "StartWorkflow:JobWorkflow", "RunWorkflow:JobWorkflow", "RunActivity:enqueue",
    "StartActivity:run_process", "RunActivity:run_process", "RunActivity:finish",
}  # fmt: skip
"""Three processes send these, each when it likes."""


async def test_a_trace_goes_from_submit_to_the_process(
    plant: Plant, collector: Collector, jobs: dict[str, str]
):
    def whole() -> dict[str, Span]:
        starts = [span for span in collector.spans if span.name == "StartWorkflow:JobWorkflow"]
        for start in starts:
            spans = {span.name: span for span in collector.spans if span.trace == start.trace}
            if spans.keys() >= NAMES:
                return spans
        return {}

    spans = await eventually(whole)
    assert spans["StartWorkflow:JobWorkflow"].service == "longshore-client"
    assert spans["RunWorkflow:JobWorkflow"].service == "longshore-control"
    assert spans["RunActivity:enqueue"].service == "longshore-control"
    assert spans["RunActivity:run_process"].service == "longshore-agent"

    by_id = {span.span: span for span in spans.values()}
    here, path = spans["RunActivity:run_process"], []
    while here:
        path.append(here.name)
        here = by_id.get(here.parent)
    assert path == [
        "RunActivity:run_process",
        "StartActivity:run_process",
        "StartWorkflow:JobWorkflow",
    ]
    assert not [span for span in collector.spans if "Query" in span.name]
    assert collector.paths == {"/v1/traces"}


def test_a_collector_that_is_away_does_not_hold_up_a_command(plant: Plant):
    done = plant.longshore(
        "submit", "--pool", "nowhere", "--quiet", "--", "true",
        LONGSHORE_OTLP_ENDPOINT="http://127.0.0.1:1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.exhaustive
def test_missing_packages_are_said_plainly():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from longshore.client.tracing import tracing\n"
        "from longshore.models.settings import Settings\n"
        "from longshore.models.errors import StackError\n"
        "try: tracing(Settings(otlp_endpoint='http://127.0.0.1:1'), 'test')\n"
        "except StackError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "packages for traces are not installed" in done.stdout
    assert "extra `otel`" in done.stdout
