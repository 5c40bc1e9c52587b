"""A notice that the machine is about to be taken away: a file that somebody writes on it.

Whoever watches the market's own sign (a metadata address, a signal of the machine) writes it.
In it is the moment, such as 2026-11-20T12:00:00Z, or nothing where that is not known.
"""

import asyncio
import logging
from datetime import datetime
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from longshore.models.departures import SpotNotice
from longshore.models.messages import node_workflow_id

_EVERY = 1.0
"""Seconds between two looks at the file."""
_log = logging.getLogger(__name__)


async def pass_on_notices(client: Client, node_id: str, file: Path) -> None:
    """Tell the node's workflow of every notice, until cancelled."""
    told = ""
    while True:
        text = await asyncio.to_thread(_read, file)
        if text is None:
            told = ""
        elif text != told and await _tell(client, node_id, read_notice(text)):
            told = text
        await asyncio.sleep(_EVERY)


def read_notice(text: str) -> SpotNotice:
    """Return what a file says; where it names no moment it may be any: the notice is clear."""
    reason = "its machine is about to be taken away"
    try:
        return SpotNotice(at=datetime.fromisoformat(text.strip()), reason=reason)
    except ValueError:  # also of a time without its zone
        return SpotNotice(reason=reason)


def _read(file: Path) -> str | None:
    try:
        return file.read_text() or "now"
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _log.error("the notice %s cannot be read: %s", file, error)
        return "now"


async def _tell(client: Client, node_id: str, notice: SpotNotice) -> bool:
    try:
        handle = client.get_workflow_handle(node_workflow_id(node_id))
        await handle.signal("spot_notice", notice)
    except RPCError as error:
        _log.warning("the notice that this machine ends was not heard: %s", error.message)
        return False
    _log.warning("this machine is about to be taken away: its jobs are asked to leave")
    return True
