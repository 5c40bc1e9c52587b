"""Elements that wait for those of another array, step by step on a database."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.queue_rows import ensure_pool
from longshore.models.array_messages import ClaimReply
from longshore.models.dag import DagSpec, Join
from longshore.models.dag_edges import Condition, Extra
from longshore.models.elements import ElementState
from tests.support.partners import PartnerWorld, report_of

Begin = Callable[..., Any]


@pytest.fixture
async def begin(temporal: Client, database_url: str, pool: str) -> AsyncIterator[Begin]:
    """Puts a DAG of arrays on record, given as its jobs; nobody follows it; 0.2 s."""
    database = Database(database_url, pool_size=20)

    async def begun(jobs: Mapping[str, dict[str, Any]]) -> PartnerWorld:
        filled = {name: {"command": "true", **job} for name, job in jobs.items()}
        spec = DagSpec.model_validate({"name": "d", "pool": pool, "jobs": filled})
        async with database.transaction() as connection:
            await ensure_pool(connection, pool)
        world = PartnerWorld(database, temporal, spec)
        await world.begin()
        return world

    try:
        yield begun
    finally:
        await database.close()


def behind(array: str, extra: str = "start", up: str = "prepare", **others: Any) -> dict[str, Any]:
    edge = {"condition": "corresponding", "extra": extra}
    return {"array": array, "after": {up: edge, **others}}


async def test_an_element_starts_with_its_partner_while_others_run(begin: Begin):
    world = await begin({"prepare": {"array": "0-2%1"}, "train": behind("0-2%1")})
    assert (await world.submitted()).keys() == {"prepare"}, "no element of it can start"
    ((_, slot),) = await world.slots()
    first = await world.claim("prepare", slot)
    assert await world.poked() == ["prepare"], "it runs from now on"
    await world.advance("prepare")
    second = await world.claim("prepare", slot, report_of(first))
    assert await world.poked() == ["dag"]
    await world.look()
    assert await world.states("train") == {0: "WAITING", 1: "BLOCKED", 2: "BLOCKED"}
    failed = await world.claim("prepare", slot, report_of(second, frozenset({1})))
    assert failed.batch is None
    states = await world.states("train")
    assert {index for index, state in states.items() if state == "SKIPPED"} == {1}
    assert states[2] == "WAITING", "train[1] leaves train[2] alone"
    row = (await world.rows("train"))[1]
    assert row["message"] == "needs the success of element 1 of prepare, which failed"


async def test_indices_without_a_partner_start_before_the_other_array_is_submitted(begin: Begin):
    world = await begin({
        "setup": {}, "prepare": {"array": "0-9", "after": "setup"}, "train": behind("0-14"),
        "wait": behind("0-14", "wait"),
    })  # fmt: skip
    assert (await world.submitted()).keys() == {"setup", "train"}
    states = await world.states("train")
    assert {index for index, state in states.items() if state == "WAITING"} == {*range(10, 15)}
    await world.end_job("setup", "FAILED")
    await world.look()
    assert await world.steps() == {
        "setup": "FAILED", "prepare": "SKIPPED", "train": "SUBMITTED", "wait": "SKIPPED",
    }  # fmt: skip
    states = await world.states("train")
    assert {index for index, state in states.items() if state == "SKIPPED"} == {*range(10)}
    row = (await world.rows("train"))[0]
    assert row["message"] == "needs the success of element 0 of prepare, which never ran"


async def test_the_same_results_twice_and_from_a_repeat_change_nothing_more(begin: Begin):
    world = await begin({"prepare": {"array": "0-3%1"}, "train": behind("0-3%1")})
    ((_, slot),) = await world.slots()
    first = await world.claim("prepare", slot)
    report = report_of(first)
    await world.claim("prepare", slot, report)
    await world.look()
    await world.advance("prepare")
    before = await world.rows("train")
    again = await world.claim("prepare", slot, report, attempt=2)
    assert again.batch, "the same batch as before"
    assert await world.rows("train") == before
    assert await world.poked() == []
    for attempt in (1, 2):
        await world.open((await world.submitted())["train"], "train", attempt=attempt)
    assert await world.rows("train") == before


async def test_a_repeat_signals_where_the_first_try_did_not_come_to_it(begin: Begin):
    """The first try died between its commit and the mark of the DAG."""
    world = await begin({"prepare": {"array": "0-3%1"}, "train": behind("0-3%1")})
    ((_, slot),) = await world.slots()
    report = report_of(await world.claim("prepare", slot))
    await world.claim("prepare", slot, report)
    await world.advance("prepare")
    async with world.database.transaction() as connection:
        await connection.execute(
            text("UPDATE dags SET poked = false WHERE id = :id"), {"id": world.dag_id}
        )
    await world.claim("prepare", slot, report, attempt=2)
    assert await world.poked() == ["dag"]


async def test_ends_of_two_partners_at_the_same_time_start_the_element(begin: Begin):
    """Neither transaction sees the end that the other records."""
    for _ in range(10):
        world = await begin({
            "a": {"array": "0%1"}, "b": {"array": "0%1"},
            "train": {"array": "0-1", "after": dict.fromkeys("ab", "corresponding")},
        })  # fmt: skip
        assert await world.states("train") == {0: "BLOCKED", 1: "WAITING"}
        slots = [(name, slot) for name, slot in await world.slots() if name != "train"]
        claims = [await world.claim(name, slot) for name, slot in slots]
        await asyncio.gather(*(
            world.claim(name, slot, report_of(claim))
            for (name, slot), claim in zip(slots, claims, strict=True)
        ))  # fmt: skip
        assert await world.states("train") == {0: "WAITING", 1: "WAITING"}


@pytest.mark.exhaustive
async def test_an_array_that_comes_onto_the_record_with_an_end_misses_nothing(begin: Begin):
    for number in range(8):
        world = await begin({"prepare": {"array": "0-40%1"}, "train": behind("0-41%1")})
        job_id = (await world.submitted())["train"]
        async with world.database.transaction() as connection:  # as if it were not yet there
            for table, column in (
                ("elements", "array_id"), ("array_slots", "array_id"), ("arrays", "id"),
                ("jobs", "id"),
            ):  # fmt: skip
                await connection.execute(
                    text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": job_id}
                )
        slot = next(slot for name, slot in await world.slots() if name == "prepare")
        first = await world.claim("prepare", slot)
        opened = world.open(job_id, "train")
        later = world.claim("prepare", slot, report_of(first))
        await asyncio.gather(*((opened, later) if number % 2 else (later, opened)))
        assert (await world.states("train"))[0] == "WAITING"


async def test_an_array_that_is_woken_looks_once_for_many_ends(begin: Begin):
    world = await begin({"prepare": {"array": "0-99%4"}, "train": behind("0-100%8")})
    slots = [slot for name, slot in await world.slots() if name == "prepare"]
    claims = [await world.claim("prepare", slot) for slot in slots]
    await world.advance("prepare")
    for slot, claim in zip(slots, claims, strict=True):
        await world.claim("prepare", slot, report_of(claim))
    assert await world.poked() == ["train"]
    await world.advance("train")
    open_now = [slot for name, slot in await world.slots() if name == "train"]
    assert len(open_now) == 5, "as many as may start: 0 to 3, and 100"
    assert await world.poked() == []


async def test_cancels_of_either_array_do_the_sensible_thing(begin: Begin):
    world = await begin({
        "prepare": {"array": "0-9%1"}, "train": behind("0-10%1"), "use": behind("0-11", up="train")
    })  # fmt: skip
    await world.cancel("prepare", "4")
    await world.cancel("train", "6")
    assert (await world.states("train"))[4] == "SKIPPED"
    assert (await world.states("train"))[6] == "CANCELLED"
    use = await world.states("use")
    assert (use[4], use[6], use[5], use[11]) == ("SKIPPED", "SKIPPED", "BLOCKED", "WAITING")
    await world.advance("train", cancelled="enough")
    assert set((await world.states("train")).values()) == {"SKIPPED", "CANCELLED"}
    use = await world.states("use")
    assert {index for index, state in use.items() if state == "WAITING"} == {11}
    assert set(use.values()) == {"WAITING", "SKIPPED"}


async def test_a_retry_keeps_what_succeeded_and_opens_what_was_skipped(begin: Begin):
    world = await begin({"prepare": {"array": "0-4%1"}, "train": behind("0-4%1")})
    bad = {("prepare", 3), ("train", 1)}
    await to_the_end(world, bad)
    assert await world.states("train") == {
        0: "SUCCEEDED", 1: "FAILED", 2: "SUCCEEDED", 3: "SKIPPED", 4: "SUCCEEDED",
    }  # fmt: skip
    assert await world.steps() == {"prepare": "FAILED", "train": "FAILED"}
    first = await world.rows("train")
    await world.begin(retry=True)
    assert await world.states("prepare") == {
        **dict.fromkeys((0, 1, 2, 4), "SUCCEEDED"), 3: "WAITING",
    }  # fmt: skip
    ran = await to_the_end(world, set())
    assert sorted(ran) == [("prepare", 3), ("train", 1), ("train", 3)]
    assert await world.steps() == {"prepare": "SUCCEEDED", "train": "SUCCEEDED"}
    rows = await world.rows("train")
    kept = [(row["job_id"], row["batch"], row["started_at"]) for row in (first[0], rows[0])]
    assert kept[0] == kept[1], "its output is where it was"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE elements SET state = 'SKIPPED' WHERE index = 0",
        "UPDATE elements SET state = 'BLOCKED', ended_at = now() WHERE index = 0",
        "UPDATE elements SET state = 'BLOCKED', job_id = 'x', job_attempt = 1, batch = 1"
        " WHERE index = 0",
        "UPDATE element_edges SET whole = 'MAYBE' WHERE upstream = 'prepare'",
        "UPDATE dag_jobs SET element_join = 'none' WHERE name = 'train'",
    ],
)
async def test_the_database_refuses(begin: Begin, statement: str):
    world = await begin({"prepare": {"array": "0"}, "train": behind("0-1")})
    with pytest.raises(IntegrityError):
        async with world.database.transaction() as connection:
            await connection.execute(text(statement))


# --- random arrays -----------------------------------------------------------------------------


async def to_the_end(
    world: PartnerWorld,
    bad: set[tuple[str, int]],
    chance: random.Random | None = None,
    other: str = "SUCCEEDED",
) -> list[tuple[str, int]]:
    """Run a DAG until it has ended; return the elements that ran. Who is not poked does not look.

    `bad` elements fail; with `chance` what happens next is drawn, and slots report together.
    """
    ran: list[tuple[str, int]] = []
    had: dict[str, ClaimReply] = {}
    chance = chance or random.Random(0)
    for _ in range(400):
        if await world.scalar("SELECT state FROM dags WHERE id = :id", id=world.dag_id) != (
            "RUNNING"
        ):
            return ran
        todo: list[tuple[str, ...]] = [("look", name) for name in await world.poked()]
        todo += [("slot", *each) for each in await world.slots()]
        steps = await world.steps()
        if "other" in steps and steps["other"] == "SUBMITTED":
            todo.append(("end", "other"))
        assert todo, f"nothing is left to do, and it has not ended: {steps}"
        for what, *names in chance.sample(todo, chance.randint(1, min(3, len(todo)))):
            if what == "look":
                await (world.look() if names == ["dag"] else world.advance(names[0]))
            elif what == "end":
                await world.end_job("other", other)
        slots = [each[1:] for each in todo if each[0] == "slot"]
        some = chance.sample(slots, min(len(slots), 2))
        reports = {slot: _report(name, had.get(slot), bad) for name, slot in some}
        replies = await asyncio.gather(*(
            world.claim(name, slot, reports[slot]) for name, slot in some
        ))  # fmt: skip
        for (name, slot), reply in zip(some, replies, strict=True):
            if reply.batch is None:
                await world.end_slot(name, slot)
                continue
            had[slot] = reply
            for each in reply.batch.elements:
                ran.append((name, each.index))
                await _may_start(world, name, each.index)
    raise AssertionError("it goes on and on")


def _report(name: str, had: ClaimReply | None, bad: set[tuple[str, int]]) -> Any:
    return had and report_of(had, frozenset(index for each, index in bad if each == name))


async def _may_start(world: PartnerWorld, name: str, index: int) -> None:
    """Fail where an element was handed out before its conditions held."""
    worth = await _worth(world, name, index)
    job = world.spec.jobs[name]
    good = [each == "SUCCEEDED" for each in worth]
    assert not good or (all(good) if job.join is Join.ALL else any(good)), (name, index, worth)


async def _worth(world: PartnerWorld, name: str, index: int) -> list[str]:
    """Return the states that an element looks at: of its partners, or of whole jobs."""
    steps = await world.steps()
    found: list[str] = []
    for up, edge in world.spec.jobs[name].after.items():
        array = world.spec.jobs[up].array
        if edge.condition is not Condition.CORRESPONDING:
            found.append(steps[up])
        elif array is not None and any(index in each.indices for each in array.ranges):
            found.append((await world.states(up)).get(index, "SKIPPED"))
        elif edge.extra is Extra.WAIT:
            found.append(steps[up])
    return found


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 6))]
)
async def test_random_arrays_come_to_their_end_as_by_the_book(begin: Begin, seed: int):
    chance = random.Random(seed)
    arrays = ["0-5%2", "3-8%1", "0-10:2%3", "2", "0-3%2"]

    def edge() -> dict[str, str]:
        return {"condition": "corresponding", "extra": chance.choice(["start", "wait"])}

    jobs: dict[str, dict[str, Any]] = {"a": {"array": chance.choice(arrays)}, "other": {}}
    for name, ups in (("b", ["a"]), ("c", ["b", *chance.choice([["a"], []])])):
        after: dict[str, Any] = {up: edge() for up in ups}
        if chance.random() < 0.4:
            after["other"] = "success"
        join = chance.choice(["all", "all", "any"])
        jobs[name] = {"array": chance.choice(arrays), "after": after, "join": join}
    world = await begin(jobs)
    other = chance.choice(["SUCCEEDED", "FAILED"])
    bad = {(name, index) for name in "abc" for index in range(11) if chance.random() < 0.2}
    kept: dict[tuple[str, int], Any] = {}
    for generation in (1, 2, 3):
        ran = await to_the_end(world, bad, chance, other)
        assert len(ran) == len(set(ran)), "an element ran twice"
        assert not set(ran) & kept.keys(), "one that had succeeded ran again"
        await _is_by_the_book(world, bad)
        for name in "abc":
            kept |= {
                (name, index): None
                for index, state in (await world.states(name)).items()
                if state == "SUCCEEDED"
            }
        state = await world.scalar("SELECT state FROM dags WHERE id = :id", id=world.dag_id)
        if state == "SUCCEEDED":
            return
        # What fails in the end fails again in the second generation, and is mended in the third.
        if generation == 2:
            bad, other = set(), "SUCCEEDED"
        await world.begin(retry=True)
    assert await world.scalar("SELECT state FROM dags WHERE id = :id", id=world.dag_id) == (
        "SUCCEEDED"
    )


async def _is_by_the_book(world: PartnerWorld, bad: set[tuple[str, int]]) -> None:
    """Each element has ended as its conditions and its process say; each array as its elements."""
    steps = await world.steps()
    for name in "abc":
        array, join = world.spec.jobs[name].array, world.spec.jobs[name].join
        assert array
        states = await world.states(name)
        expected: dict[int, str] = {}
        for index in [i for each in array.ranges for i in each.indices]:
            worth = [each == "SUCCEEDED" for each in await _worth(world, name, index)]
            runs = not worth or (all(worth) if join is Join.ALL else any(worth))
            ended = "FAILED" if (name, index) in bad else "SUCCEEDED"
            expected[index] = ended if runs else "SKIPPED"
        if set(expected.values()) == {"SKIPPED"}:
            assert (steps[name], states) == ("SKIPPED", {})
            continue
        assert states == expected, name
        assert set(states.values()) <= {each.value for each in ElementState if each.ended}
        good = set(states.values()) == {"SUCCEEDED"}
        assert steps[name] == ("SUCCEEDED" if good else "FAILED")
