"""Headers of safetensors files: what they say, and what cannot be true is refused."""

import io
import json
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.serving.model_facts import read_files
from longshore.activities.serving.model_folder import read_folder
from longshore.activities.serving.safetensors import (
    MOST_BYTES,
    NotSafetensorsError,
    SafetensorsHeader,
    read_header,
)
from longshore.models.errors import NotFoundError
from longshore.models.model_memory import CacheType, Serving
from tests.support.safetensors_models import QWEN, header, whole, write


class Counted(io.BytesIO):
    """A file that counts what is read of it."""

    most = 0
    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.most, self.total = max(self.most, len(found)), self.total + len(found)
        return found


def read(raw: bytes) -> SafetensorsHeader:
    return read_header(io.BytesIO(raw), len(raw), "model.safetensors")


def one(**changed: Any) -> bytes:
    """Return a file of one tensor of 8 bytes, of which something is otherwise."""
    tensor = {"dtype": "F16", "shape": [4], "data_offsets": [0, 8], **changed}
    return header({"a": tensor}) + bytes(8)


def test_a_header_says_how_large_its_tensors_are():
    found = read(whole([(4, 8), (16,), ()]))
    assert found.weights == {"BF16": 2 * (32 + 16 + 1)}
    assert found.tensors == 3


def test_only_the_header_is_read():
    raw = whole([(1000, 1000)])
    file = Counted(raw)
    read_header(file, len(raw), "a")
    assert file.total < 1000


def test_a_type_that_nobody_knows_has_the_size_that_is_said():
    assert read(one(dtype="F8_NEXT")).weights == {"F8_NEXT": 8}


def text(raw: bytes, data: int = 0) -> bytes:
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it has 0 bytes"),
        (struct.pack("<Q", 10), "its header has 10 bytes, and the file ends before"),
        (struct.pack("<Q", 2**62), f"{MOST_BYTES:,} are the most"),
        (whole()[:-1], "its tensors have 96 bytes, and the file has 95"),
        (whole() + b"1", "its tensors have 96 bytes, and the file has 97"),
        (text(b"[]"), "does not begin with {, at byte 8"),
        (text(b'{"a"'), "has no colon behind 'a'"),
        (text(b'{"a": 5}'), "has no tensor behind the name 'a'"),
        (text(b'{"a": {nothing}}'), "has no JSON behind the name 'a'"),
        (text(b'{"a": {"b": ' + b"[" * 900 + b"]" * 900 + b"}}"), "has no type"),
        (text(b'{"' + b"a" * 5000 + b'": {}}'), "has no name of a tensor"),
        (text(b'{"\xff": {}}'), "has a name that is no text in UTF-8"),
        (text(b'{"__metadata__": 5}'), "has no mapping behind __metadata__"),
        (text(b'{"__metadata__": {"a": 5}}'), "has no text in __metadata__"),
        (text(b'{"__metadata__": {"a": "b" "c": "d"}}'), "has no comma in __metadata__"),
        (text(b'{"__metadata__": {"a" "b"}}'), "has no colon in __metadata__"),
        (text(b"{}x"), "goes on behind its end"),
        (one(dtype=5), "has no type (dtype) of the tensor 'a'"),
        (one(dtype="f16"), "has no type (dtype) of the tensor 'a'"),
        (one(shape=[4, -1]), "has no shape of the tensor 'a'"),
        (one(shape=[1] * 40), "has no shape of the tensor 'a'"),
        (one(shape=[5]), "of shape [5] and type F16 has 8 bytes"),
        (one(data_offsets=[8, 0]), "does not say where the tensor 'a' is"),
        (one(data_offsets=[0, 2**63]), "does not say where the tensor 'a' is"),
        (one(data_offsets=[0, 16]), "of shape [4] and type F16 has 16 bytes"),
        (one(data_offsets=[1, 9]), "begins at byte 1 and not at 0"),
    ],
)
def test_what_cannot_be_true_is_refused(raw: bytes, why: str):
    with pytest.raises(NotSafetensorsError) as refused:
        read(raw)
    assert str(refused.value).startswith("model.safetensors cannot be read as a safetensors file")
    assert why in str(refused.value)


def test_overlaps_and_holes_and_the_same_name_twice_are_refused():
    tensor = {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}
    with pytest.raises(NotSafetensorsError, match="begins at byte 0 and not at 8"):
        read(header({"a": tensor, "b": tensor}) + bytes(8))
    twice = json.dumps(tensor).encode()
    with pytest.raises(NotSafetensorsError, match="has the tensor 'a' twice"):
        read(text(b'{"a": ' + twice + b', "a": ' + twice + b"}", 8))
    with pytest.raises(NotSafetensorsError, match="has no comma between two tensors"):
        read(text(b'{"a": ' + twice + b' "b": ' + twice + b"}", 8))


def test_a_file_that_ends_while_it_is_read_is_refused():
    raw = whole()
    with pytest.raises(NotSafetensorsError, match="reading stopped"):
        read_header(io.BytesIO(raw[:20]), len(raw), "a")


