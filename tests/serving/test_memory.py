"""What a model needs is what llama.cpp's server allocates, to the last digit that it prints."""

import tempfile
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.activities.serving.gguf import read_header
from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader
from longshore.models.model_memory import CacheType, Serving
from longshore.scheduling.serving.memory import estimate, most_that_fit
from tests.support.gguf_models import Model, Packed, write
from tests.support.llama_engine import MIB, allocated

_BASE = Model(layers=6, width=512, heads=8, key_heads=2, inner=1024, vocabulary=2000)
_GEMMA2 = replace(_BASE, architecture="gemma2", key=64, window=1024, tied=True)
_GEMMA3 = replace(_BASE, architecture="gemma3", key=64, window=512, tied=True)
_COHERE2 = replace(_BASE, architecture="cohere2", window=512, tied=True)
_NARROW = replace(_BASE, layers=2, width=1024, inner=64, experts=16, used=16, vocabulary=400)
"""All of its experts are asked, and each puts out more than is inside it."""
_TYPES = gguf.GGMLQuantizationType
MODELS = {
    "llama": _BASE,
    "llama-q8_0": replace(_BASE, type=_TYPES.Q8_0),
    "llama-q4_0": replace(_BASE, type=_TYPES.Q4_0),
    "llama-q1_0": replace(_BASE, type=Packed.Q1_0),
    "llama-q2_0": replace(_BASE, type=Packed.Q2_0),
    "llama-tied": replace(_BASE, tied=True),
    "llama-experts": replace(_BASE, experts=8, used=2),
    "llama-narrow-experts": _NARROW,
    "llama-half-as-wide-experts": replace(_NARROW, inner=512, experts=8, used=8),
    "llama-nearly-half-as-wide-experts": replace(_NARROW, inner=480, experts=8, used=8),
    "llama-packed-narrow-experts": replace(_NARROW, inner=256, type=_TYPES.Q4_0),
    "llama-without-kv-heads": replace(_BASE, key_heads=None),
    "llama-wide-heads": replace(_BASE, heads=32, key_heads=4, key=64, width=256, inner=512),
    "llama-wide-inside": replace(_BASE, width=256, heads=4, inner=8192, layers=2),
    "phi3": replace(_BASE, architecture="phi3", window=512),
    "qwen2": replace(_BASE, architecture="qwen2"),
    "qwen3": replace(_BASE, architecture="qwen3", key=64),
    "qwen3moe": replace(_BASE, architecture="qwen3moe", key=64, experts=8, used=2),
    "qwen3moe-narrow-experts": replace(_NARROW, architecture="qwen3moe", key=64, used=8),
    "qwen3moe-many-experts": replace(
        _NARROW, architecture="qwen3moe", key=64, width=2048, experts=32, used=32
    ),
    "gemma": replace(_BASE, architecture="gemma", key=64, tied=True),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "cohere2": _COHERE2,
    "llama-window": replace(_BASE, window=512, pattern=2),
    "gemma2-window-0": replace(_GEMMA2, window=0),
    "gemma2-without-window": replace(_GEMMA2, window=None),
    "gemma2-period-3": replace(_GEMMA2, pattern=3),
    "gemma3-without-window": replace(_GEMMA3, window=None, pattern=3),
    "gemma3-period-0": replace(_GEMMA3, pattern=0),
    "gemma3-period-3": replace(_GEMMA3, pattern=3),
    "gemma3-list": replace(_GEMMA3, pattern=(True, True, False, True, False, False)),
    "gemma3-list-that-is-short": replace(_GEMMA3, layers=7, pattern=(True,) * 4),
    "gemma3-list-that-is-long": replace(_GEMMA3, pattern=(True,) * 6 + (False,) * 2),
    "cohere2-period-3": replace(_COHERE2, pattern=3),
    "cohere2-list-of-numbers": replace(_COHERE2, pattern=(1, 0, 2, 0, 1, 0)),
    "cohere2-window-0": replace(_COHERE2, window=0),
    "deepseek2": replace(_BASE, architecture="deepseek2"),
    "deepseek2-narrow-experts": replace(_NARROW, architecture="deepseek2", used=8),
    "deepseek2-older": replace(_BASE, architecture="deepseek2", latent=False),
    "mamba": replace(_BASE, architecture="mamba"),
    "mamba-wide": replace(_BASE, architecture="mamba", width=1024, layers=2),
}
UNKNOWN = {
    "other": replace(_BASE, architecture="other"),
    "lfm2": replace(_BASE, architecture="lfm2", tied=True),
    # llama.cpp gives it windows where it has 64 layers.
    "exaone4": replace(
        _BASE, architecture="exaone4", layers=64, width=64, inner=64, vocabulary=300, window=4096
    ),
    "mamba2": replace(_BASE, architecture="mamba2"),
    # Its header says that it has 0 heads.
    "rwkv6": replace(_BASE, architecture="rwkv6"),
}
"""Models of architectures that are not known: what they need is bounded."""
WAYS = {
    "plain": Serving(),
    "three-requests": Serving(context=1000, concurrency=3),
    "long": Serving(context=16_384, concurrency=2, cache_type=CacheType.Q8_0),
    "large-batch": Serving(batch=2048),
    "small-batch": Serving(context=300, concurrency=5, cache_type=CacheType.Q4_0, batch=64),
    "many-requests": Serving(context=256, concurrency=128),
    "whole-numbers": Serving(context=16_384, concurrency=4, cache_type=CacheType.F32),
    "more-requests-than-tokens": Serving(context=256, concurrency=256, batch=32),
    "batch-above-context": Serving(context=100, batch=2048),
    "batch-above-all-contexts": Serving(context=300, concurrency=2, batch=4096),
}


