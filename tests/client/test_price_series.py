"""`pool set --price`, `submit --start-below`, and what the commands say of both."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.models.queue_view import QueueView
from longshore.models.views import JobView, PoolView
from tests.client.conftest import Command
from tests.client.test_commands import is_listed
from tests.support.scripted_http import Reply, ScriptedHTTP
from tests.support.waiting import eventually

WAITS = "waits for a price below $2.10 a GPU-hour; now $2.60 (file prices.csv, "


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHTTP]:
    async with ScriptedHTTP() as running:
        yield running


def write(folder: Path, *prices: object, hole: int = 0) -> str:
    """Write a series of an hour each, the first of which has begun; return its path."""
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
    lines = [
        f"{(began + timedelta(hours=number + (hole if number else 0))).isoformat()},{price}"
        for number, price in enumerate(prices)
    ]
    path = folder / "prices.csv"
    path.write_text("\n".join(lines))
    return str(path)


async def set_pool(longshore: Command, pool: str, *flags: str) -> None:
    ran = await longshore("pool", "set", pool, *flags)
    assert ran.code == 0, ran.err


async def submit(longshore: Command, pool: str, *flags: str) -> str:
    ran = await longshore("submit", "--pool", pool, *flags, "-q", "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def shown(longshore: Command, pool: str) -> PoolView:
    ran = await longshore("pool", "show", pool, "--json")
    assert ran.code == 0, ran.err
    return PoolView.model_validate_json(ran.out)


async def test_a_job_that_waits_for_its_price_says_so_everywhere(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    await set_pool(longshore, pool, "--price", write(tmp_path, 2.6, 2.5))
    job_id = await submit(longshore, pool, "--start-below", "$2.10/gpu-hour")
    view = await is_listed(longshore, pool, job_id, "QUEUED")
    assert view.waits_for_price

    async def is_told() -> bool:
        for command in (("job", job_id), ("why", job_id), ("queue", "--pool", pool)):
            ran = await longshore(*command)
            assert WAITS in " ".join(ran.out.split()), (command, ran.out)
        return True

    await eventually(is_told)
    why = " ".join((await longshore("why", job_id)).out.split())
    assert "until then nobody is stopped for it, and nothing kept or bought" in why
    jobs = json.loads((await longshore("jobs", "--pool", pool, "--json")).out)
    (listed,) = [JobView.model_validate(each) for each in jobs]
    assert listed.reason.startswith(WAITS)
    assert listed.start_below == 2_100_000
    told = QueueView.model_validate_json((await longshore("queue", "--pool", pool, "--json")).out)
    assert told.jobs[0].reason.startswith(WAITS)
    found = await shown(longshore, pool)
    assert (found.queued, found.held) == (1, 0)
    assert found.price is not None
    assert (found.price.price, found.price.waiting) == (2_600_000, 1)
    assert [price for _, price in found.price.next] == [2_500_000]
    price = " ".join((await longshore("pool", "price", pool)).out.split())
    assert "source file prices.csv" in price
    assert "now $2.60 (file prices.csv, " in price
    assert "wait for it 1 job" in price
    assert "$2.50" in price
    dry = await longshore("submit", "--pool", pool, "--start-below", "$2", "--dry-run", "--", "x")
    assert dry.code == 0, dry.err
    assert "It waits for a price below $2.00 a GPU-hour; now $2.60" in " ".join(dry.out.split())
    assert (await longshore("cancel", job_id)).code == 0


@pytest.mark.exhaustive
async def test_a_job_is_let_in_when_its_pool_has_another_price(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    await set_pool(longshore, pool, "--price", write(tmp_path, 2.6))
    job_id = await submit(longshore, pool, "--start-below", "$2.10/gpu-hour")
    await is_listed(longshore, pool, job_id, "QUEUED")
    await set_pool(longshore, pool, "--price", write(tmp_path, 2.0))

    async def is_let_in() -> bool:
        told = json.loads((await longshore("job", job_id, "--json")).out)["job"]
        return not JobView.model_validate(told).waits_for_price

    await eventually(is_let_in)
    await set_pool(longshore, pool, "--price", write(tmp_path, 2.6), "--start-below", "$2")

    async def waits_again() -> bool:
        why = " ".join((await longshore("why", job_id)).out.split())
        return "waits for a price below $2.00 a GPU-hour; now $2.60" in why

    await eventually(waits_again)
    await set_pool(longshore, pool, "--price", "none", "--start-below", "none")
    await eventually(is_let_in)
    found = await shown(longshore, pool)
    assert (found.price, found.spec.price, found.spec.start_below) == (None, None, None)
    assert (await longshore("cancel", job_id)).code == 0


async def test_a_price_file_with_holes_changes_nothing(
    longshore: Command, pool: str, tmp_path: Path
) -> None:
    await set_pool(longshore, pool, "--price", write(tmp_path, 2.6))
    before = await shown(longshore, pool)
    wrong = write(tmp_path, 2.0, "NaN", -1, hole=3)
    ran = await longshore("pool", "set", pool, "--price", wrong, "--growth", "fixed")
    assert ran.code == 65
    said = " ".join(ran.err.split())
    assert "line 2: a hole of 4h between" in said
    assert "line 2: expected dollars for a GPU-hour such as 2.10, not 'NaN'" in said
    assert "line 3: a price cannot be below 0" in said
    after = await shown(longshore, pool)
    assert after.spec == before.spec
    assert after.price is not None
    assert before.price is not None
    assert after.price.price == before.price.price == 2_600_000
    flags = ("--price", write(tmp_path, 2.0, 2.1, hole=3), "--pricing", "longest_step=4h")
    await set_pool(longshore, pool, *flags)
    ran = await longshore("pool", "set", pool, "--price", str(tmp_path / "none.csv"))
    assert ran.code == 65
    assert "cannot be read: No such file or directory" in ran.err


async def test_a_url_is_read_in_full_before_anything_changes(
    longshore: Command, pool: str, server: ScriptedHTTP
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    body = f"{now.isoformat()},2.60\n".encode()
    server.on("GET /prices", Reply(b"no prices"), Reply(b"", 301), Reply(body))
    url = f"{server.url}/prices"
    for told in ("line 1: expected a time and a price", "was redirected"):
        ran = await longshore("pool", "set", pool, "--price", url)
        assert ran.code == 65
        assert told in " ".join(ran.err.split())
    assert (await longshore("pool", "show", pool)).code != 0, "nothing was made"
    await set_pool(longshore, pool, "--price", url)
    found = await shown(longshore, pool)
    assert found.price is not None
    assert found.price.says.startswith("$2.60 (prices of 127.0.0.1, ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--price", "https://me:secret@127.0.0.1/p"), "may hold no user or password"),
        (("--price", "https://127.0.0.1/p?token=secret"), "may hold no token or key"),
        (("--pricing", "every=1m"), "price.source"),
        (("--price", "market", "--pricing", "every=1s"), "every: must be at least 10s"),
        (("--price", "market", "--pricing", "unknown=maybe"), "price.unknown"),
        (("--start-below", "2.10"), "expected a price such as $2.10/gpu-hour"),
        (("--start-below", ".10/gpu-hour"), "put single quotes around it"),
    ],
)
async def test_bad_settings_are_refused_and_no_secret_is_repeated(
    longshore: Command, pool: str, flags: tuple[str, ...], told: str
) -> None:
    ran = await longshore("pool", "set", pool, *flags)
    assert ran.code == 65
    assert told in " ".join(ran.err.split())
    assert "secret" not in ran.err


async def test_a_threshold_without_a_price_is_said(longshore: Command, pool: str) -> None:
    ran = await longshore(
        "submit", "--pool", pool, "--start-below", "$2.10/gpu-hour", "--", "true"
    )
    assert ran.code == 0, ran.err
    assert f"pool {pool} names no price" in " ".join(ran.err.split())
    job_id = ran.out.strip()
    await is_listed(longshore, pool, job_id, "QUEUED")

    async def says_so() -> bool:
        why = " ".join((await longshore("why", job_id)).out.split())
        return f"nobody knows what it is now: pool {pool} names no price" in why

    await eventually(says_so)
    assert (await longshore("cancel", job_id)).code == 0
    wrong = await longshore("submit", "--pool", pool, "--start-below", "2.10", "--", "true")
    assert wrong.code == 65
    assert "expected a price such as $2.10/gpu-hour" in wrong.err
