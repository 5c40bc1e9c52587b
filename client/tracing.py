"""Traces of a job from its submit to its process, as OpenTelemetry spans.

The interceptor belongs to the client: workers take it over from there.
"""

import logging
import threading
from functools import cache
from typing import TYPE_CHECKING

from temporalio.client import Interceptor

from longshore.client.process import before_leaving
from longshore.models.errors import StackError
from longshore.models.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler

LAST_SPANS_WITHIN = 3.0
"""Seconds that a process that ends waits for a collector to take its last spans."""
_QUERIES = ("QueryWorkflow:", "HandleQuery:")

_log = logging.getLogger(__name__)


def tracing(settings: Settings, service: str) -> list[Interceptor]:
    """Return what a client needs to trace: nothing where the settings name no collector.

    Raises StackError where the packages of the extra `otel` are missing.
    """
    if settings.otlp_endpoint is None:
        return []
    try:
        return [_interceptor(settings.otlp_endpoint, service)]
    except ImportError as error:
        raise StackError(
            f"otlp_endpoint is set, and the packages for traces are not installed ({error}). "
            "Install Longshore with its extra `otel`, or leave otlp_endpoint out."
        ) from None


@cache  # one for each process, however often it connects
def _interceptor(endpoint: str, service: str) -> Interceptor:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from temporalio.contrib.opentelemetry import TracingInterceptor

    provider = TracerProvider(
        sampler=_sampler(),
        resource=Resource.create({"service.name": service}),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    before_leaving(lambda: _send_the_rest(provider))
    return TracingInterceptor(provider.get_tracer("longshore"))


def _sampler() -> "Sampler":
    """Trace everything but queries: who watches a job asks twice a second."""
    from opentelemetry.sdk.trace.sampling import (
        ALWAYS_ON,
        Decision,
        ParentBased,
        Sampler,
        SamplingResult,
    )

    class NoQueries(Sampler):
        def should_sample(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, parent_context: object, trace_id: int, name: str, *args: object, **kwargs: object
        ) -> SamplingResult:
            if name.startswith(_QUERIES):
                return SamplingResult(Decision.DROP)
            return ALWAYS_ON.should_sample(None, trace_id, name)

        def get_description(self) -> str:
            return "everything but queries"

    return ParentBased(root=NoQueries())


def _send_the_rest(provider: "TracerProvider") -> None:
    """Send the last spans, and give up on a collector that is away: the process wants to end."""
    sending = threading.Thread(target=provider.shutdown, daemon=True)
    sending.start()
    sending.join(LAST_SPANS_WITHIN)
    if sending.is_alive():
        _log.warning("the last spans did not reach the collector")