def header_of(path: Path) -> GGUFHeader:
    with path.open("rb") as file:
        return read_header(file, path.stat().st_size, path.name)


@cache
def header_like(model: Model) -> GGUFHeader:
    with tempfile.TemporaryDirectory() as folder:
        return header_of(write(model, Path(folder) / "model.gguf", None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "plain") for name in MODELS),
        *product(
            ("llama", "gemma3", "deepseek2", "mamba"), ("three-requests", "long", "small-batch")
        ),
        *product(("llama-wide-inside", "gemma3", "mamba-wide"), ("more-requests-than-tokens",)),
        *product(("llama", "gemma3", "deepseek2", "mamba"), ("batch-above-context",)),
        *product(("llama-wide-inside", "qwen3moe-many-experts"), ("batch-above-all-contexts",)),
        ("mamba", "many-requests"),
        ("qwen3moe-many-experts", "large-batch"),
        *product(
            ("llama", "gemma3", "gemma2", "deepseek2", "deepseek2-older"), ("whole-numbers",)
        ),
        ("deepseek2-older", "long"),
        ("gemma2-without-window", "long"),
    ],
)
def test_it_is_what_the_engine_allocates(folder: Path, name: str, way: str) -> None:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write(MODELS[name], path, None)
    serving = WAYS[way]
    said, real = estimate(header_of(path), serving), allocated(path, serving)
    assert said.exact
    # A buffer is printed in MiB with two digits, and a model has up to three of one kind.
    assert said.weights == pytest.approx(real.weights, abs=0.015 * MIB), real.log
    assert said.cache == pytest.approx(real.cache, abs=0.015 * MIB), real.log
    assert said.state == pytest.approx(real.state, abs=0.015 * MIB), real.log
    assert real.compute <= said.compute, real.log
    # A bound that is of use: the server asks for what tokens are worth where it is wanted alone.
    spare = (
        4 * min(serving.batch, said.cells * serving.concurrency) * MODELS[name].vocabulary
        + 4 * MIB
    )
    assert said.compute <= 2 * real.compute + spare


@pytest.mark.exhaustive(always=2)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *product(("mamba2",), ("many-requests", "more-requests-than-tokens")),
        *product(("lfm2", "rwkv6"), ("plain", "many-requests")),
        ("exaone4", "plain"),
    ],
)
def test_what_the_engine_allocates_of_an_unknown_architecture_is_no_more(
    folder: Path, name: str, way: str
) -> None:
    path = write(UNKNOWN[name], folder / "unknown.gguf", None)
    said, real = estimate(header_of(path), WAYS[way]), allocated(path, WAYS[way])
    assert not said.exact
    assert real.weights <= said.weights + 0.015 * MIB, real.log
    assert real.cache <= said.cache + 0.015 * MIB, real.log
    assert real.state <= said.state + 0.015 * MIB, real.log
    assert real.compute <= said.compute, real.log


