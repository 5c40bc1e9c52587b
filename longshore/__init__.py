"""Longshore loads GPU jobs onto machines bought from compute markets.

`from longshore import Longshore, JobSpec` is the way in for programs. Each name is imported when
it is asked for, since the client needs a second that a program which only builds specs does not
have to wait for. The packages beneath are `longshore.models`, `longshore.client` and so on; in a
checkout they are links to the folders at the top (docs/decisions/0059-one-import-name.md).
"""

from importlib import import_module

TYPE_CHECKING = False  # that of `typing` costs each process of a node 7 ms
if TYPE_CHECKING:
    from longshore.client.api import Longshore
    from longshore.client.process import leave
    from longshore.models.dag import DagJob, DagSpec, Join
    from longshore.models.dag_edges import Condition, Edge, Extra
    from longshore.models.dag_view import DagState, DagSubmission, DagView
    from longshore.models.elements import ElementState
    from longshore.models.errors import (
        ConflictError,
        LongshoreError,
        NotFoundError,
        RefusedError,
        SpecError,
        UnavailableError,
        UnsatisfiableError,
    )
    from longshore.models.funding import Budget, Tenant
    from longshore.models.funding_use import UsedBy
    from longshore.models.job import JobSpec
    from longshore.models.job_status import JobResult, JobState, JobStatus
    from longshore.models.pool import PoolSpec
    from longshore.models.price_series import PriceSeries
    from longshore.models.schedule import Overlap, ScheduleTimes, ScheduleView
    from longshore.models.service import ServiceSpec
    from longshore.models.serving import ModelSpec, Runtime
    from longshore.models.settings import Settings
    from longshore.models.views import JobView, NodeView, Submission


_HOMES = {
    "Longshore": "longshore.client.api",
    "leave": "longshore.client.process",
    "Condition": "longshore.models.dag_edges",
    "DagJob": "longshore.models.dag",
    "DagSpec": "longshore.models.dag",
    "Edge": "longshore.models.dag_edges",
    "Extra": "longshore.models.dag_edges",
    "Join": "longshore.models.dag",
    "DagState": "longshore.models.dag_view",
    "DagSubmission": "longshore.models.dag_view",
    "DagView": "longshore.models.dag_view",
    "ElementState": "longshore.models.elements",
    "ConflictError": "longshore.models.errors",
    "LongshoreError": "longshore.models.errors",
    "NotFoundError": "longshore.models.errors",
    "RefusedError": "longshore.models.errors",
    "SpecError": "longshore.models.errors",
    "UnavailableError": "longshore.models.errors",
    "UnsatisfiableError": "longshore.models.errors",
    "Budget": "longshore.models.funding",
    "Tenant": "longshore.models.funding",
    "UsedBy": "longshore.models.funding_use",
    "JobSpec": "longshore.models.job",
    "JobResult": "longshore.models.job_status",
    "JobState": "longshore.models.job_status",
    "JobStatus": "longshore.models.job_status",
    "PoolSpec": "longshore.models.pool",
    "PriceSeries": "longshore.models.price_series",
    "Overlap": "longshore.models.schedule",
    "ScheduleTimes": "longshore.models.schedule",
    "ScheduleView": "longshore.models.schedule",
    "ServiceSpec": "longshore.models.service",
    "ModelSpec": "longshore.models.serving",
    "Runtime": "longshore.models.serving",
    "Settings": "longshore.models.settings",
    "JobView": "longshore.models.views",
    "NodeView": "longshore.models.views",
    "Submission": "longshore.models.views",
}

__all__ = [
    "Budget",
    "Condition",
    "ConflictError",
    "DagJob",
    "DagSpec",
    "DagState",
    "DagSubmission",
    "DagView",
    "Edge",
    "ElementState",
    "Extra",
    "JobResult",
    "JobSpec",
    "JobState",
    "JobStatus",
    "JobView",
    "Join",
    "Longshore",
    "LongshoreError",
    "ModelSpec",
    "NodeView",
    "NotFoundError",
    "Overlap",
    "PoolSpec",
    "PriceSeries",
    "RefusedError",
    "Runtime",
    "ScheduleTimes",
    "ScheduleView",
    "ServiceSpec",
    "Settings",
    "SpecError",
    "Submission",
    "Tenant",
    "UnavailableError",
    "UnsatisfiableError",
    "UsedBy",
    "leave",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
