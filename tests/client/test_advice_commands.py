"""What `submit` and `why` advise: what would really help."""

from collections.abc import Awaitable, Callable

import psycopg
import pytest
from temporalio.client import Client

from longshore.models.explanation import Explanation
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

ASK = "ask who would be preempted for it"


async def explained(longshore: Command, job: str, waits_for: str) -> Explanation:
    """Return what `why` says of a job that waits, once its headline has this."""

    async def found() -> str:
        ran = await longshore("why", job, "--json")
        return ran.out if ran.code == 0 and waits_for in ran.out else ""

    return Explanation.model_validate_json(await eventually(found))


async def test_the_constraint_decides_what_is_advised(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    async with node.serving():
        flex = await longshore("submit", "--pool", pool, "--set", "tier=FLEX", "--", "true")
        assert (
            f"warning: the only node of pool {pool} cannot hold the job even when empty: it waits "
            "for a FLEX node (" in flex.err
        )
        told = await explained(longshore, flex.out.strip(), "could ever hold it")
        assert told.simulated, "as its page in the console says"
        screen = (await longshore("why", flex.out.strip())).out
        assert f"Nodes of pool {pool} (simulated) now, for this job alone" in screen
        assert told.hints[:2] == (
            "give the job the tier FAST (`--set tier=FAST`)",
            f"add a FLEX node: `longshore agent --pool {pool} --tier flex`",
        )
        huge = await longshore(
            "submit", "--pool", pool, "--gpus", "24", "--set", "gang={unlabelled_nodes: true}",
            "--", "true",
        )  # fmt: skip
        assert "it waits for more nodes (" in huge.err
        told = await explained(longshore, huge.out.strip(), "needs 24 GPUs, the domains together")
        assert told.hints == (
            f"ask for at most 8 GPUs, or add nodes: run `longshore agent --pool {pool}` on each",
        )
        wide = await longshore("submit", "--pool", pool, "--gpus", "16", "--", "true")
        assert "it waits for a node with 16 GPUs or more (" in wide.err
        told = await explained(longshore, wide.out.strip(), "could ever hold it")
        start = f"`longshore agent --pool {pool}`"
        assert told.hints[-1] == f"add a node with 16 GPUs or more: run {start} on it"
        ran = await longshore("preempt", "--dry-run", huge.out.strip())
        assert "no end and no stop of running jobs helps" in " ".join(ran.out.split())
        for job in (flex, huge, wide):
            await longshore("cancel", job.out.strip())


@pytest.mark.exhaustive
async def test_a_job_runs_where_its_labels_are_and_is_told_which_are_missing(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    token = settings.resolve_agent_token()
    a, b = (ScriptedNode(temporal, pool, token, labels={"zone": zone}) for zone in "ab")
    for node in (a, b):
        await node.register()
    async with a.serving(), b.serving():
        options = "--pool", pool, "--constraint", "zone in (b, c)", "--constraint", "!ib"
        ran = await longshore("submit", "-q", *options, "--", "true")
        assert (ran.code, ran.err) == (0, "")

        async def placed() -> str:
            return (await longshore("job", ran.out.strip(), "--json")).out

        shown = await eventually(lambda: _with(placed, b.id))
        assert a.id not in shown
        spec = (await longshore("job", ran.out.strip(), "--spec")).out
        assert "zone in (b, c)" in spec
        lacks = await longshore("submit", "--pool", pool, "--constraint", "zone=c", "--", "true")
        assert "it waits for a node with zone=c (" in lacks.err
        told = await explained(longshore, lacks.out.strip(), "could ever hold it")
        assert told.hints[:2] == (
            "zone=c holds on none of 2 nodes: zone=a (1), zone=b (1); without it the job would "
            "fit",
            "add a node with it, or start the agent of one anew so: "
            f"`longshore agent --pool {pool} --label zone=c`",
        )
        assert told.decision is not None
        assert {each.reason for each in told.decision.rejections} == {
            "has zone=a, job wants zone=c", "has zone=b, job wants zone=c",
        }  # fmt: skip
        for job in (ran, lacks):
            await longshore("cancel", job.out.strip())
    wrong = await longshore("submit", "--constraint", "zone>5", "--", "true")
    assert wrong.code == 65
    assert "--constraint 'zone>5': constraints[0]: expected a constraint on a label" in wrong.err


async def _with(shown: Callable[[], Awaitable[str]], part: str) -> str:
    found = await shown()
    return found if part in found else ""


async def test_nodes_that_are_lost_are_counted_apart(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    there, lost = (ScriptedNode(temporal, pool, settings.resolve_agent_token()) for _ in range(2))
    await lost.register()
    await there.register()
    async with there.serving():
        with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
            connection.execute("UPDATE nodes SET state = 'LOST' WHERE id = %s", (lost.id,))
        asked = await longshore("submit", "--pool", pool, "--gpus", "16", "--", "true")
        none = f"none of the 2 nodes of pool {pool} (1 of them lost) could hold the job"
        assert none in asked.err
        await longshore("cancel", asked.out.strip())


async def test_who_would_give_way_is_asked_only_where_somebody_may_be_stopped(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    # To wait costs nothing: the cycles stop nobody, who may be stopped is the same.
    free = ("--preemption", "delay_price.FAST=$0")
    assert (await longshore("pool", "set", pool, *free, "--interval", "1s")).code == 0
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    submit = ("submit", "-q", "--pool", pool, "--gpus", "8")
    async with node.serving():
        runs = (await longshore(*submit, "--", "true")).out.strip()
        await node.started(runs)
        same = (await longshore(*submit, "--", "true")).out.strip()
        higher = (await longshore(*submit, "--set", "priority=8", "--", "true")).out.strip()
        told = await explained(longshore, same, "gpus-busy")
        assert any("wait for running jobs to end" in hint for hint in told.hints)
        assert ASK not in " ".join(told.hints)
        assert ASK in " ".join((await explained(longshore, higher, "gpus-busy")).hints)
        for job in (higher, same, runs):
            await longshore("cancel", job)
        await node.end(runs)


@pytest.mark.exhaustive
async def test_a_pool_that_may_not_buy_now_is_not_said_to_buy(
    longshore: Command, pool: str
) -> None:
    allowed = ("pool", "set", pool, "--buying", "enabled=true", "--interval", "1s")
    assert (await longshore(*allowed)).code == 0
    assert (await longshore("market", "stop", "--reason", "again")).code == 0
    try:
        job = await longshore("submit", "--pool", pool, "--", "true")
        assert f"pool {pool} has no nodes yet: buying is stopped: again: let pools buy" in job.err
        told = await explained(longshore, job.out.strip(), "no nodes; buying is stopped: again")
        assert told.hints == (
            "let pools buy again: `longshore market resume`; what is bought, and what else keeps "
            "it, is decided then",
        )
    finally:
        assert (await longshore("market", "resume")).code == 0
    # The stack of the tests has no market.
    told = await explained(longshore, job.out.strip(), "no market is configured to buy at")
    assert "docs/settings.md" in told.hints[0]
    await longshore("cancel", job.out.strip())
