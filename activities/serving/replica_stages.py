"""What the engine of a replica does, by its row."""

from sqlalchemy import RowMapping

from longshore.models.serving import EngineStage


def stage_of(row: RowMapping) -> EngineStage | None:
    """Return what its engine does; None while it waits for a GPU.

    The row is of `replicas`, with the attempt that has a GPU as `placed_as`.
    """
    if row["placed_as"] is None:
        return None
    # Of an attempt before this one it says nothing any more.
    return EngineStage(row["stage"]) if is_current(row) and row["stage"] else EngineStage.LOADING


def is_current(row: RowMapping) -> bool:
    """Return whether what is known of its engine is of the attempt that has a GPU."""
    return row["placed_as"] is not None and row["attempt"] == row["placed_as"]


def failure_of(row: RowMapping) -> str:
    """Return why an engine of it failed last; empty where one has been ready since."""
    # One that was ready and of which no end was heard: an earlier version kept the message then.
    was_ready = row["stage"] in (EngineStage.READY, EngineStage.DRAINING)
    return "" if was_ready else row["message"]


def failed_last(row: RowMapping) -> bool:
    """Return whether it waits after its engine failed: to be tried again, or for a GPU."""
    return row["placed_as"] is None and row["stage"] == EngineStage.FAILED


def tried_again(row: RowMapping) -> bool:
    """Return whether it waits to be tried again: its job is not in the queue before that."""
    return failed_last(row) and not row["queued"]
