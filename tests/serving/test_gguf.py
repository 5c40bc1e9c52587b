"""Headers are read as llama.cpp's own package reads them, and what cannot be true is refused."""

import io
import re
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import BinaryIO

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.activities.serving import model_files
from longshore.activities.serving.gguf import NotGGUFError, read_header
from longshore.activities.serving.model_files import read_model
from longshore.models.errors import LongshoreError, NotFoundError, StoreError
from longshore.models.gguf import TENSOR_TYPES, GGUFHeader
from longshore.models.model_memory import Serving
from longshore.scheduling.serving.memory import estimate
from tests.support.gguf_models import Model, write
from tests.support.local_stack import free_ports
from tests.support.served import serving

_U32, _TEXT, _LIST = 4, 8, 9


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )  # fmt: skip


def file(
    keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), *, data: int = 0,
    version: int = 3, counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    """Return a file; `counts` are what it says of its tensors and keys."""
    said = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, *said) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def read(raw: bytes) -> GGUFHeader:
    return read_header(io.BytesIO(raw), len(raw), "model.gguf")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(Model(), tmp_path_factory.mktemp("model") / "small.gguf")


def test_types_are_those_of_the_package() -> None:
    theirs = gguf.constants.GGML_QUANT_SIZES
    known = set(gguf.GGMLQuantizationType)
    for number in TENSOR_TYPES.keys() & known:
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *theirs[kind]) == TENSOR_TYPES[number]
    # The engine is asked for what the package does not have yet (`test_memory`).
    assert {TENSOR_TYPES[number][0] for number in TENSOR_TYPES.keys() - known} <= {"Q2_0"}
    # An engine keeps numbers of this type while it computes: no file has them.
    assert {kind.name for kind in known - TENSOR_TYPES.keys()} <= {"Q8_1"}


def test_a_header_is_read_as_the_package_reads_it(tmp_path: Path) -> None:
    model = Model("gemma3", window=512, vocabulary=20_000, type=gguf.GGMLQuantizationType.Q8_0)
    path = write(model, tmp_path / "model.gguf")
    ours, theirs = read_model(str(path)), gguf.GGUFReader(path)
    assert (ours.architecture, ours.vocabulary) == ("gemma3", 20_000)
    found = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.keys.keys() | ours.lengths.keys() == found.keys()
    for name, value in ours.keys.items():
        assert value == pytest.approx(found[name].contents())
    assert {(each.name, each.shape, each.size) for each in ours.tensors} == {
        (each.name, tuple(each.shape), each.n_bytes) for each in theirs.tensors
    }


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "ends in its header"),
        (b"GGML" + bytes(60), "begins with b'GGML'"),
        (file(version=1), "version 1"),
        (file(version=0x03000000), "big-endian"),
        (file(counts=(2**40, 0)), "the file ends before"),
        (file(counts=(0, 2**62)), "the file ends before"),
        (file(counts=(0, 1)) , "the file ends before"),
        (file((struct.pack("<Q", 2**62),), data=99), "a key has 4611686018427387904 bytes"),
        (file((key("a", _TEXT, struct.pack("<Q", 2**62)),), data=99), "ends in its header"),
        (file((key("a", 77, b""),), data=99), "type 77"),
        (file((key("a", _LIST, struct.pack("<IQ", _LIST, 1)),), data=99), "type 9"),
        (file((key("a", _LIST, struct.pack("<IQ", 4, 2**50)),), data=99), "file ends before"),
        (file((key("a", _LIST, struct.pack("<IQ", 8, 2**50)),), data=99), "file ends before"),
        (file((key("a", _U32, bytes(4)),) * 2), "'a' is there twice"),
        (file((key("general.alignment", _U32, struct.pack("<I", 24)),)), "power of two"),
        (file((key("general.alignment", _U32, bytes(4)),)), "power of two"),
        (file((text("a")[:-1] + b"\xff" + struct.pack("<II", 4, 0),)), "no UTF-8"),
        (file((), (tensor("t", 4),) * 2, data=64), "'t' is there twice"),
        (file((), (tensor("t"),), data=64), "0 dimensions"),
        (file((), (tensor("t", 1, 1, 1, 1, 1),), data=64), "5 dimensions"),
        (file((), (tensor("t", 4, 0),), data=64), r"shape \[4, 0\]"),
        (file((), (tensor("t", 2**40, 2**40),), data=64), "shape"),
        (file((), (tensor("t", 4, kind=999),), data=64), "type 999"),
        (file((), (tensor("t", 33, kind=8),), data=64), "rows of 33: Q8_0 has blocks of 32"),
        (file((), (tensor("t", 4, offset=32),), data=64), "begins at byte 32 and not at 0"),
        (file((), (tensor("t", 2**30),), data=64), "is not whole"),
        (
            file((), (tensor("t", 4), tensor("u", 4, offset=32)), data=64, counts=(1, 0)),
            "its number of tensors is 1, and it tells of another behind them, 'u', at byte 57",
        ),
        (file((), (tensor("t", 4),), data=32, counts=(0, 0)), "number of tensors is 0.* 't'"),
    ],
    ids=count(),
)  # fmt: skip
def test_what_cannot_be_true_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(NotGGUFError, match=why):
        read(raw)