@pytest.mark.exhaustive
@given(
    st.sampled_from(sorted(MODELS)), st.integers(1, 20_000), st.integers(1, 40),
    st.sampled_from(CacheType),
)  # fmt: skip
# As GB, and back to bytes, its total was a part of a byte less.
@example("gemma2-window-0", 9729, 32, CacheType.Q5_1)
def test_more_is_never_said_to_need_less(
    name: str, context: int, requests: int, kind: CacheType
) -> None:
    header = header_like(MODELS[name])
    fewer = Serving(context=context, concurrency=requests, cache_type=kind)
    said = estimate(header, fewer)
    for more in (
        fewer.model_copy(update={"context": context + 300}),
        fewer.model_copy(update={"concurrency": requests + 1}),
        fewer.model_copy(update={"batch": 1024}),
    ):
        assert estimate(header, more).total >= said.total
    assert said.total == (said.weights + said.cache + said.state + said.compute + said.overhead)
    room = most_that_fit(lambda asked: estimate(header, asked), fewer, said.total / 1e9, 256)
    assert room >= requests
    if room == 256:
        return
    beyond = fewer.model_copy(update={"concurrency": room + 1})
    assert estimate(header, beyond).total > said.total


@pytest.mark.parametrize("name", ["gemma3", "deepseek2", "mamba", "llama"])
def test_an_unknown_architecture_is_said_to_need_no_less(name: str) -> None:
    known = header_like(MODELS[name])
    keys = {key.replace(f"{name}.", "new."): value for key, value in known.keys.items()} | {
        "general.architecture": "new"
    }
    said = estimate(replace(known, keys=keys), Serving(context=16_384))
    assert not said.exact
    assert "architecture new is not known" in said.notes[0]
    right = estimate(known, Serving(context=16_384))
    assert said.cache >= right.cache
    assert said.state >= right.state
    assert said.compute >= right.compute
    assert said.weights == right.weights


@pytest.mark.parametrize("lacks", ["key_length_mla", "value_length_mla"])
def test_one_compressed_row_is_kept_where_the_header_has_both_lengths(lacks: str) -> None:
    """llama.cpp looks at these keys; a length of 0 is none."""
    header, key = header_like(MODELS["deepseek2"]), f"deepseek2.attention.{lacks}"
    kept = estimate(header, Serving()).cache
    for keys in ({**header.keys, key: 0}, {k: v for k, v in header.keys.items() if k != key}):
        assert estimate(replace(header, keys=keys), Serving()).cache > kept


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ({"shortconv.l_cache": 3}, 512 * 2),
        ({"wkv.head_size": 64}, 512 * (2 + 64)),
        ({"kda.head_dim": 32}, 8 * 32 * (3 * 3 + 32)),
        ({"kda.head_dim": 32, "ssm.conv_kernel": 5}, 8 * 32 * (3 * 4 + 32)),
    ],
)
def test_an_unknown_architecture_keeps_the_state_that_its_keys_say(
    keys: dict[str, int], numbers: int
) -> None:
    """As llama.cpp has it (`n_embd_r` and `n_embd_s` of src/llama-hparams.cpp), in each layer."""
    header = header_like(UNKNOWN["other"])
    more = {f"other.{key}": value for key, value in keys.items()}
    assert estimate(header, Serving()).state == 0
    said = estimate(replace(header, keys={**header.keys, **more}), Serving(concurrency=3))
    assert said.state == numbers * 4 * 6 * 3


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"general.architecture": ""}, "general.architecture is missing"),
        ({"llama.block_count": 0}, "llama.block_count is missing, or not above 0"),
        ({"llama.block_count": 2**31}, "llama.block_count is 2,147,483,648; 10,000 are the most"),
        ({"llama.embedding_length": -1}, "llama.embedding_length is not a whole number"),
        ({"llama.attention.head_count": "x"}, "llama.attention.head_count is not a whole number"),
        ({"llama.attention.head_count_kv": (2, 2)}, "a number for 2 layers of 6"),
        ({"llama.attention.head_count_kv": -4}, "head_count_kv is not a whole number"),
        ({"llama.attention.head_count_kv": (2, 2, 2, 2, 2, -2)}, "head_count_kv is not a whole"),
        ({"llama.attention.head_count_kv": 0}, "head_count or head_count_kv is 0"),
        ({"llama.attention.head_count": 3}, "is 3 and does not divide embedding_length, 512"),
        ({"llama.block_count": 5}, r"is 5, and the file has tensors of layer 5 \(blk.5\)"),
        ({"llama.block_count": 7}, r"is 7, .* of 6 layers: none of layer 6 \(blk.6\)"),
        ({"llama.attention.head_count_kv": 1}, "blk.0.attn_k.weight has outputs: 128, not 64"),
        ({"llama.attention.head_count_kv": 3}, "blk.0.attn_k.weight has outputs: 128, not 192"),
        ({"llama.attention.head_count_kv": 4}, "is 4, of 64 numbers each, and blk.0.attn_k.weig"),
        ({"llama.attention.head_count_kv": (2, 2, 2, 1, 2, 2)}, "is 1, .* blk.3.attn_k.weight"),
        ({"llama.attention.head_count": 2}, "blk.0.attn_k.weight has outputs: 128, not 512"),
        ({"llama.attention.key_length": 32}, "is 8, of 32 numbers each, and blk.0.attn_q.weight"),
        ({"llama.attention.value_length": 32}, "is 2, of 32 .* blk.0.attn_v.weight"),
        ({"llama.embedding_length": 128}, "is 128, and token_embd.weight has rows of 512, not"),
        ({"llama.feed_forward_length": 7}, "is 7, and blk.0.ffn_up.weight has outputs: 1,024"),
        ({"llama.feed_forward_length": 0}, "is 0, and blk.0.ffn_up.weight has outputs: 1,024"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, Any], why: str) -> None:
    header = header_like(MODELS["llama"])
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, keys={**header.keys, **changed}), Serving())


