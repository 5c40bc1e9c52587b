"""What agents and control plane say to each other, field by field, and the number of that.

After a change of a message: raise `PROTOCOL` of `models/protocol.py`, say there what it brought,
and run `python -m tests.models.test_protocol`, which writes `protocol.json` anew.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from longshore.models.array_messages import StopElements
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.data import HeldReport
from longshore.models.departures import SpotNotice
from longshore.models.messages import CommandReason
from longshore.models.node_messages import (
    Heartbeat,
    Prepared,
    PrepareRequest,
    ProcessReport,
    Progress,
    Registered,
    Registration,
    RunProcessRequest,
    StopProcessRequest,
    WatchReport,
    WatchRequest,
)
from longshore.models.protocol import COUNTS_HEARTBEATS, PROTOCOL
from longshore.models.resize import SizeNotice
from longshore.models.service_messages import EngineNotice

_STORED = Path(__file__).with_name("protocol.json")
MESSAGES: tuple[type[BaseModel], ...] = (
    Registration, Registered, WatchRequest, Heartbeat, WatchReport, RunProcessRequest, Progress,
    ProcessReport, StopProcessRequest, SaveRequest, CheckpointInfo, CommandReason, SpotNotice,
    StopElements, SizeNotice, PrepareRequest, Prepared, HeldReport, EngineNotice,
)  # fmt: skip


def test_a_message_that_changes_raises_the_protocol():
    stored = json.loads(_STORED.read_text())
    assert stored == {"protocol": PROTOCOL, "fields": fields()}, __doc__


def test_the_protocol_of_an_agent_that_sends_no_number_follows_from_what_it_says():
    def speaks(**said: object) -> int:
        return Registration.model_construct(**said).speaks  # pyright: ignore[reportArgumentType]

    assert speaks() == 0
    assert speaks(counts_heartbeats=True) == COUNTS_HEARTBEATS
    assert speaks(counts_heartbeats=True, protocol=PROTOCOL) == PROTOCOL


def fields() -> dict[str, list[str]]:
    """Return the fields, or the words, of all messages and of what is in them."""
    found: dict[str, list[str]] = {}
    for message in MESSAGES:
        schema = message.model_json_schema()
        parts: dict[str, Any] = {**schema.pop("$defs", {}), message.__name__: schema}
        for name, part in parts.items():
            found[name] = sorted(map(str, part.get("properties") or part.get("enum") or ()))
    return dict(sorted(found.items()))


if __name__ == "__main__":
    content = {"protocol": PROTOCOL, "fields": fields()}
    _STORED.write_text(json.dumps(content, indent=1) + "\n")