def test_a_file_that_is_cut_anywhere_is_refused(small: Path) -> None:
    raw = small.read_bytes()
    whole = read(raw)
    for end in [*range(0, len(raw) - 1, 997), len(raw) - 1]:
        with pytest.raises(NotGGUFError):
            read(raw[:end])
    assert whole.file_size == len(raw)


@pytest.mark.parametrize("fewer", [1, 2, 9])
def test_a_header_that_counts_fewer_tensors_than_it_tells_of_is_refused(
    small: Path, fewer: int
) -> None:
    raw = bytearray(small.read_bytes())
    tensors = read(bytes(raw)).tensors
    said = len(tensors) - fewer
    raw[8:16] = struct.pack("<Q", said)
    why = f"its number of tensors is {said}, .* '{re.escape(tensors[said].name)}', at byte "
    with pytest.raises(NotGGUFError, match=why):
        read(bytes(raw))


@pytest.mark.parametrize("beyond", [1, 32, 5_000])
def test_bytes_behind_the_last_tensor_are_nobodys(small: Path, beyond: int) -> None:
    """Some programs write more than the tensors have: engines pass over it."""
    raw = small.read_bytes()
    assert read(raw + bytes(beyond)).tensors == read(raw).tensors
    assert read(raw + b"\x01" * beyond).tensors == read(raw).tensors


@given(st.data())
def test_whatever_a_header_says_it_is_read_or_refused(data: st.DataObject) -> None:
    keys = [
        key("general.architecture", _TEXT, text("llama")),
        *(
            key(f"llama.{name}", _U32, struct.pack("<I", data.draw(st.integers(0, 2**32 - 1))))
            for name in ("block_count", "embedding_length", "attention.head_count")
        ),
    ]
    raw = bytearray(file(tuple(keys), (tensor("t", 4),), data=16))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    with suppress(LongshoreError):  # any other error would fail
        assert estimate(read(bytes(raw)), Serving()).total > 0


