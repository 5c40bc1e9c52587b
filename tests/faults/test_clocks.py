"""Clocks of nodes and of the control worker jump by an hour: nothing is lost, or bought twice."""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator

import pytest

from longshore.activities.database import Database
from longshore.activities.failpoints import BuyingPoint
from longshore.workers.doctor.agents import agents
from longshore.workers.stack import agent_process
from tests.buying.buyer import block_option, pod_option, steady_offers
from tests.faults import scenes
from tests.faults.buyers import LIST_LAG, LOST_AFTER, disagreements
from tests.faults.cases import cases_of
from tests.faults.chaos.counting import counting_job, counting_of
from tests.faults.fleet import CONTROL, PATIENCE, Fleet, running_fleet
from tests.faults.invariants import check
from tests.faults.purchases import has_ended, is_ready, let_go, start_purchase
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
HOUR = 3600.0
JUMPS = {"forward": HOUR, "back": -HOUR}
BLOCK, POD, AGENTS = "block", "pod", "agents"
MOMENTS = (
    ("open_purchase.after-commit", BLOCK),
    ("intend_order.after-commit", BLOCK),
    ("place_order.before-call", BLOCK),
    ("place_order.after-commit", POD),
    ("start_machine.after-commit", BLOCK),
)
ALWAYS = {
    ("start_machine.after-commit", BLOCK, "forward"),
}


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Starts a stack with a control worker and two agents, hard to lose; 6 s."""
    with temporary_folder() as folder:
        async with running_fleet(folder, nodes=2, lost_after=LOST_AFTER) as running:
            yield running


@pytest.mark.exhaustive  # 30 s; test_partition.py cuts a node
async def test_a_cut_node_whose_clock_jumped_waits_to_be_set_right(fleet: Fleet) -> None:
    agent = agent_process(fleet.nodes[0])
    epoch = fleet.epoch(fleet.nodes[0])
    fleet.set_clock(agent, HOUR)
    await eventually(lambda: _doctor_names_the_clock_of(fleet, fleet.nodes[0]), timeout=PATIENCE)
    fleet.signal(agent, signal.SIGSTOP)
    state = "SELECT state FROM nodes WHERE id = %s"
    await eventually(
        lambda: fleet.rows(state, fleet.nodes[0])[0]["state"] == "LOST",
        timeout=PATIENCE + LOST_AFTER.total_seconds(),
    )
    fleet.signal(agent, signal.SIGCONT)
    log = fleet.stack.processes.last_words
    says = " ahead of that of the Temporal server; at most 10m are taken"
    await eventually(lambda: says in log(agent), timeout=PATIENCE)
    assert fleet.epoch(fleet.nodes[0]) == epoch
    fleet.set_clock(agent, 0)
    await fleet.registered_after(fleet.nodes[0], epoch)
    await fleet.all_ready()


@pytest.mark.exhaustive
@pytest.mark.parametrize("jump", [pytest.param("forward", marks=pytest.mark.exhaustive), "back"])
@pytest.mark.parametrize(
    "whose",
    [
        pytest.param((CONTROL,), marks=pytest.mark.exhaustive),
        pytest.param((AGENTS,), marks=pytest.mark.exhaustive),
        (CONTROL, AGENTS),
    ],
    ids="-".join,
)
async def test_jobs_run_and_wait_on_while_clocks_jump(
    fleet: Fleet, whose: tuple[str, ...], jump: str
) -> None:
    agents = [agent_process(node) for node in fleet.nodes]
    clocks = [name for each in whose for name in (agents if each == AGENTS else [each])]
    epochs = [fleet.epoch(node) for node in fleet.nodes]
    # One more than there is room for; long enough that on a loaded machine some run at once.
    first = await _submit(fleet, "before", 5, seconds=6.0)
    await eventually(lambda: sum(map(fleet.journal.running, first)) > 1, timeout=PATIENCE)
    for name in clocks:
        fleet.set_clock(name, JUMPS[jump])
    second = await _submit(fleet, "meanwhile", 3)
    await check(fleet, [*first, *second])
    for name in clocks:
        fleet.set_clock(name, 0)
    third = await _submit(fleet, "after", 3)
    await check(fleet, third)
    journal = fleet.journal.by_job()
    for job_id in (*first, *second, *third):
        assert [line.word for line in journal[job_id]] == ["start", "end"]
    assert [fleet.epoch(node) for node in fleet.nodes] == epochs


async def test_a_job_saves_on_while_the_clock_of_its_node_jumps(fleet: Fleet) -> None:
    counting, steps = counting_of(fleet), 80
    looking = asyncio.create_task(counting.keep_looking())
    job_id = await scenes.submit(fleet, counting_job(fleet.journal, "saves", steps))
    counting.add(job_id, steps)
    try:
        await eventually(lambda: _saved(fleet, job_id), timeout=PATIENCE)
        agent = agent_process(fleet.live_placements()[-1])
        for jump in (HOUR, -HOUR):
            fleet.set_clock(agent, jump)
            before = _saved(fleet, job_id)
            await eventually(lambda before=before: _saved(fleet, job_id) > before, PATIENCE)
        # It goes on from what it saved while the clock was wrong, there or elsewhere.
        await scenes.until_taken(lambda: fleet.longshore.requeue(job_id))
        await check(fleet, [job_id])
    finally:
        looking.cancel()
        for node in fleet.nodes:
            fleet.set_clock(agent_process(node), 0)
    assert counting.violations() == []
    assert counting.resumed() == 1


@pytest.mark.parametrize(
    ("point", "what", "jump"),
    cases_of([(*moment, jump) for moment in MOMENTS for jump in JUMPS], ALWAYS),
)
async def test_one_purchase_while_the_clock_of_the_control_worker_jumps(
    buyers: Fleet, market: RunningMarket, point: BuyingPoint, what: str, jump: str
) -> None:
    before, pool = _at_market(market)
    buyers.arm(point)
    try:
        purchase = await _buy(buyers, market, pool, what)
        await buyers.reached(point)
        buyers.set_clock(CONTROL, JUMPS[jump])
        buyers.let_go(point)
        await _bought_once(buyers, market, pool, purchase, before)
    finally:
        buyers.let_go(point)
        buyers.set_clock(CONTROL, 0)


@pytest.mark.exhaustive
async def test_an_order_that_is_not_listed_yet_is_waited_for_by_the_database_s_clock(
    buyers: Fleet, market: RunningMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pool = _at_market(market)
    point: BuyingPoint = "place_order.after-call"
    buyers.arm(point)
    try:
        purchase = await _buy(buyers, market, pool, POD)
        await buyers.reached(point)
        await asyncio.to_thread(buyers.kill, CONTROL)
        buyers.let_go(point)
        market.fault("list_lag", times=2, provider="prime")
        monkeypatch.setenv(LIST_LAG, "60s")  # the step begins again only after some
        await asyncio.to_thread(buyers.start, CONTROL)
        buyers.set_clock(CONTROL, HOUR)
        await _bought_once(buyers, market, pool, purchase, before)
    finally:
        buyers.let_go(point)
        await asyncio.to_thread(buyers.start_what_is_missing)
        buyers.set_clock(CONTROL, 0)


async def _submit(fleet: Fleet, name: str, count: int, seconds: float = 2.0) -> list[str]:
    """Submit jobs of two GPUs; the nodes have room for four of them."""
    return [
        await scenes.submit(fleet, fleet.journal.job(f"{name}-{number}", seconds, gpus=2))
        for number in range(count)
    ]


async def _doctor_names_the_clock_of(fleet: Fleet, node_id: str) -> bool:
    database = Database(fleet.stack.postgres.url())
    try:
        found = await agents(fleet.longshore.temporal, database)
    finally:
        await database.close()
    return any(each.says.startswith(f"the clock of node {node_id} is 3600 s") for each in found)


def _saved(fleet: Fleet, job_id: str) -> int:
    """Return how often the job has said so far that it has saved."""
    said = fleet.stack.folder.glob(f"agents/*/runs/{job_id}-*/public/saved")
    return sum(len(file.read_text().splitlines()) for file in said)


def _at_market(market: RunningMarket) -> tuple[object, str]:
    """Offer what is bought; return how the market stands, and a new pool's name."""
    market.book({"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8})
    return market.state(), f"clocks-{uuid.uuid4().hex[:8]}"


async def _buy(fleet: Fleet, market: RunningMarket, pool: str, what: str) -> str:
    if what == BLOCK:
        return await start_purchase(fleet, pool, [block_option()])
    offers = (await steady_offers(market))[:3]
    return await start_purchase(fleet, pool, [pod_option(offer) for offer in offers])


async def _bought_once(
    fleet: Fleet, market: RunningMarket, pool: str, purchase: str, before: object
) -> None:
    await eventually(lambda: is_ready(fleet, purchase), timeout=PATIENCE, interval=0.2)
    await let_go(fleet, purchase)
    await eventually(lambda: has_ended(fleet, purchase), timeout=PATIENCE, interval=0.2)
    wrong = await disagreements(fleet, market, pool, before)
    assert not wrong, "\n".join(wrong)
    ordered = "SELECT key FROM orders WHERE purchase_id = %s AND nodes > 0"
    assert len(fleet.rows(ordered, purchase)) == 1
    assert len(fleet.rows("SELECT name FROM machines WHERE purchase_id = %s", purchase)) == 1
