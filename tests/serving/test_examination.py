"""A model is looked at before it is stored."""

import re
import struct
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longshore.activities.serving import examination
from longshore.activities.serving.examination import examine
from longshore.models.model_memory import CacheType
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import LLAMA_CPP, ModelSpec, Runtime
from tests.support.gguf_models import Model
from tests.support.gguf_models import write as write_gguf
from tests.support.safetensors_models import header, whole, write
from tests.support.served import serving

_U32, _TEXT, _U64 = 4, 8, 10


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_a_header_that_wants_more_memory_than_any_model_is_refused(tmp_path: Path) -> None:
    keys = [_text("general.architecture") + struct.pack("<I", _TEXT) + _text("other")]
    numbers = {"block_count": 1, "embedding_length": 64, "attention.head_count": 4}
    keys += [
        _text(f"other.{name}") + struct.pack("<II", _U32, value) for name, value in numbers.items()
    ]
    keys += [
        _text(f"other.attention.{name}") + struct.pack("<IQ", _U64, 2**39)
        for name in ("head_count_kv", "key_length", "value_length")
    ]
    file = tmp_path / "lies.gguf"
    tensor = _text("blk.0.t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    raw = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    file.write_bytes(raw + bytes(-len(raw) % 32) + bytes(32))
    spec = ModelSpec(name="lies", source=str(file))
    (problem,) = examine(spec, BUILT_IN[LLAMA_CPP]).problems
    assert problem.startswith("source: by its header it takes ")
    assert problem.endswith("TB; 1000000.0TB are the most")


def test_one_safetensors_file_is_looked_at(tmp_path: Path) -> None:
    file = write(tmp_path) / "model.safetensors"
    spec = ModelSpec(name="one", source=str(file), memory=5)
    found = examine(spec, BUILT_IN["vllm"])
    assert (found.problems, found.warnings) == ((), ())
    assert found.facts is not None
    assert found.facts.memory.weights == 96
    less = examine(spec.model_copy(update={"memory": 1e-8}), BUILT_IN["vllm"])
    assert "its weights alone have 96" in less.warnings[0]
    (unstated,) = examine(spec.model_copy(update={"memory": None}), BUILT_IN["vllm"]).problems
    assert "By its files " in unstated
    (tmp_path / "config.json").unlink()
    (unstated,) = examine(spec.model_copy(update={"memory": None}), BUILT_IN["vllm"]).problems
    assert "there is no config.json: the figure is weights and overhead alone" in unstated


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ((2**62).to_bytes(8, "little") + b"{}", "its header has 4,611,686,018,427,387,904 bytes"),
        (b"few", "it has 3 bytes"),
        (header({}), "no tensor"),
    ],
)
def test_one_safetensors_file_that_cannot_be_true_is_refused(
    tmp_path: Path, raw: bytes, why: str
) -> None:
    file = write(tmp_path, raw=raw) / "model.safetensors"
    of_file, of_folder = (
        examine(ModelSpec(name="one", source=str(path), memory=5), BUILT_IN["vllm"]).problems
        for path in (file, tmp_path)
    )
    assert why in of_file[0]
    assert why in of_folder[0]
    (other,) = examine(ModelSpec(name="one", source=str(file)), BUILT_IN[LLAMA_CPP]).problems
    assert why in other


def files_of(source: str) -> str:
    """Return what is kept of the files of a model to tell them from others."""
    own = Runtime(name="own", command=("serve", "{port}"))
    (facts,) = [examine(ModelSpec(name="m", source=source, memory=5), own).facts]
    assert facts is not None
    return facts.files


@pytest.mark.parametrize("tensors", [0, 8], ids=["one", "several"])
def test_files_of_one_shape_are_told_from_others(tmp_path: Path, tensors: int) -> None:
    one, other = Path(tmp_path, "one"), Path(tmp_path, "other")
    found: list[str] = []
    for folder, seed in ((one, 1), (other, 1), (other, 2)):
        folder.mkdir(exist_ok=True)
        found.append(files_of(str(write_gguf(Model(), folder / "m.gguf", seed, tensors=tensors))))
    assert found[0] == found[1] != found[2]


def test_a_folder_of_one_shape_is_told_from_others(tmp_path: Path) -> None:
    before = files_of(str(write(tmp_path)))
    assert files_of(str(tmp_path)) == before == files_of(str(tmp_path / "model.safetensors"))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert files_of(str(tmp_path)) != before


@pytest.mark.parametrize("number", [2, 17, 40])
def test_a_model_of_many_files_is_told_by_more_than_their_headers(
    tmp_path: Path, number: int
) -> None:
    weights = whole([(64, 128)])
    trained = weights[:4096] + b"\1" * (len(weights) - 4096)
    before = files_of(str(write(tmp_path, files=number, raw=weights)))
    assert before == files_of(str(tmp_path))
    assert files_of(str(write(tmp_path, files=number, raw=trained))) != before


