"""A model is looked at before it is stored."""

import struct
from pathlib import Path

from longshore.activities.serving.examination import examine
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import LLAMA_CPP, ModelSpec

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