@pytest.mark.parametrize("sign", [b"{", b"[", b'"', b"\\", b" ", b'{"a":', b'"a":{},', b'\\"'])
def test_a_long_header_of_one_sign_takes_little_memory(sign: bytes):
    raw = text(b'{"__metadata__":{"a":"' + sign * (2_000_000 // len(sign)))
    tracemalloc.start()
    with pytest.raises(NotSafetensorsError):
        read(raw)
    with pytest.raises(NotSafetensorsError):
        read(text(b"{" + sign * (2_000_000 // len(sign))))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20_000_000


@given(st.data())
def test_a_spoilt_file_is_refused_or_read_and_never_more_of_it_than_there_is(data: st.DataObject):
    raw = bytearray(whole([(2, 4), (8,)]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    file = Counted(bytes(raw))
    with suppress(NotSafetensorsError):
        found = read_header(file, len(raw), "a")
        assert sum(found.weights.values()) + found.length + 8 == len(raw)
    assert file.total <= len(raw)


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_any_bytes_are_refused_or_read(raw: bytes, length: int):
    with suppress(NotSafetensorsError):
        read(struct.pack("<Q", length) + raw)
    with suppress(NotSafetensorsError):
        read(text(raw))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), _JSON))
def test_any_json_is_refused_or_read(value: Any):
    with suppress(NotSafetensorsError):
        read(header(value))


def test_a_folder_of_several_files_is_one_model(tmp_path: Path):
    write(tmp_path, files=3)
    for name in ("consolidated", "adapter_model"):  # the same again, and what belongs to others
        (tmp_path / f"{name}.safetensors").write_bytes(whole())
    found = read_folder(str(tmp_path))
    assert (found.files, found.weights) == (3, {"BF16": 3 * 96})


def test_files_that_lack_are_named(tmp_path: Path):
    write(tmp_path, files=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"has 3 files, and 'model-00002-of-00003.*not there"):
        read_folder(str(tmp_path))


def test_files_that_an_index_names_are_the_model(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "part-a.safetensors")
    (tmp_path / "other.safetensors").write_bytes(whole())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part-a.safetensors"}}))
    assert (read_folder(str(tmp_path)).files, index.unlink()) == (1, None)
    assert read_folder(str(tmp_path)).files == 2
    index.write_text(json.dumps({"weight_map": {"a": "part-a.safetensors", "b": "part-b"}}))
    with pytest.raises(NotFoundError, match=r"2 files by .*, and 'part-b' is not there"):
        read_folder(str(tmp_path))


@pytest.mark.parametrize(
    "raw", ["", "{", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {}}',
            '{"weight_map": {"a": 5}}', '{"weight_map": {"a": []}}'],
)  # fmt: skip
def test_an_index_that_says_nothing_is_refused(tmp_path: Path, raw: str):
    write(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(raw)
    with pytest.raises(NotSafetensorsError, match="does not say in which file each tensor is"):
        read_folder(str(tmp_path))


def test_a_folder_without_a_tensor_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(header({}))
    with pytest.raises(NotSafetensorsError, match=r"files of .* have no tensor"):
        read_folder(str(tmp_path))


def test_the_proposal_follows_the_formula(tmp_path: Path):
    read = read_files(str(write(tmp_path)))
    serving = Serving(context=1000, concurrency=3, cache_type=CacheType.Q8_0, overhead=0.5)
    found = read.needs(serving)
    # Keys and values x layers x KV heads x numbers of a head x tokens, 34 bytes for 32 numbers.
    assert found.cache == 2 * 4 * 4 * 64 * 1000 * 3 // 32 * 34
    assert found.weights == 96
    assert found.total == found.weights + found.cache + found.compute + 500_000_000
    assert (read.layers, read.heads, read.key_heads, read.context) == (4, 12, 4, 2048)
    assert found.is_proposal
    assert not found.exact
    assert "room for 3 requests of full length" in " ".join(found.notes)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in QWEN.items() if key != name}


def test_what_a_configuration_leaves_out_is_as_its_format_has_it(tmp_path: Path):
    config = {**_without("num_key_value_heads"), "hidden_size": 240}
    del config["head_dim"]
    read = read_files(str(write(tmp_path, config={"text_config": config, "model_type": "vl"})))
    assert read.key_heads == 12
    assert read.needs(Serving(context=1)).cache == 2 * 4 * 12 * 20 * 2
    assert read.needs(Serving()).architecture == "vl"


def test_a_compressed_cache_is_kept_once(tmp_path: Path):
    config = {**QWEN, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    read = read_files(str(write(tmp_path, config=config)))
    assert read.needs(Serving(context=10)).cache == 4 * (512 + 64) * 2 * 10


def _unreadable(folder: Path, raw: bytes) -> None:
    (folder / "config.json").write_bytes(raw)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "config.json").unlink(), "there is no config.json"),
        (lambda folder: _unreadable(folder, b"{"), "config.json is no JSON"),
        (lambda folder: _unreadable(folder, b"[" * 100_000), "config.json is no JSON"),
        (lambda folder: _unreadable(folder, b"[]"), "config.json holds no mapping"),
        (lambda folder: _unreadable(folder, b" " * 5_000_000), "has over 4 MiB"),
        (lambda folder: _unreadable(folder, b"{}"), "does not say num_hidden_layers"),
        (
            lambda folder: _unreadable(folder, json.dumps(_without("hidden_size")).encode()),
            "does not say hidden_size",
        ),
    ],
)
def test_without_a_configuration_the_figure_is_a_lower_bound(
    tmp_path: Path, spoil: Callable[[Path], None], why: str
):
    spoil(write(tmp_path))
    found = read_files(str(tmp_path)).needs(Serving())
    assert found.total == found.weights + found.overhead
    assert why in found.notes[0]
    assert "without the cache" in found.notes[0]
