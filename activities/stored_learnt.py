"""What is learnt of a job's duration, as it is stored with its queue and its placement."""

from pydantic import ValidationError

from longshore.models.durations import Learnt


def stored_learnt(stored: object) -> Learnt | None:
    """Return what is learnt; nothing where somebody wrote by hand, or a newer version, what this
    one cannot read: the job is planned as one of which nobody knows."""
    if stored is None:
        return None
    try:
        return Learnt.model_validate(stored)
    except ValidationError:
        return None
