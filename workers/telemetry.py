"""The one Temporal runtime of a process, with its metrics and its logs."""

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from longshore.activities.metrics import CATALOGUE, PREFIX
from longshore.models.errors import StackError
from longshore.models.settings import Settings

SDK_LOGGER = "temporalio.core"


def start_runtime(settings: Settings) -> Runtime:
    """Return a runtime to connect with; make one in a process, before its first client.

    It serves metrics where the settings say so, and its own logs go to Python's. Raises
    StackError when nothing can listen at that address.
    """
    address = settings.metrics_address
    try:
        return Runtime(
            telemetry=TelemetryConfig(
                logging=_logging(),
                metrics=_prometheus(address) if address else None,
                attach_service_name=False,
            )
        )
    except ValueError as error:
        raise StackError(
            f"metrics cannot be served at {address} ({error}). Choose another metrics_address: "
            "each process needs one of its own."
        ) from error


def _prometheus(address: str) -> PrometheusConfig:
    return PrometheusConfig(
        bind_address=address,
        counters_total_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides={
            f"{PREFIX}{metric.name}": metric.buckets for metric in CATALOGUE if metric.buckets
        },
    )


def _logging() -> LoggingConfig:
    return LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logger=logging.getLogger(SDK_LOGGER),
            append_target_to_name=False,
            prepend_target_on_message=False,
        ),
    )
