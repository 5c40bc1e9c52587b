"""Leaving a process that has connected to Temporal."""

import logging
import os
import sys
from typing import NoReturn


def leave(code: int = 0) -> NoReturn:
    """Flush what was written, then end the process at once with `code`.

    Every entry point that connects ends here. The native part of the Temporal SDK may abort
    while the interpreter shuts down, after all the work is done, and the exit code would say
    "aborted" for a command that succeeded (temporalio/sdk-python, issue 300).
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the reader of a pipe has gone, or somebody closed the stream
    os._exit(code)
