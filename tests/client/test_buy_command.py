"""`longshore buy --dry-run`, for a file and for a pool with a simulated market."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from longshore.client.buying import DryRun
from longshore.client.node_view import buying_words
from longshore.models.buying import BuyingPolicy, OptionKind
from longshore.models.money import micro_of
from tests.client.conftest import Command, Ran
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "buying.yaml")
CLI = Callable[..., Ran]


def test_the_example_buys_a_block_and_a_machine_beside_it(cli: CLI) -> None:
    ran = cli("buy", "--dry-run", "--state", EXAMPLE)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith(
        "buy 1 x 4xH100-80GB (prime row-4), while used + sfcompute: 1 x 8xH100-80GB for 4h15m "
        "for $85.30, for 3 jobs"
    )
    assert lines[1] == f"{EXAMPLE}, 4 jobs in the queue, rule least-cost"
    assert sum(line.startswith("→") for line in lines) == 2
    assert sum("costs $" in line for line in lines) > 10
    assert [line.split(",")[0] for line in lines if line.startswith("order: ")] == [
        "order: 1 x 4xH100-80GB at prime",
        "order: 1 x 8xH100-80GB at sfcompute",
    ]


def test_the_example_as_json_holds_every_option(cli: CLI) -> None:
    ran = DryRun.model_validate_json(cli("buy", "--dry-run", "--state", EXAMPLE, "--json").out)
    decision = ran.decision
    assert decision.expected_cost == micro_of("85.30")
    assert {option.kind for option in decision.options} >= {
        OptionKind.PODS, OptionKind.BLOCK, OptionKind.LONGER_BLOCK, OptionKind.WAIT,
    }  # fmt: skip
    assert all(option.chosen or option.lost for option in decision.options)


def test_a_mistake_names_its_line(cli: CLI, tmp_path: Path) -> None:
    file = tmp_path / "buying.yaml"
    file.write_text("queue:\n- {id: a, gpus: 0}\n")
    ran = cli("buy", "--dry-run", "--state", str(file))
    assert (ran.code, ran.out) == (65, "")
    assert "buying.yaml:2: " in ran.err
    assert "gpus: must be at least 1, got 0" in ran.err


def test_a_policy_that_is_off_is_shown_as_if_on_and_said(cli: CLI, tmp_path: Path) -> None:
    file = tmp_path / "off.yaml"
    file.write_text(Path(EXAMPLE).read_text().replace("enabled: true", "enabled: false"))
    ran = cli("buy", "--dry-run", "--state", str(file))
    assert ran.out.startswith("buy ")
    assert ran.err == f"note: buying is off for {file}: nothing is bought (docs/buying.md).\n"


def test_without_dry_run_nothing_is_bought(cli: CLI) -> None:
    ran = cli("buy")
    assert (ran.code, ran.out) == (64, "")
    assert "buying is done by the pool's workflow" in ran.err
    assert "longshore buy --dry-run" in ran.err


async def test_a_pool_is_decided_for_at_the_markets(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    changed = await longshore(
        "pool", "set", pool, "--buying", "enabled=true", "--buying", "max_price.FAST=$30"
    )
    assert (changed.code, changed.err) == (0, "")
    stated = (
        "by least-cost, at most $1,000.00 a day; a GPU-hour at most $30.00 for FAST; "
        "a GPU-hour at most $10.00 for FLEX"
    )
    assert f"It buys {stated}." in changed.out
    shown = await longshore("pool", "show", pool)
    assert "by least-cost, at most $1,000.00 a day" in shown.out
    job_id = await queued(longshore, pool)
    ran = await longshore("buy", "--dry-run", "--pool", pool, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = DryRun.model_validate_json(ran.out)
    assert (found.simulated, found.switched_on) == (True, True)
    assert [job.request.id for job in found.jobs] == [job_id]
    assert found.left_today_micro_usd == micro_of("1000")
    (plan,) = found.decision.plans
    assert (plan.gpus, plan.serves) == (8, (job_id,))
    assert (plan.provider, plan.limit) == ("sfcompute", micro_of("24.00"))
    assert plan.window is not None


async def test_what_a_pool_may_spend_a_day_is_shown_and_none_is_no_limit(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    await longshore("pool", "set", pool, "--buying", "enabled=true")
    caps = (await longshore("market", "caps")).out
    assert re.search(rf"pool +{pool} +\$1,000.00 +\$0.00 +its buying policy", caps)
    ran = await longshore("buy", "--dry-run", "--pool", pool)
    assert "the pool may commit today (UTC): $1,000.00 more" in ran.out
    none = ("--buying", "caps.per_day=none", "--buying", "max_price.FLEX=none")
    changed = await longshore("pool", "set", pool, *none)
    stated = "without a cap; a GPU-hour at most $10.00 for FAST; a GPU-hour at any price for FLEX"
    assert stated in changed.out
    assert re.search(rf"pool +{pool} +no limit", (await longshore("market", "caps")).out)
    ran = await longshore("buy", "--dry-run", "--pool", pool)
    assert "the pool may commit today (UTC): without a limit" in ran.out


async def test_what_keeps_a_pool_from_buying_is_shown_with_what_would_help(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    await longshore("pool", "set", pool, "--buying", "enabled=true")
    low = ("--buying", "caps.per_day=$0.01", "--buying", "max_price.FAST=$0.01")
    await longshore("pool", "set", pool, *low)
    await queued(longshore, pool)
    ran = await longshore("buy", "--dry-run", "--pool", pool)
    shown = " ".join(ran.out.split())
    assert "What could help: raise `max_price.FAST` and `caps.per_day`: `longshore pool" in shown


async def test_a_cap_is_set_for_any_tenant_and_taken_away(longshore: Command, pool: str) -> None:
    scope = f"tenant={pool}"
    ran = await longshore("market", "caps", scope, "$1")
    assert (ran.code, " ".join(ran.err.split())) == (
        0, f"there is no tenant {pool} yet: the cap holds for that name alone",
    )  # fmt: skip
    assert re.search(rf"tenant +{pool} +\$1.00 +\$0.00 +market caps", ran.out)
    assert pool not in (await longshore("market", "caps", scope, "none")).out
    wrong = await longshore("market", "caps", f"nobody={pool}", "$1")
    assert (wrong.code, wrong.out) == (65, "")
    assert "must be one of purchase, day, pool, tier, tenant, not nobody" in wrong.err


async def test_an_amount_without_a_dollar_sign_is_refused(longshore: Command, pool: str) -> None:
    """It would be read as micro-dollars, as programs write them."""
    for name in ("max_price.FAST", "caps.per_day", "flex_price"):
        ran = await longshore("pool", "set", pool, "--buying", f"{name}=50")
        assert ran.code == 2
        assert f"give dollars, as in '{name}=$50'" in " ".join(ran.err.replace("│", " ").split())
    for value, meant in (
        ("500000000", "$500000000', or 'caps.per_day=$500"), (" 2.50", "$2.50"),
        ("5e8", "$500000000', or 'caps.per_day=$500"), ("1,000", "$1000"), ("0x10", "$50"),
        ("2_105_000", "$2105000', or 'caps.per_day=$2.105"),
        (".5e6", "$500000', or 'caps.per_day=$0.5"),
    ):  # fmt: skip
        ran = await longshore("pool", "set", pool, "--buying", f"caps.per_day={value}")
        assert ran.code == 2
        told = " ".join(ran.err.replace("│", " ").split())
        assert f"give dollars, as in 'caps.per_day={meant}'" in told
    assert (await longshore("pool", "set", pool, "--buying", "slippage=0.2")).code == 0
    warm = ("--buying", "enabled=true", "--buying", "fast_warm_gpus=2")
    assert "at least 2 GPUs kept warm" in (await longshore("pool", "set", pool, *warm)).out


async def test_what_is_assumed_of_a_job_without_a_duration_is_said_where_a_pool_buys(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    may = ("--buying", "enabled=true", "--buying", "max_price.FAST=$30")
    await longshore("pool", "set", pool, *may)
    said = f"what pool {pool} buys for it lasts for 1h, as is assumed (`expected_duration`)"
    silent = await longshore("submit", "--pool", pool, "--gpus", "8", "--", "true")
    assert said in " ".join(silent.err.split())

    async def is_decided() -> bool:  # once the job is in the queue
        ran = await longshore("buy", "--dry-run", "--pool", pool)
        return "for 1 job of 1h (1h is assumed where a job does not say)" in " ".join(
            ran.out.split()
        )

    await eventually(is_decided)
    stated = ("--set", "expected_duration=2h")
    told = await longshore("submit", "--pool", pool, *stated, "--gpus", "8", "--", "true")
    assert (told.code, "as is assumed" in told.err) == (0, False)


async def test_from_whom_a_pool_buys_is_set_and_shown(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    changed = await longshore(
        "pool", "set", pool, "--buying", "enabled=true", "--buying",
        "sellers.exclude=runpod,nebius", "--buying", "regions.include=[united_states, us-west]",
        "--buying", "countries.exclude='NO'", "--buying", "community=true",
        "--buying", "instance_types=8xH100,2xL40S",
    )  # fmt: skip
    assert (changed.code, changed.err) == (0, "")
    stated = (
        "; 8xH100, 2xL40S alone; no sellers runpod, nebius; "
        "regions united_states, us-west alone; no countries NO; "
        "community hosts too"
    )
    assert stated in changed.out
    assert "no sellers runpod, nebius" in (await longshore("pool", "show", pool)).out
    wrong = await longshore("pool", "set", pool, "--buying", "sellers.without=runpod")
    assert "sellers.without" in wrong.err


async def test_a_market_that_is_away_is_named(
    longshore: Command, pool: str, market: RunningMarket
) -> None:
    await queued(longshore, pool)
    market.fault("forbidden", times=100)
    ran = await longshore("buy", "--dry-run", "--pool", pool)
    assert ran.code == 0
    assert ran.out.startswith("wait: ")
    assert "no price: sfcompute is away: " in ran.out
    assert "no price: prime is away: " in ran.out
    assert f"buying is off for pool {pool}" in ran.err


async def queued(longshore: Command, pool: str) -> str:
    """Return the id of a job of 8 GPUs that waits in the pool's queue."""
    job = ("--gpus", "8", "--set", "gpu_type=H100", "--", "true")
    ran = await longshore("submit", "-q", "--pool", pool, *job)
    assert ran.code == 0, ran.err

    async def waits() -> bool:
        # Its workflow says that it is queued a moment before the database has it, and the pool.
        if (await longshore("pool", "show", pool)).code != 0:
            return False
        shown = await longshore("jobs", "--pool", pool, "--state", "queued", "--json")
        return [view["id"] for view in json.loads(shown.out)] == [ran.out.strip()]

    await eventually(waits)
    return ran.out.strip()


def test_all_caps_of_a_pool_are_told():
    caps = {"per_day": "$9", "per_tier_day": {"FAST": "$4"}, "per_tenant_day": "$3"}
    said = buying_words(BuyingPolicy.model_validate({"enabled": True, "caps": caps}))
    of_day = "at most $9.00 a day, at most $4.00 a day for FAST, at most $3.00 a day for a tenant"
    assert of_day in said
