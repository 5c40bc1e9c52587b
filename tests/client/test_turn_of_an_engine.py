"""What is said of the turn of an engine that waits."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.activities.preemption_inputs import PreemptionInputs
from longshore.client.preempt_plan import weighed, words_of_like
from longshore.models.job_request import EngineKey, JobRequest
from longshore.models.pool import PoolSpec
from longshore.models.preemption import RunningEngine, RunningWork
from tests.support.packing import HOUR, NOW, a_job, a_node
from tests.support.preemption import RULES, a_work, nodes_with

SOON = NOW + timedelta(seconds=30)
STOPS = (
    "as things are now, stop e, which yields since the other has waited for its turn: it loses $"
)
SPARES = "as things are now, nobody may be stopped for it: of 1 running job, 1 preempted of late"


def in_use(**fields: Any) -> RunningWork:
    engine = RunningEngine(
        model="chat", runtime="llama.cpp", load_time=timedelta(minutes=3), uses=4,
        ready_at=NOW - HOUR, idle_since=None,
    )  # fmt: skip
    work = a_work("e", {"n": [0]}, priority=5, milli=875, ran=2 * HOUR, engine=engine)
    return work.model_copy(update=fields)


def a_pool(work: RunningWork, *waits: JobRequest) -> PreemptionInputs:
    nodes = nodes_with([work], [a_node("n", gpus=1)])
    spec = PoolSpec(name="p", preemption=RULES)
    return PreemptionInputs(spec=spec, nodes=tuple(nodes), running=(work,), queue=waits)


def said(work: RunningWork, *waits: JobRequest) -> str:
    return weighed(a_pool(work, *waits), "waits", NOW).says


def waits(**fields: Any) -> JobRequest:
    asks: dict[str, Any] = {"serves": True, "vram_per_gpu": 70.0, "milli": 875, "priority": 5}
    key = EngineKey(model="other", runtime="llama.cpp")
    return a_job("waits", 1, expected_duration=9 * HOUR, engine=key, **asks, **fields)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [({"turn_at": SOON}, f"it has its turn from {SOON:%H:%M:%S} UTC on: "),
     ({"turn": NOW - HOUR}, "it has its turn: ")],
)  # fmt: skip
def test_it_is_told_when_it_comes_who_would_be_stopped_and_what_that_costs(
    fields: dict[str, Any], begins: str
) -> None:
    assert said(in_use(), waits(**fields)).startswith(f"{begins}{STOPS}")
    alone = said(in_use(preempted_at=(NOW - timedelta(minutes=3),)), waits(**fields))
    assert alone.startswith(f"{begins}{SPARES}")
    # Who has waited longer has its turn before, and takes the place of the only one.
    earlier = [{"turn": NOW - 2 * HOUR}]
    if "turn_at" in fields:
        earlier.append({"turn_at": SOON - timedelta(seconds=1)})
    for turn in earlier:
        first = waits(**turn).model_copy(update={"id": "first"})
        first = first.model_copy(update={"engine": EngineKey(model="first", runtime="llama.cpp")})
        assert STOPS not in said(in_use(), first, waits(**fields))
        assert STOPS not in said(in_use(), waits(**fields), first)


def test_nothing_is_said_of_what_is_to_have_none() -> None:
    assert said(in_use(), waits()) == ""
    assert said(in_use()) == ""


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"pinned": True}, "1 pinned"),
        ({"ready_at": None}, "1 loading a model"),
        ({}, "1 serving, and not of a lower class"),
    ],
)
def test_a_job_behind_an_engine_is_told_why_that_does_not_leave(
    engine: dict[str, Any], why: str
) -> None:
    """Its end by the clock is none: it runs as long as its service."""
    work = in_use()
    assert work.engine is not None
    work = work.model_copy(update={"engine": work.engine.model_copy(update=engine)})
    job = a_job("waits", 1, priority=9 if engine else 5)
    found = weighed(a_pool(work, job), "waits", NOW)
    assert found.says == (
        f"nobody may be stopped for it: of 1 running job, {why}; an engine runs until its "
        "service is scaled down or removed"
    )
    assert found.plan is not None
    assert weighed(a_pool(in_use(engine=None), job), "waits", NOW).says == ""
    # One that is stopped for it is told with its price.
    higher = a_job("waits", 1, priority=9)
    assert weighed(a_pool(in_use(), higher), "waits", NOW).says == ""


def test_nothing_is_said_of_what_no_node_could_ever_hold() -> None:
    assert said(in_use(), waits(turn=NOW - HOUR)).startswith("it has its turn: ")
    large = waits(turn=NOW - HOUR).model_copy(update={"vram_per_gpu": 100_000.0})
    assert said(in_use(), large) == ""


def test_of_one_of_a_model_that_waits_already_that_one_is_named() -> None:
    new = waits().model_copy(update={"id": "new"})
    told = words_of_like(a_pool(in_use(), waits(), new), new)
    assert told == "waits waits with the same model already: `longshore why waits` tells of it"
    other = new.model_copy(update={"engine": EngineKey(model="third", runtime="llama.cpp")})
    assert words_of_like(a_pool(in_use(), waits(), other), other) == ""
