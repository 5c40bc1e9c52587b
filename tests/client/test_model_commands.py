"""`longshore models`: what a model needs, told and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import Ran
from tests.support.gguf_models import Model, write

Cli = Callable[..., Ran]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Model(layers=4, width=256, context=2048)
    return write(shape, tmp_path_factory.mktemp("model") / "small.gguf", None)


def test_each_part_is_told_and_what_fits(cli: Cli, model: Path) -> None:
    ran = cli("models", "estimate", str(model), "--concurrency", "3", "--gpu-memory", "1GB")
    assert (ran.code, ran.err) == (0, "")
    parts = [line.split()[0] for line in ran.out.splitlines()[1:6]]
    assert parts == ["weights", "KV", "compute", "overhead", "total"]
    # Without a context that of its training, where that is the shorter.
    assert "3 requests of 2,048 tokens, f16" in ran.out
    assert "A GPU of 1GB has room for" in ran.out


def test_the_same_is_there_as_json(cli: Cli, model: Path) -> None:
    asks = ("--context", "1000", "--cache-type", "q8_0", "--overhead", "0", "--gpu-memory", "1MB")
    ran = cli("models", "estimate", str(model), *asks, "--json")
    told = json.loads(ran.out)
    assert told["serving"]["context"] == 1000
    assert told["cells"] == 1024
    # 4 layers, 2 KV heads, keys and values of 64, 34 bytes for 32 numbers.
    assert told["cache"] == 4 * 1024 * 2 * (64 + 64) // 32 * 34
    assert told["overhead"] == 0
    assert told["most_requests"] == 0
    assert told["total"] == sum(told[part] for part in ("weights", "cache", "state", "compute"))


def test_a_note_does_not_go_into_the_result(cli: Cli, model: Path) -> None:
    ran = cli("models", "estimate", str(model), "--context", "4096", "--gpu-memory", "1MB")
    assert "trained on 2,048 tokens" in ran.err
    assert "A GPU of 1MB has no room for it, not even for one request at a time." in ran.out


@pytest.mark.parametrize(
    ("asks", "code", "why"),
    [
        (("absent.gguf",), 66, "there is no file"),
        ((".",), 65, "of a GGUF model name the .gguf file in it"),
        ((__file__,), 65, "begins with"),
        (("nothing://bucket/a.gguf",), 69, "nothing://bucket/a.gguf cannot be read"),
        ((__file__, "--gpu-memory", "much"), 2, "--gpu-memory 'much': expected a size such as"),
        ((__file__, "--context", "0"), 2, "--context"),
        ((__file__, "--context", "9999999999"), 2, "--context"),
        ((__file__, "--overhead", "-1"), 2, "--overhead"),
    ],
)
def test_bad_input_is_told(cli: Cli, asks: tuple[str, ...], code: int, why: str) -> None:
    ran = cli("models", "estimate", *asks)
    assert ran.code == code, ran.err
    assert why in " ".join(ran.err.split())


@pytest.mark.parametrize("name", ["a b", ""])
def test_a_name_that_cannot_be_is_told_without_a_line(cli: Cli, name: str) -> None:
    ran = cli("models", "add", name, "--source", "/models/a.gguf")
    assert ran.code == 65
    assert ran.err.startswith(f"error: model '{name}': name: ")
