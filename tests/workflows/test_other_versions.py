"""Messages of the version before are understood, and so are those of the next."""

import base64
import inspect
import json
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from longshore.activities.cycle import CycleActivities
from longshore.activities.departures import DepartureActivities
from longshore.activities.node.process import NodeActivities
from longshore.activities.queue import QueueActivities
from longshore.activities.registry import RegistryActivities
from longshore.activities.spares import SpareActivities
from longshore.models.job import Tier
from longshore.models.node_messages import ProcessReport, Registration
from longshore.models.retry import FailureClass
from longshore.models.topology import LinkClass, NodeTopology

HISTORIES = Path(__file__).parents[1] / "histories"
"""As an earlier version stored them; see `make histories`."""
BETWEEN_PROCESSES = (
    CycleActivities, DepartureActivities, NodeActivities, QueueActivities, RegistryActivities,
    SpareActivities,
)  # fmt: skip
"""Activities whose callers and workers may have other versions while an upgrade goes on."""


OF_AGENTS = ("result of run_process", "result of watch_agent", "input of register_node")
"""What an agent says, which may be newer than all control workers."""
UNKNOWN = "of-a-newer-version"


class Message(NamedTuple):
    of: str
    kind: type[BaseModel]
    content: dict[str, Any]


@cache
def activities() -> dict[str, Callable[..., object]]:
    """Return the activities by name."""
    found: dict[str, Callable[..., object]] = {}
    for each in BETWEEN_PROCESSES:
        for _, function in inspect.getmembers(each, inspect.isfunction):
            if definition := getattr(function, "__temporal_activity_definition", None):
                found[definition.name] = function
    return found


def stored_messages() -> Iterator[Message]:
    """Yield the inputs and results of these activities in the stored histories."""
    for path in sorted(HISTORIES.glob("*.json")):
        scheduled: dict[str, str] = {}
        for event in json.loads(path.read_text())["events"]:
            if asked := event.get("activityTaskScheduledEventAttributes"):
                name = asked["activityType"]["name"]
                scheduled[event["eventId"]] = name
                yield from messages_of(name, "input", asked.get("input"))
            elif done := event.get("activityTaskCompletedEventAttributes"):
                name = scheduled[done["scheduledEventId"]]
                yield from messages_of(name, "result", done.get("result"))


def messages_of(name: str, side: str, payloads: dict[str, Any] | None) -> Iterator[Message]:
    function = activities().get(name)
    if function is None or not payloads:
        return
    hints = get_type_hints(function)
    result = hints.pop("return")
    kinds = [result] if side == "result" else list(hints.values())
    for kind, payload in zip(kinds, payloads["payloads"], strict=True):
        content = json.loads(base64.b64decode(payload["data"])) if "data" in payload else None
        if isinstance(content, dict) and issubclass(kind, BaseModel):
            yield Message(f"{side} of {name}", kind, content)


def of_a_newer_version(value: object, plain: Any) -> Any:
    """Return `plain`, the JSON of `value`, with a field in each model that nobody knows yet."""
    if isinstance(value, BaseModel):
        known = {
            name: of_a_newer_version(getattr(value, name), each) for name, each in plain.items()
        }
        return {**known, "of_a_newer_version": {"more": [1]}}
    if isinstance(value, tuple):
        return [of_a_newer_version(*pair) for pair in zip(value, plain, strict=True)]
    return plain


def in_newer_words(value: object, plain: Any) -> Any:
    """Return `plain`, the JSON of `value`, with a word that nobody knows yet for each that is one
    of an enumeration, but for the tier: where one is not known, no job can be put."""
    if isinstance(value, Enum) and not isinstance(value, Tier):
        return UNKNOWN
    if isinstance(value, BaseModel):
        return {name: in_newer_words(getattr(value, name), each) for name, each in plain.items()}
    if isinstance(value, tuple):
        return [in_newer_words(*pair) for pair in zip(value, plain, strict=True)]
    return plain


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    found = list(stored_messages())
    expected = {
        "input of run_process", "result of run_process", "input of register_node",
        "result of register_node", "input of watch_agent", "input of enqueue", "input of finish",
        "result of run_cycle",
    }  # fmt: skip
    assert expected <= {each.of for each in found}
    return found


def test_what_the_version_before_sent_is_read(messages: list[Message]):
    for message in messages:
        read = message.kind.model_validate(message.content)
        again = message.kind.model_validate_json(read.model_dump_json())
        assert again == read, message.of


def test_what_the_next_version_sends_is_read_as_far_as_it_is_known(messages: list[Message]):
    for message in messages:
        read = message.kind.model_validate(message.content)
        newer = of_a_newer_version(read, read.model_dump(mode="json"))
        assert newer != read.model_dump(mode="json")
        assert message.kind.model_validate(newer) == read, message.of


def test_words_that_only_a_newer_agent_knows_are_read_as_known_ones(messages: list[Message]):
    failures = set[FailureClass | None]()
    for message in messages:
        if message.of not in OF_AGENTS:
            continue
        read = message.kind.model_validate(message.content)
        newer = in_newer_words(read, read.model_dump(mode="json"))
        again = message.kind.model_validate_json(json.dumps(newer))
        if isinstance(read, ProcessReport) and isinstance(again, ProcessReport) and read.failure:
            failures.add(again.failure)
            assert UNKNOWN in again.message
            assert again.message.endswith(read.message)
            again = again.model_copy(update={"failure": read.failure, "message": read.message})
        if isinstance(read, Registration) and isinstance(again, Registration):
            again = again.model_copy(update={"inventory": read.inventory})
        assert again == read, message.of
    assert failures == {FailureClass.NODE}


def test_links_that_only_a_newer_agent_knows_count_as_not_known():
    link = LinkClass.NVLINK
    rows = ((None, link, link), (link, None, None), (link, None, None))
    newer = NodeTopology(gpus=(0, 1, 2), links=rows).model_dump(mode="json")
    newer["links"][0][2] = newer["links"][2][0] = UNKNOWN
    read = NodeTopology.model_validate_json(json.dumps(newer))
    assert read.links == ((None, link, None), (link, None, None), (None, None, None))


@pytest.mark.parametrize("said", [{"failure": 7}, {"failure": "user", "exit_code": "many"}])
def test_what_is_no_word_at_all_is_refused(said: dict[str, object]):
    with pytest.raises(ValidationError):
        ProcessReport.model_validate(said)


def test_very_many_words_that_are_not_known_are_read_in_one_pass():
    """A copy of the rows for each word would be 10 billion entries."""
    many = tuple((UNKNOWN,) for _ in range(100_000))
    with pytest.raises(ValidationError, match="links must have 1 rows"):
        NodeTopology.model_validate({"gpus": (0,), "links": many})


def test_of_rows_that_cannot_be_read_the_first_mistake_is_told():
    rows = [[0, 1, UNKNOWN]] * 1_000
    with pytest.raises(ValidationError) as refused:
        NodeTopology.model_validate({"gpus": [0, *["x"] * 1_000], "links": rows, "nics": [5] * 9})
    assert [each["loc"] for each in refused.value.errors()] == [("gpus", 1), ("links", 0, 0),
                                                                ("nics", 0)]  # fmt: skip
