"""What `longshore serve --dry-run` says: what would be changed, started, placed and stopped."""

from longshore.models.base import Frozen
from longshore.models.forecast import Forecast
from longshore.models.model_registry import RegistryChange


class StoppedReplica(Frozen):
    """A replica that would be stopped."""

    job_id: str
    why: str


class ServicePreview(Frozen):
    """What would become of a service, were it served now."""

    service: str
    says: str
    """What it would be like, and what of that is another than now."""
    revision: int
    """That it would have."""
    gpus: int
    """Of each engine."""
    memory: int
    """MB on each of them."""
    memory_from: str
    """Where that figure is from."""
    start: int
    """Replicas that would be started, until all are as wanted."""
    replicas: tuple[Forecast, ...] = ()
    """What would become of the first of them; none behind one that would not start by itself."""
    stop: tuple[StoppedReplica, ...] = ()
    """Replicas of it that would be stopped, one after the other where others come in their place.
    Who else would be stopped is with the replica for which."""
    warnings: tuple[str, ...] = ()


class ServePreview(Frozen):
    """What would become of models and services, were they served now. Nothing is changed."""

    models: tuple[RegistryChange, ...] = ()
    services: tuple[ServicePreview, ...]
    warnings: tuple[str, ...] = ()
    """Of the models."""