@pytest.mark.parametrize("key", ["ssm.state_size", "wkv.head_size"])
@pytest.mark.parametrize("name", ["deepseek2", "llama"])
def test_a_state_stands_for_no_heads_where_each_layer_has_heads(name: str, key: str) -> None:
    """Else its cache would be said to be nothing, and to be exact."""
    header = header_like(MODELS[name])
    none = {f"{name}.attention.{each}": 0 for each in ("head_count", "head_count_kv")}
    keys = {**header.keys, f"{name}.{key}": 16, **none}
    with pytest.raises(UnsatisfiableError, match="head_count is missing, or not above"):
        estimate(replace(header, keys=keys), Serving())


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        ("gemma3", {"sliding_window_pattern": -2}, "pattern is not a whole number from 0 on"),
        ("gemma2", {"sliding_window_pattern": True}, "pattern is not a whole number from 0 on"),
        ("cohere2", {"sliding_window_pattern": 3.0}, "pattern is not a whole number from 0 on"),
        ("gemma3", {"sliding_window_pattern": "3"}, "pattern is not a whole number from 0 on"),
        ("gemma3", {"sliding_window_pattern": (1.0,) * 6}, "pattern has an entry that is neither"),
        ("gemma3", {"sliding_window_pattern": ()}, "pattern leaves no layer a window"),
        ("gemma3", {"sliding_window_pattern": 1}, "pattern leaves no layer a window"),
        ("gemma2", {"sliding_window_pattern": (False,) * 6}, "pattern leaves no layer a window"),
        ("cohere2", {"sliding_window_pattern": (0,) * 6 + (1,)}, "leaves no layer a window"),
        ("cohere2", {"sliding_window": None}, "cohere2.attention.sliding_window is missing"),
        ("gemma2", {"sliding_window": -1}, "sliding_window is not a whole number"),
    ],
)
def test_windows_that_the_engine_does_not_take_are_refused(
    name: str, changed: dict[str, Any], why: str
) -> None:
    header = header_like(MODELS[name])
    of_model = {f"{name}.attention.{key}": value for key, value in changed.items()}
    keys = {key: value for key, value in {**header.keys, **of_model}.items() if value is not None}
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, keys=keys), Serving())


@pytest.mark.parametrize("entries", [6, 5000])
def test_a_pattern_of_texts_or_of_more_entries_than_are_kept_is_refused(entries: int) -> None:
    """Of such a list the header keeps the length alone."""
    header, key = header_like(MODELS["gemma3"]), "gemma3.attention.sliding_window_pattern"
    with pytest.raises(UnsatisfiableError, match=f"{key} is a list of .*{entries:,}"):
        estimate(replace(header, lengths={**header.lengths, key: entries}), Serving())


