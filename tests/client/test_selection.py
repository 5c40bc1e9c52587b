"""Commands on jobs by what they have in common: lists, dry runs, and many jobs at once."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from longshore.client.api import Longshore
from longshore.client.selection import Selection
from longshore.client.steering import AT_ONCE, CANCEL, ask_all, select
from longshore.models.errors import EndedError, RefusedError
from longshore.models.job_status import JobState
from longshore.models.views import JobView
from tests.client.conftest import Command
from tests.client.test_commands import is_listed, submitted
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


@pytest.fixture
async def sweep(longshore: Command, pool: str) -> AsyncIterator[dict[str, str]]:
    """Submits four held jobs with labels, and cancels them; 1 s."""
    found = dict[str, str]()
    for name, labels in (
        ("a-1", ["sweep=7", "team=vision"]), ("a-2", ["sweep=7"]), ("a-3", ["sweep=8"]),
        ("b-1", []),
    ):  # fmt: skip
        flags = [part for label in labels for part in ("--label", label)]
        found[name] = await submitted(longshore, pool, "--hold", *flags, name=name)
    for job_id in found.values():
        await is_listed(longshore, pool, job_id, "HELD")
    yield found
    await longshore("cancel", "--pool", pool, "--all-tenants")


async def ids(longshore: Command, pool: str, *flags: str) -> set[str]:
    ran = await longshore("jobs", "-q", "--pool", pool, *flags)
    assert ran.code == 0, ran.err
    return {line.rpartition("-")[0] for line in ran.out.split()}


async def test_jobs_are_listed_by_labels_names_and_states(
    longshore: Command, pool: str, sweep: dict[str, str]
) -> None:
    assert await ids(longshore, pool) == set(sweep)
    assert await ids(longshore, pool, "--label", "sweep=7") == {"a-1", "a-2"}
    assert await ids(longshore, pool, "--label", "sweep=7", "--label", "!team") == {"a-2"}
    assert await ids(longshore, pool, "--label", "sweep in (7, 8)", "--name", "*-3") == {"a-3"}
    assert await ids(longshore, pool, "--name", "a-?", "--state", "held") == {"a-1", "a-2", "a-3"}
    none = await longshore("jobs", "-q", "--pool", pool, "--label", "sweep=9")
    assert (none.code, none.out) == (0, "")
    assert "No such jobs" in none.err
    shown = await longshore("jobs", "--pool", pool, "-L", "sweep", "--name", "a-1")
    heading, line = shown.out.splitlines()[:2]
    assert "sweep" in heading.split()
    assert "7" in line.split()
    (told,) = json.loads((await longshore("jobs", "--pool", pool, "--name", "a-1", "--json")).out)
    assert told["labels"] == {"sweep": "7", "team": "vision"}
    job = await longshore("job", sweep["a-1"])
    assert "labels sweep=7, team=vision" in " ".join(job.out.split())


@pytest.mark.exhaustive
async def test_a_dry_run_lists_and_does_nothing(
    longshore: Command, pool: str, sweep: dict[str, str]
) -> None:
    flags = ("--label", "sweep=7", "--pool", pool)
    dry = await longshore("cancel", *flags, "--dry-run")
    assert dry.code == 0
    assert sweep["a-1"] in dry.out
    assert sweep["a-2"] in dry.out
    assert sweep["a-3"] not in dry.out
    assert "Would cancel 2 jobs; nothing was done." in dry.err
    told = json.loads((await longshore("cancel", *flags, "--dry-run", "--json")).out)
    assert [JobView.model_validate(each).state for each in told] == [JobState.HELD] * 2
    by_name = await longshore("hold", sweep["b-1"], "--dry-run")
    assert sweep["b-1"] in by_name.out
    assert await ids(longshore, pool, "--state", "HELD") == set(sweep)


@pytest.mark.exhaustive
async def test_selected_jobs_are_asked_and_the_others_are_not(
    longshore: Command, pool: str, sweep: dict[str, str]
) -> None:
    ran = await longshore("release", "--name", "a-*", "--label", "sweep=7", "--pool", pool)
    assert ran.code == 0, ran.err
    assert sorted(line.split()[0] for line in ran.out.splitlines()) == sorted(
        [sweep["a-1"], sweep["a-2"]]
    )
    assert "release 2 jobs: a-" in ran.err
    for name in ("a-1", "a-2"):
        await is_listed(longshore, pool, sweep[name], "QUEUED")
    assert await ids(longshore, pool, "--state", "HELD") == {"a-3", "b-1"}
    ran = await longshore("hold", "--state", "queued", "--pool", pool, "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["asked"], told["failed"], told["ended"]) == (0, "hold", [], [])
    assert set(told["jobs"]) == {sweep["a-1"], sweep["a-2"]}
    none = await longshore("release", "--label", "sweep=99", "--pool", pool)
    assert (none.code, none.out) == (0, "")
    assert "No such jobs to release" in none.err
    assert (await longshore("cancel", "--label", "sweep", "--pool", pool)).code == 0
    await eventually(lambda: _are_left(longshore, pool, {"b-1"}))


async def _are_left(longshore: Command, pool: str, names: set[str]) -> bool:
    left = set[str]()
    for state in ("HELD", "QUEUED"):
        left |= await ids(longshore, pool, "--state", state)
    return left == names


@pytest.mark.exhaustive
async def test_running_jobs_are_queued_again_by_their_label(
    longshore: Command, pool: str, node: ScriptedNode
) -> None:
    job_id = await submitted(longshore, pool, "--label", "sweep=7")
    await node.started(job_id)
    await is_listed(longshore, pool, job_id, "RUNNING")
    waiting = await submitted(longshore, pool, "--hold", "--label", "sweep=7")
    await is_listed(longshore, pool, waiting, "HELD")
    ran = await longshore("requeue", "--label", "sweep=7", "--pool", pool)
    assert ran.code == 0, ran.err
    assert ran.out.split()[0] == job_id
    assert waiting not in ran.out
    await node.started(job_id, 2)
    await node.end(job_id, 2)
    assert (await longshore("watch", job_id)).code == 0
    told = json.loads((await longshore("job", job_id, "--json")).out)
    assert told["job"]["labels"] == {"sweep": "7"}, "the next attempt has them too"
    assert told["status"]["moves"] == 1
    assert told["status"]["attempts"][0]["failure"] is None


@pytest.mark.exhaustive
async def test_jobs_of_several_tenants_have_to_be_meant(longshore: Command, pool: str) -> None:
    mine = await submitted(longshore, pool, "--hold", "--label", "shared=1")
    theirs = await submitted(longshore, pool, "--hold", "--label", "shared=1", "--tenant", "nlp")
    for job_id in (mine, theirs):
        await is_listed(longshore, pool, job_id, "HELD")
    flags = ("cancel", "--label", "shared=1", "--pool", pool)
    refused = await longshore(*flags)
    assert (refused.code, refused.out) == (77, "")
    assert (
        "these are 2 jobs of 2 tenants (default, nlp): name one with --tenant, or give "
        "--all-tenants" in refused.err
    )
    assert (await longshore(*flags, "--tenant", "nlp", "--dry-run")).out.count(theirs) == 1
    assert (await longshore(*flags, "--all-tenants")).code == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["cancel"], 2, "name jobs, or select them: --label, --name, --state, --pool or --tenant"),
        (["hold", "--all-tenants"], 2, "name jobs, or select them"),
        (["cancel", "a", "--label", "b=c"], 2, "either name jobs, or select them by flags"),
        (["release", "--state", "RUNNING"], 2, "no such job can be asked to release: only one"),
        (["cancel", "--elements", "3", "--label", "a=b"], 2, "name one, and no more"),
        (["jobs", "-q", "--json"], 2, "--quiet prints ids alone: leave out --json"),
        (["cancel", "--label", "sweep="], 65, "not 'sweep=': a value is missing"),
        (["jobs", "--label", "a|b"], 65, "for one of several values write"),
        (["jobs", "--label", "a=b", "--label", "a=c"], 65, "no job can satisfy a=b and a=c"),
        (["hold", "--name", "[ab]"], 65, "--name [ab]: no job has such a name"),
        (["requeue", "--pool", "nosuch"], 66, "no pool 'nosuch'"),
    ],
)  # fmt: skip
async def test_what_selects_nothing_that_can_be_asked_is_said(
    longshore: Command, args: list[str], code: int, said: str
) -> None:
    ran = await longshore(*args)
    assert (ran.code, ran.out) == (code, "")
    assert said in " ".join(ran.err.replace("│", " ").split())


async def test_one_that_fails_stops_no_other_and_few_are_asked_at_once() -> None:
    api = _Api()
    refs = [f"job-{number}" for number in range(100)]
    heard = list[int]()
    asked = await ask_all(api, CANCEL, refs, "why", selected=True, heard=heard.append)  # pyright: ignore[reportArgumentType]
    assert asked.asked == [ref for ref in refs if ref not in ("job-13", "job-50")]
    assert asked.ended == ["job-50"]
    assert [(ref, str(error)) for ref, error in asked.failed] == [("job-13", "no")]
    assert heard[-1] == 100
    assert 1 < api.most <= AT_ONCE


class _Api:
    """Refuses one job, and knows that another has ended."""

    now = most = 0

    async def cancel(self, ref: str, reason: str) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if ref == "job-13":
            raise RefusedError("no")
        if ref == "job-50":
            raise EndedError("over")
        return ref


@pytest.mark.exhaustive
async def test_pages_of_a_selection_are_put_together(
    longshore: Command, pool: str, monkeypatch: pytest.MonkeyPatch, sweep: dict[str, str]
) -> None:
    monkeypatch.setattr("longshore.client.steering._PAGE", 2)
    api = await Longshore.connect()
    try:
        found = await select(api, Selection(pool=pool), CANCEL, all_tenants=False)
    finally:
        await api.close()
    assert {job.id for job in found} == set(sweep.values())
