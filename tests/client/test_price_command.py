"""`longshore price` on a book in a file: its answers, and what it says to bad input."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from longshore.client.price_view import render_price
from longshore.models.orderbook_response import OrderbookResponse
from tests.client.conftest import Ran
from tests.support.prices import BIDS, a_book, priced

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "book.json")
CLI = Callable[..., Ran]
ONE_ASK = "instance_type: 8xH100\nasks:\n- {price: 2, quantity_gpus: 8%s}\n"


@pytest.fixture
def book(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "book.yaml").write_text(text)
        return str(tmp_path / "book.yaml")

    return write


def answered(cli: CLI, *args: str) -> OrderbookResponse:
    ran = cli("price", *args, "--json")
    assert (ran.code, ran.err) == (0, "")
    return OrderbookResponse.model_validate_json(ran.out)


def test_the_example(cli: CLI) -> None:
    ran = cli("price", "--book", EXAMPLE, "--gpus", "64")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert lines[0] == "$25.00 per GPU-hour  for 64 GPUs of 8xH100 at file"
    assert [line for line in lines if line.endswith("← limit")] == [
        "$25.00   128  224     7d  ████████████              ← limit"
    ]
    assert "average    $24.25 for 64 GPUs bought" in lines
    assert "spread     $1.00" in lines


def test_the_example_as_json(cli: CLI) -> None:
    said = answered(cli, "--book", EXAMPLE, "--node-count", "8")
    assert (said.optimal_price, said.optimal_index, said.spread) == (25.0, 2, 1.0)
    assert (said.total_ask_liquidity, said.total_bid_liquidity) == (432, 120)
    assert said.metadata.required_gpus == 64
    assert said.last_updated == datetime(2025, 1, 9, 12, tzinfo=UTC)
    assert answered(cli, "--book", EXAMPLE, "--gpus", "60").metadata.node_count == 8


def test_the_window_leaves_asks_out(cli: CLI) -> None:
    said = answered(cli, "--book", EXAMPLE, "--gpus", "8", "--for", "200h")
    assert [ask.price for ask in said.asks] == [26.0, 27.0]
    assert said.left_out == {"window": 4}
    late = ("--from", "2025-01-16T12:00:00Z", "--for", "1h")
    assert answered(cli, "--book", EXAMPLE, "--gpus", "8", *late).left_out == {"window": 4}


def test_too_little_is_a_price_with_a_warning(cli: CLI) -> None:
    ran = cli("price", "--book", EXAMPLE, "--gpus", "500")
    assert ran.code == 0
    assert ran.err == "warning: insufficient: the asks hold 432 of the 500 GPUs needed\n"
    assert ran.out.startswith("$24.00 per GPU-hour")
    said = answered(cli, "--book", EXAMPLE, "--gpus", "500")
    assert (said.sufficient, said.optimal_index, said.average_price) == (False, 0, None)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--gpus", "0"), "nothing_needed"),
        (("--gpus", "-1"), "nothing_needed"),
        (("--gpus", "8", "--instance-type", "8xA100"), "left_out"),
        (("--gpus", "8", "--for", "9999h"), "left_out"),
    ],
)
def test_no_quote(cli: CLI, args: tuple[str, ...], reason: str) -> None:
    shown = cli("price", "--book", EXAMPLE, *args)
    assert (shown.code, shown.err) == (69, "")
    assert shown.out.startswith("NO QUOTE  8xH100 at file: no ")
    ran = cli("price", "--book", EXAMPLE, *args, "--json")
    said = json.loads(ran.out)
    assert ran.code == 69
    assert said["no_quote"]["reason"] == reason
    assert (said["optimal_price"], said["optimal_index"]) == (None, None)
    assert (said["sufficient"], said["total_bid_liquidity"]) == (False, 120)


def test_an_empty_book(cli: CLI, book: Callable[[str], str]) -> None:
    ran = cli("price", "--book", book("instance_type: 8xH100\nasks: []\n"), "--gpus", "8")
    assert ran == Ran(69, "NO QUOTE  8xH100 at file: the book has no asks\n", "")


BAD_BOOKS = {
    "unknown field": (ONE_ASK % ", cost: 3", ":3: asks[0].cost: no such field"),
    "unknown name": ("instance_type: a\nask: []\n", ":2: ask: no such field; did you mean asks?"),
    "no asks": ("instance_type: 8xH100\n", ":1: asks: is required"),
    "no type": ("asks: []\n", ":1: instance_type: is required"),
    "negative price": (ONE_ASK.replace("2,", "-2.5,") % "", "price: must be at least 0, got -2.5"),
    "text": (ONE_ASK.replace("2,", "'2',") % "", "price: must be a number of dollars"),
    "yes or no": (ONE_ASK.replace("2,", "true,") % "", "price: must be a number of dollars"),
    "NaN": (ONE_ASK.replace("2,", ".nan,") % "", "price: must be a finite number of dollars"),
    "NaN in JSON": (
        '{"instance_type": "a", "asks": [{"price": NaN, "quantity_gpus": 8}]}',
        ":1: asks[0].price: must be a finite number of dollars, got nan",
    ),
    "infinite": (ONE_ASK.replace("2,", ".inf,") % "", "price: must be a finite number of dollars"),
    "far too dear": (
        ONE_ASK.replace("2,", "1e12,") % "",
        "price: an amount is $1,000,000,000.00 at most",
    ),
    "half a GPU": (ONE_ASK.replace("s: 8", "s: 8.5") % "", "must be a whole number, got 8.5"),
    "negative GPUs": (ONE_ASK.replace("s: 8", "s: -8") % "", "must be at least 0, got -8"),
    "too many GPUs": (ONE_ASK.replace("s: 8", "s: 1e30") % "", "quantity_gpus: must be"),
    "no time": (ONE_ASK % ", duration_hours: 0", "duration_hours: must be more than 0, got 0"),
    "no zone": (ONE_ASK % ", start: '2026-01-01T00:00:00'", "start: a time needs its zone"),
    "backwards": (
        ONE_ASK % ", start: 2026-01-02T00:00:00Z, end: 2026-01-01T00:00:00Z",
        "asks[0]: must end after it starts",
    ),
    "no lot": (ONE_ASK % ", lot: 0", "lot: must be at least 1, got 0"),
    "not a book": ("[]", "must hold one mapping"),
    "empty file": ("", "is empty"),
}


@pytest.mark.parametrize("case", BAD_BOOKS, ids=str)
def test_a_mistake_in_a_book_names_its_line(
    cli: CLI, book: Callable[[str], str], case: str
) -> None:
    text, problem = BAD_BOOKS[case]
    path = book(text)
    ran = cli("price", "--book", path, "--gpus", "8")
    assert (ran.code, ran.out) == (65, "")
    assert ran.err.startswith(f"error: {path}:")
    assert problem in ran.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "say how many: --gpus or --node-count"),
        (("--node-count", "0"), "'--node-count'"),
        (("--gpus", "many"), "'--gpus'"),
        (("--gpus", "8", "--from", "2026-11-20T12:00:00Z"), "say for how long too"),
        (("--gpus", "8", "--from", "noon", "--for", "1h"), "give a time with its zone"),
        (("--gpus", "8", "--for", "0h"), "more than nothing"),
        (("--gpus", "8", "--for", "long"), "give a duration"),
        (("--gpus", "8", "--for", "99999999d"), "give a duration"),
    ],
)
def test_wrong_usage(cli: CLI, args: tuple[str, ...], problem: str) -> None:
    ran = cli("price", "--book", EXAMPLE, *args)
    assert (ran.code, ran.out) == (2, "")
    assert problem in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.parametrize(("text", "code"), [(b"\xff\xfe", 65), (None, 0)], ids=["binary", "book"])
def test_a_book_from_stdin(text: bytes | None, code: int) -> None:
    text = Path(EXAMPLE).read_bytes() if text is None else text
    ran = subprocess.run(
        [sys.executable, "-m", "longshore.client.cli", "price", "--book", "-", "--gpus", "64"],
        cwd=ROOT, input=text, capture_output=True, check=False, timeout=180,
    )  # fmt: skip
    assert ran.returncode == code
    wanted = (ran.stdout, b"$25.00 per GPU-hour") if code == 0 else (ran.stderr, b"error: stdin")
    assert wanted[0].startswith(wanted[1])


def test_a_terminal_gets_colours_and_the_first_rows() -> None:
    asks = [(f"{10 + i}", 1) for i in range(30)]
    answer = priced(a_book([*asks, ("40", 500)], BIDS), 28)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    console.print(render_price(answer))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[1;31m$40.00" in text
    assert "\x1b[32m$23.00" in text
    assert "$29.00" in text
    assert "$30.00" not in text
    assert "← limit" in text


def test_asks_that_have_ended_begin_later_or_are_of_another_type_are_left_out(
    cli: CLI, book: Callable[[str], str]
) -> None:
    path = book(
        """