def test_a_server_that_gives_a_file_from_its_beginning_alone_says_nothing_of_its_weights(
    tmp_path: Path,
) -> None:
    large = Model(inner=40_000)
    write_gguf(large, tmp_path / "large.gguf", None)
    with serving(tmp_path) as served:
        assert files_of(f"{served.url}large.gguf") == ""


def test_of_a_file_behind_a_url_little_is_read_to_tell_it_from_others(tmp_path: Path) -> None:
    file = write_gguf(Model(inner=40_000), tmp_path / "large.gguf", None)
    asked: list[int] = []

    class Ranges(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            whole = file.read_bytes()
            assert found is not None
            start, end = int(found[1]), min(int(found[2]), len(whole) - 1)
            asked.append(end - start + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(whole)}")
            self.send_header("Content-Length", str(end - start + 1))
            self.end_headers()
            self.wfile.write(whole[start : end + 1])

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = files_of(f"http://127.0.0.1:{server.server_address[1]}/large.gguf")
        server.shutdown()
    assert found == files_of(str(file))
    assert file.stat().st_size > 20_000_000
    assert sum(asked) < 4_000_000


def test_a_large_file_behind_a_url_is_read_for_its_digest_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(Model(), tmp_path / "tiny.gguf", None)
    monkeypatch.setattr(examination, "READ_FOR_A_DIGEST", file.stat().st_size - 1)
    with serving(tmp_path) as served:
        spec = ModelSpec(name="far", source=f"{served.url}tiny.gguf", sha256="0" * 64)
        unread = examine(spec, BUILT_IN[LLAMA_CPP])
        assert unread.problems == ()
        assert "behind a URL is not read for it; --verify does" in unread.warnings[0]
        (why,) = examine(spec, BUILT_IN[LLAMA_CPP], verify=True).problems
        assert "and the file has" in why


@pytest.mark.parametrize("memory", [None, 5])
@pytest.mark.parametrize("runtime", [LLAMA_CPP, "ollama"])
def test_one_of_safetensors_files_is_refused_where_its_runtime_wants_gguf(
    tmp_path: Path, runtime: str, memory: float | None
) -> None:
    file = write(tmp_path) / "model.safetensors"
    for path in (tmp_path, file):
        spec = ModelSpec(name="one", source=str(path), memory=memory)
        assert examine(spec, BUILT_IN[runtime]).problems == (
            f"source: {path} is of safetensors files, and the runtime {runtime} wants a GGUF file",
        )


def test_what_an_engine_cannot_be_asked_is_told_by_its_field(tmp_path: Path) -> None:
    file = str(write_gguf(Model(width=64, heads=4, key_heads=2), tmp_path / "tiny.gguf", None))
    many = ModelSpec(name="m", source=file, concurrency=300)
    (why,) = examine(many, BUILT_IN[LLAMA_CPP]).problems
    assert why.startswith("concurrency: is 300: llama.cpp serves at most 256 requests at a time")
    blocks = ModelSpec.model_validate({"name": "m", "source": file, "cache_type": "q8_0"})
    (why,) = examine(blocks, BUILT_IN[LLAMA_CPP]).problems
    assert why.startswith("cache_type: a cache of type q8_0 has blocks of 32 numbers, and a head")


@pytest.mark.parametrize("memory", [None, 5])
@pytest.mark.parametrize("kind", CacheType)
def test_ollama_is_given_no_cache_type_that_it_would_replace(
    tmp_path: Path, kind: CacheType, memory: float | None
) -> None:
    """It says so in its log alone, and f16 takes more than most."""
    file = str(write_gguf(Model(width=256, heads=4, key_heads=2), tmp_path / "tiny.gguf", None))
    spec = ModelSpec(name="m", source=file, cache_type=kind, memory=memory)
    found = examine(spec, BUILT_IN["ollama"]).problems
    if kind in (CacheType.F16, CacheType.Q8_0, CacheType.Q4_0):
        assert found == ()
        return
    (why,) = found
    assert why.startswith(f"cache_type: is {kind}, and ollama takes f16, q8_0, q4_0 alone")
    assert examine(spec, BUILT_IN[LLAMA_CPP]).problems == ()


def test_what_a_runtime_has_no_place_for_is_told(tmp_path: Path) -> None:
    said = {"name": "one", "source": str(write(tmp_path)), "memory": 5, "context": 64}
    plain = ModelSpec.model_validate(said)
    assert examine(plain, BUILT_IN["vllm"]).warnings == ()
    typed = ModelSpec.model_validate(said | {"cache_type": "q8_0"})
    assert examine(typed, BUILT_IN["vllm"]).warnings == (
        "cache_type: is q8_0, and the command of the runtime vllm has no {cache_type}: its engine "
        "is not told; the model's `args` may tell it",
    )
    own = Runtime(name="own", command=("serve", "{port}"))
    (why,) = examine(plain, own).warnings
    assert why.startswith("context: is 64, and the command of the runtime own has no {context}")