class Counted(io.BytesIO):
    """Counts the bytes that it is asked for."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.asked: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.append(size or 0)
        return super().read(size)


@pytest.mark.parametrize(
    ("entries", "length", "why"),
    [(2**22 + 1, 0, "4,194,304 are the most"), (2**16, 2**10, "longer than 64 MiB")],
)
def test_a_header_without_an_end_is_given_up(entries: int, length: int, why: str) -> None:
    texts = key("a", _LIST, struct.pack("<IQ", _TEXT, entries)) + entries * (
        struct.pack("<Q", length) + bytes(length)
    )
    source = Counted(file((texts,)))
    with pytest.raises(NotGGUFError, match=why):
        read_header(source, 2**50, "model.gguf")
    assert max(source.asked) <= 2**20
    assert sum(source.asked) <= 65 * 2**20


def test_values_that_no_model_has_are_not_kept() -> None:
    numbers = struct.pack("<4096H", *range(1_000, 5_096))
    lists = (key(f"{at}", _LIST, struct.pack("<IQ", 2, 4096) + numbers) for at in range(1_000))
    raw = file(tuple(lists))
    tracemalloc.start()
    try:
        with pytest.raises(NotGGUFError, match="values have more than 1 MiB"):
            read(raw)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def split(folder: Path, at: Callable[[int], int] = lambda part: part) -> Path:
    """Write a model of three files, as llama.cpp splits."""
    for part in range(3):
        keys = [
            key("split.no", 2, struct.pack("<H", at(part))),
            key("split.count", 2, struct.pack("<H", 3)),
            key("split.tensors.count", 5, struct.pack("<i", 3)),
        ]
        if not part:
            keys.append(key("general.architecture", _TEXT, text("llama")))
        raw = file(tuple(keys), (tensor(f"t{part}", 8),), data=32)
        (folder / f"m-{part + 1:05}-of-00003.gguf").write_bytes(raw)
    return folder / "m-00001-of-00003.gguf"


def test_a_split_model_is_read_whole_whichever_file_is_named(tmp_path: Path) -> None:
    first = split(tmp_path)
    whole = read_model(str(first))
    assert [each.name for each in whole.tensors] == ["t0", "t1", "t2"]
    assert whole.architecture == "llama"
    assert whole.file_size == sum(each.stat().st_size for each in tmp_path.iterdir())
    assert read_model(str(first).replace("00001-of", "00003-of")) == whole


def test_a_split_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    first = split(tmp_path)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(NotFoundError, match=r"has 3 files, and 'm-00002-of-00003.gguf' is not"):
        read_model(str(first))
    split(tmp_path, lambda part: 0)
    with pytest.raises(NotGGUFError, match=r"file 0 of 3, and not 1 of 3"):
        read_model(str(first))
    alone = first.rename(tmp_path / "alone.gguf")
    with pytest.raises(NotGGUFError, match="one of 3 files"):
        read_model(str(alone))


def test_a_model_without_a_tensor_is_refused(tmp_path: Path) -> None:
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(file((key("general.architecture", _TEXT, text("llama")),)))
    with pytest.raises(NotGGUFError, match=r"^'alone.gguf' has no tensor: it is the header of"):
        read_model(str(alone))


def test_the_first_of_several_files_may_have_keys_alone(tmp_path: Path) -> None:
    for part, tensors in enumerate([(), (tensor("t", 8),)]):
        keys = (
            key("split.no", 2, struct.pack("<H", part)),
            key("split.count", 2, struct.pack("<H", 2)),
        )
        (tmp_path / f"m-{part + 1:05}-of-00002.gguf").write_bytes(file(keys, tensors, data=32))
    whole = read_model(str(tmp_path / "m-00001-of-00002.gguf"))
    assert [each.name for each in whole.tensors] == ["t"]


def test_a_key_of_any_letters_is_written_in_one_line() -> None:
    value = struct.pack("<IQ", 4, 2**60)
    with pytest.raises(NotGGUFError, match=r"its number of entries of a\\n\\x1bb is ") as refused:
        read(file((key("a\n\x1bb", _LIST, value),)))
    assert str(refused.value).isprintable()


def test_a_file_that_is_named_as_a_thousand_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = split(tmp_path)
    for at in range(2, 1_000):
        (tmp_path / f"n-{at:05}-of-00999.gguf").symlink_to(first)
    (tmp_path / "n-00001-of-00999.gguf").symlink_to(first)
    opened: list[str] = []

    def counted(file: BinaryIO, size: int, name: str) -> GGUFHeader:
        opened.append(name)
        return read_header(file, size, name)

    monkeypatch.setattr(model_files, "read_header", counted)
    with pytest.raises(NotGGUFError, match=r"file 0 of 3, and not 0 of 999"):
        read_model(str(tmp_path / "n-00001-of-00999.gguf"))
    assert len(opened) == 1


def test_the_headers_of_all_files_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = split(tmp_path)
    monkeypatch.setattr(model_files, "_MOST_HEADERS", 300)
    with pytest.raises(NotGGUFError, match=r"headers of .* have more than"):
        read_model(str(first))
    monkeypatch.undo()
    monkeypatch.setattr(model_files, "MOST_TENSORS", 2)
    with pytest.raises(NotGGUFError, match="files after it have more than 2 tensors"):
        read_model(str(first))


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*absent.gguf"):
        read_model(str(tmp_path / "absent.gguf"))
    with pytest.raises(NotGGUFError, match="is a folder"):
        read_model(str(tmp_path))
    with pytest.raises(StoreError, match="nothing:"):
        read_model("nothing://bucket/model.gguf")


def test_a_model_is_read_over_any_store(small: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/models/small.gguf", small.read_bytes())
    read = read_model("memory://models/small.gguf")
    assert replace(read, files=()) == replace(read_model(str(small)), files=())
    with pytest.raises(NotFoundError):
        read_model("memory://models/absent.gguf")


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "_ANSWERS_WITHIN", 0.2)
    (tmp_path / "a.gguf").write_bytes(b"GGUF" * 100)
    with serving(tmp_path) as served:
        served.held_back.add("a.gguf")
        with pytest.raises(StoreError, match=r"a\.gguf cannot be read: it did not answer in time"):
            read_model(f"{served.url}a.gguf")
        served.open.set()


def test_a_server_that_does_not_answer_is_not_taken_for_one_without_the_file() -> None:
    (port,) = free_ports(1)
    why = rf"cannot be read: nothing answers at 127\.0\.0\.1:{port} \(Connection refused\)$"
    with pytest.raises(StoreError, match=why):
        read_model(f"http://127.0.0.1:{port}/part-00001-of-00002.gguf")