instance_type: 8xH100
last_updated: 2026-11-20T12:00:00Z
asks:
- {price: 1.00, quantity_gpus: 8, end: 2026-11-20T11:00:00Z}
- {price: 1.10, quantity_gpus: 8, end: 2026-11-20T12:00:00Z}
- {price: 1.20, quantity_gpus: 8, start: 2027-11-20T12:00:00Z}
- {price: 1.30, quantity_gpus: 8, instance_type: 8xH200}
- {price: 2.00, quantity_gpus: 8, instance_type: 8xH100-80GB}
- {price: 2.10, quantity_gpus: 8, start: 2026-11-20T12:00:00Z, duration_hours: 1}
bids:
- {price: 1.90, quantity_gpus: 8}
- {price: 3.90, quantity_gpus: 8, end: 2026-11-20T11:00:00Z}
"""
    )
    said = answered(cli, "--book", path, "--gpus", "16")
    assert said.left_out == {"instance_type": 1, "ended": 2, "later": 1}
    assert (said.sufficient, said.total_ask_liquidity, said.total_bid_liquidity) == (True, 16, 8)
    words = "1 ask that is of another instance type, 2 that have ended, 1 that begins later"
    assert words in " ".join(cli("price", "--book", path, "--gpus", "16").out.split())
    # A window of its own says which asks count; another type may be asked for.
    later = answered(cli, "--book", path, "--gpus", "8", "--from", "2027-11-20T12:00:00Z",
                     "--for", "1h")  # fmt: skip
    assert later.left_out == {"instance_type": 1, "window": 3}
    other = answered(cli, "--book", path, "--gpus", "8", "--instance-type", "8xH200")
    assert (other.optimal_price, other.left_out) == (1.3, {"instance_type": 5})
    only = book("instance_type: 8xH100\nlast_updated: 2026-11-20T12:00:00Z\nasks:\n"
                "- {price: 1, quantity_gpus: 8, end: 2026-11-20T11:00:00Z}\n")  # fmt: skip
    ran = cli("price", "--book", only, "--gpus", "8")
    assert (ran.code, "no ask counts: 1 ask that has ended" in ran.out) == (69, True)
