"""Timeouts and retries of activities, by what the activity talks to."""

from dataclasses import replace
from datetime import timedelta

from temporalio.common import RetryPolicy

DATABASE_TIMEOUT = timedelta(seconds=15)
"""Every step takes milliseconds; a worker that was killed in one costs this wait."""
SUBMITS_TIMEOUT = timedelta(seconds=60)
"""A step that starts up to 200 workflows."""
DATABASE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    maximum_interval=timedelta(seconds=10),
    non_retryable_error_types=["ValidationError"],
)
"""A database that is away comes back: try for ever, soon at first."""
BOUGHT_RETRY = replace(DATABASE_RETRY, non_retryable_error_types=[])
"""Of what is bought and billed, also where a row cannot be read: a worker of another version may
read it, and whoever gave up would leave a machine that nobody stops. What is only to be bought is
given up (`DATABASE_RETRY`): `reconcile` settles that purchase, and its pool decides anew."""
CANCEL_WITHIN = timedelta(seconds=20)
"""A job that may not even be in the database ends after this, whether or not that can be told."""
CYCLE_RETRY = replace(
    DATABASE_RETRY, non_retryable_error_types=["ValidationError", "StoredError"]
)  # fmt: skip
"""A pool or service that cannot be read waits in its workflow: a newer version of the worker may
read it."""

PROCESS_TIMEOUT = timedelta(days=3650)
"""A process may run as long as it likes; the node's liveness is watched elsewhere."""
PROCESS_HEARTBEAT_TIMEOUT = timedelta(seconds=60)
ENGINE_HEARTBEAT_TIMEOUT = timedelta(seconds=15)
"""An engine outlives its agent: so soon the next agent hears that it is to speak for it."""
PROCESS_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=5)
)
"""A repeat reaches the same agent, which finds the process that already runs."""
ELEMENTS_RETRY = replace(PROCESS_RETRY, non_retryable_error_types=["NotFoundError"])
"""An agent that does not know elements yet says that it has no such activity."""
PREPARE_RETRY = replace(
    PROCESS_RETRY, maximum_attempts=3, non_retryable_error_types=["NotFoundError"]
)
"""A job starts without what could not be brought in three tries; an agent that cannot do it at all
says that it has no such activity."""
TELL_SIZE_WITHIN = timedelta(seconds=30)
"""A node that does not answer for so long is not told: the job is stopped and starts again."""
STOP_ELEMENTS_WITHIN = timedelta(minutes=1)
"""A node that does not answer for so long keeps its batch: what ran shows as it ended."""

ANSWER_AFTER_CUT = timedelta(seconds=20)
"""An agent that has registered again, or started anew, knows how each of its processes ended."""
ONCE = RetryPolicy(maximum_attempts=1)

MARKET_TIMEOUT = timedelta(minutes=5)
"""A market's client tries for a minute, and its lists may lag for another."""
MARKET_HEARTBEAT_TIMEOUT = timedelta(seconds=15)
MARKET_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)
)
"""What was begun at a market has to be known to its end: try for ever."""
