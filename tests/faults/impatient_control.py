"""The control worker as `longshore up` starts it, but for its patience with what was lost.

A step that was cut short is given up after some seconds, not fifteen, and a workflow whose worker
has gone is handed to the next one after one second, not ten: a suite of many kills would wait most
of its time. With TESTS_SPREAD in the environment any worker takes a step, where it would otherwise
be the one that holds the workflow. Run as `python -m tests.faults.impatient_control`.
"""

import os
from datetime import timedelta
from functools import partial

from temporalio.worker import Worker

from longshore.workflows import options

options.DATABASE_TIMEOUT = timedelta(seconds=2.5)
options.SUBMITS_TIMEOUT = timedelta(seconds=5)
options.PROCESS_HEARTBEAT_TIMEOUT = timedelta(seconds=8)
options.MARKET_HEARTBEAT_TIMEOUT = timedelta(seconds=4)

from longshore.workers import control  # noqa: E402 (after the constants that it copies)

control.Worker = partial(  # pyright: ignore[reportAttributeAccessIssue]
    Worker,
    sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    disable_eager_activity_execution="TESTS_SPREAD" in os.environ,
)

if __name__ == "__main__":
    control.main()
