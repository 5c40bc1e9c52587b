"""What is kept free before the end of a node, so that jobs can leave it in time."""

from datetime import timedelta

from longshore.models.base import Frozen
from longshore.models.units import Duration


class Margins(Frozen):
    """What is kept free before the end of a node. A control worker takes it from its settings."""

    end: Duration = timedelta(seconds=30)
    """Between the last word of a job and the end."""
    publish: Duration = timedelta(minutes=1)
    """For a checkpoint to reach its store, after the job has saved it."""


DEFAULT_MARGINS = Margins()
"""Those of a control worker whose settings say nothing."""
