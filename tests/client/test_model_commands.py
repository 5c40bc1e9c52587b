"""`longshore models`: what a model needs, told and as JSON."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

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


def test_more_requests_than_the_engine_takes_are_refused(cli: Cli, model: Path) -> None:
    asked = ("models", "estimate", str(model), "--context", "256")
    ran = cli(*asked, "--concurrency", "257")
    assert ran.code == 65
    assert "concurrency is 257: llama.cpp serves at most 256 requests at a time" in " ".join(
        ran.err.split()
    )
    ran = cli(*asked, "--concurrency", "256", "--gpu-memory", "500GB")
    assert "has room for 256 requests at a time; no more can be asked for." in ran.out


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
        ((__file__, "--gpu-memory", "0"), 2, "--gpu-memory '0': must be above 0"),
        ((__file__, "--gpu-memory", "-1GB"), 2, "--gpu-memory '-1GB': "),
        ((__file__, "--context", "0"), 2, "--context"),
        ((__file__, "--context", "9999999999"), 2, "--context"),
        ((__file__, "--overhead", "-1"), 2, "--overhead"),
    ],
)
def test_bad_input_is_told(cli: Cli, asks: tuple[str, ...], code: int, why: str) -> None:
    ran = cli("models", "estimate", *asks)
    assert ran.code == code, ran.err
    assert why in " ".join(ran.err.split())


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No credentials of S3, wherever they are looked up."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ROLE_ARN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("SHARED_CREDENTIALS_FILE", "CONFIG_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("file", ["x.gguf", "x-00001-of-00002.gguf"])
def test_a_bucket_without_credentials_is_named_with_what_it_wants(cli: Cli, file: str) -> None:
    url = f"s3://bucket-none/{file}"
    ran = cli("models", "estimate", url)
    assert (ran.code, ran.err.split(". ")[0]) == (
        69, f"error: the model {url} cannot be looked for: no credentials were found for it"
    )  # fmt: skip
    assert "AWS_ACCESS_KEY_ID" in ran.err


def test_two_adapters_of_one_name_are_refused(cli: Cli) -> None:
    given = ("--adapter", "x=/models/a.gguf", "--adapter", "x=/models/b.gguf")
    ran = cli("models", "add", "m", "--source", "/models/m.gguf", *given)
    assert ran.code == 2
    said = " ".join(ran.err.replace("│", " ").split())
    assert "--adapter x=/models/b.gguf: 'x' is given already: each has a name of its own" in said


@pytest.mark.parametrize("name", ["a b", ""])
def test_a_name_that_cannot_be_is_told_without_a_line(cli: Cli, name: str) -> None:
    ran = cli("models", "add", name, "--source", "/models/a.gguf")
    assert ran.code == 65
    assert ran.err.startswith(f"error: model '{name}': name: ")