@pytest.mark.parametrize("lacks", [None, "block_count", "layers", "tensors", "head_count_kv"])
def test_an_architecture_of_any_letters_is_written_in_one_line(lacks: str | None) -> None:
    header, odd = header_like(MODELS["llama"]), "lla\nma\x1b[2J\t"
    keys = {key.replace("llama.", f"{odd}."): value for key, value in header.keys.items()}
    keys |= {"general.architecture": odd}
    match lacks:
        case "block_count":
            del keys[f"{odd}.block_count"]
        case "layers":
            keys[f"{odd}.block_count"] = 2**31
        case "tensors":
            keys[f"{odd}.block_count"] = 5
        case "head_count_kv":
            keys[f"{odd}.attention.head_count_kv"] = (2, 2)
        case _:
            said = estimate(replace(header, keys=keys), Serving()).notes[-1]
            assert r"architecture lla\nma\x1b[2J\t is not known" in said
            return
    with pytest.raises(UnsatisfiableError) as refused:
        estimate(replace(header, keys=keys), Serving())
    assert str(refused.value).startswith(r"lla\nma\x1b[2J\t.")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("layer", "name", "has"), [(0, "ffn_down", 1), (3, "attn_q", 0), (5, "attn_norm", 0)]
)
def test_a_layer_that_lacks_what_others_have_is_refused(layer: int, name: str, has: int) -> None:
    header = header_like(MODELS["llama"])
    left = tuple(each for each in header.tensors if each.name != f"blk.{layer}.{name}.weight")
    assert len(left) < len(header.tensors)
    why = (
        f"^blk.{layer} has no {name}.weight, which blk.{has} has: .* architecture llama are alike"
    )
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, tensors=left), Serving())


@pytest.mark.parametrize("lacks", ["token_embd.weight", "output_norm.weight"])
@pytest.mark.parametrize("name", ["llama", "mamba", "deepseek2", "gemma3"])
def test_a_model_that_lacks_what_each_has_outside_its_layers_is_refused(
    name: str, lacks: str
) -> None:
    header = header_like(MODELS[name])
    left = tuple(each for each in header.tensors if each.name != lacks)
    why = f"^the file has no {lacks}, which each model of the architecture {name} has$"
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, tensors=left), Serving())


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight"])
def test_a_tensor_with_rows_for_another_number_of_tokens_is_refused(name: str) -> None:
    header = header_like(MODELS["llama"])
    tokens = header.vocabulary
    changed = tuple(
        replace(each, shape=(each.shape[0], tokens + 7)) if each.name == name else each
        for each in header.tensors
    )
    why = f"^the model has {tokens:,} tokens, and {name} has {tokens + 7:,} rows$"
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, tensors=changed), Serving())


@pytest.mark.parametrize("name", ["lfm2", "mamba", "deepseek2"])
def test_layers_of_other_architectures_may_differ(name: str) -> None:
    header = header_like((MODELS | UNKNOWN)[name])
    first = next(each.name for each in header.tensors if each.name.startswith("blk.0."))
    left = tuple(each for each in header.tensors if each.name != first)
    assert estimate(replace(header, tensors=left), Serving()).weights


def test_a_header_that_agrees_with_its_tensors_is_taken() -> None:
    header = header_like(MODELS["llama"])
    right = estimate(header, Serving())
    listed = {"llama.attention.head_count_kv": (2,) * 6, "llama.feed_forward_length": (1024,) * 6}
    assert estimate(replace(header, keys={**header.keys, **listed}), Serving()) == right


def test_tensors_of_an_architecture_that_is_not_known_may_have_any_size() -> None:
    known = header_like(MODELS["llama"])
    keys = {key.replace("llama.", "new."): value for key, value in known.keys.items()}
    keys |= {"general.architecture": "new", "new.feed_forward_length": 7}
    assert estimate(replace(known, keys=keys), Serving()).weights


@pytest.mark.parametrize("key_heads", [1, 2])
def test_a_cache_type_that_does_not_divide_a_head_is_refused(key_heads: int) -> None:
    """Also where it divides all heads of a layer: the engine looks at each."""
    header = header_like(Model(heads=4, key_heads=key_heads, width=64))
    assert estimate(header, Serving()).cache
    why = "q8_0 has blocks of 32 numbers, and a head of this model has 16, .* take cache type f16"
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(header, Serving(cache_type=CacheType.Q8_0))


def test_more_context_than_a_model_was_trained_on_is_told() -> None:
    header = header_like(replace(_BASE, context=2048))
    assert "trained on 2,048 tokens" in estimate(header, Serving(context=4096)).notes[0]
    assert estimate(header, Serving(context=2048)).notes == ()


def test_a_gemma3_model_with_a_window_of_0_has_none() -> None:
    without = estimate(header_like(MODELS["gemma3-without-window"]), Serving())
    assert estimate(header_like(replace(_GEMMA3, window=0)), Serving()) == without
