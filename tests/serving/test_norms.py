"""Norms of another length than what they are norms of, and what else no engine loads."""

from dataclasses import replace
from pathlib import Path

import pytest

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader
from longshore.models.model_memory import Serving
from longshore.scheduling.serving.memory import estimate
from tests.serving.test_memory import MODELS, UNKNOWN, header_like, header_of
from tests.support.gguf_models import write
from tests.support.llama_engine import allocated


def with_length(header: GGUFHeader, name: str, length: int) -> GGUFHeader:
    changed = tuple(
        replace(each, shape=(length,)) if each.name == name else each for each in header.tensors
    )
    assert changed != header.tensors
    return replace(header, tensors=changed)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama", "output_norm.weight"),
        ("llama", "blk.0.attn_norm.weight"),
        ("phi3", "blk.5.ffn_norm.weight"),
        ("mamba", "blk.1.attn_norm.weight"),
        ("deepseek2", "blk.1.ffn_norm.weight"),
        ("gemma2", "blk.2.post_attention_norm.weight"),
        ("gemma3", "blk.2.post_ffw_norm.weight"),
        ("cohere2", "output_norm.weight"),
    ],
)
@pytest.mark.parametrize("length", [64, 1024])
def test_a_norm_of_another_length_than_the_width_is_refused(
    model: str, name: str, length: int
) -> None:
    header = with_length(header_like(MODELS[model]), name, length)
    why = f"^{model}.embedding_length is 512, and {name} has numbers: {length:,}, not 512$"
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(header, Serving())


@pytest.mark.parametrize("model", ["gemma3", "qwen3", "qwen3moe"])
@pytest.mark.parametrize("of", ["q", "k"])
def test_a_norm_of_heads_of_another_length_than_a_head_is_refused(model: str, of: str) -> None:
    header = with_length(header_like(MODELS[model]), f"blk.3.attn_{of}_norm.weight", 512)
    why = f"attention.key_length is 64, and blk.3.attn_{of}_norm.weight has numbers: 512, not 64$"
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(header, Serving())


def test_norms_of_an_architecture_that_is_not_known_may_have_any_length() -> None:
    header = with_length(header_like(UNKNOWN["lfm2"]), "blk.0.attn_norm.weight", 64)
    assert estimate(header, Serving()).weights


@pytest.mark.parametrize("model", ["qwen2", "phi3", "llama", "mamba", "cohere2"])
@pytest.mark.parametrize("key", ["context_length", "epsilon"])
def test_a_key_that_the_engine_needs_is_missed(model: str, key: str) -> None:
    """Nothing of the memory follows from it, and the engine ends without it on each node."""
    header = header_like(MODELS[model])
    of_norm = "layer_norm_epsilon" if model == "cohere2" else "layer_norm_rms_epsilon"
    missing = f"{model}.attention.{of_norm}" if key == "epsilon" else f"{model}.{key}"
    keys = {each: value for each, value in header.keys.items() if each != missing}
    assert len(keys) < len(header.keys)
    with pytest.raises(UnsatisfiableError, match=f"^{missing} is missing: llama.cpp loads no "):
        estimate(replace(header, keys=keys), Serving())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("qwen2", "attn_k.weight"), ("qwen2", "attn_norm.weight"), ("qwen2", "ffn_down.weight"),
        ("phi3", "attn_output.weight"), ("phi3", "ffn_up.weight"), ("qwen3moe", "attn_q.weight"),
    ],
)  # fmt: skip
def test_a_tensor_that_no_layer_has_is_missed(model: str, name: str) -> None:
    header = header_like(MODELS[model])
    tensors = tuple(each for each in header.tensors if not each.name.endswith(f".{name}"))
    with pytest.raises(UnsatisfiableError, match=f"^no layer has {name}, which each layer of"):
        estimate(replace(header, tensors=tensors), Serving())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"attention.head_count": 16}, "head_count is 16 and head_count_kv 2, of 32 numbers each"),
        ({"attention.head_count_kv": 4}, "blk.0.attn_qkv.weight has outputs: 768, not 1,024"),
        ({"attention.head_count_kv": None}, "blk.0.attn_qkv.weight has outputs: 768, not 1,536"),
        ({"feed_forward_length": 512}, "blk.0.ffn_up.weight has outputs: 2,048, not 1,024"),
        ({"feed_forward_length": None}, "feed_forward_length is 0, of 2 numbers each, and blk.0"),
    ],
)
def test_sizes_of_packed_tensors_are_those_of_the_header(
    changed: dict[str, int | None], why: str
) -> None:
    """Else the cache of heads that are not there was reckoned, or none of some that are."""
    header = header_like(MODELS["phi3"])
    keys = {**header.keys, **{f"phi3.{key}": value for key, value in changed.items()}}
    keys = {key: value for key, value in keys.items() if value is not None}
    with pytest.raises(UnsatisfiableError, match=why):
        estimate(replace(header, keys=keys), Serving())


@pytest.mark.parametrize(
    ("model", "rotated", "wants"),
    [
        ("llama", 32, "as many"), ("qwen2", 0, "as many"), ("qwen3", 128, "as many"),
        ("qwen3moe", 7, "as many"), ("phi3", 128, "an even number of at most these"),
        ("gemma3", 7, "an even number of at most these"),
    ],
)  # fmt: skip
def test_rotated_numbers_that_a_key_has_not_are_refused(
    model: str, rotated: int, wants: str
) -> None:
    """As the engine ends with each of them: `invalid n_rot`, or an assertion."""
    header = header_like(MODELS[model])
    keys = {**header.keys, f"{model}.rope.dimension_count": rotated}
    why = f"^{model}.rope.dimension_count is {rotated}, and a key of a head has 64 numbers: "
    with pytest.raises(UnsatisfiableError, match=f"{why}llama.cpp wants {wants}$"):
        estimate(replace(header, keys=keys), Serving())


@pytest.mark.parametrize(
    ("model", "rotated"), [("llama", 64), ("qwen3", 64), ("phi3", 32), ("cohere2", 64)]
)
def test_what_is_rotated_takes_no_memory(model: str, rotated: int) -> None:
    header = header_like(MODELS[model])
    keys = {**header.keys, f"{model}.rope.dimension_count": rotated}
    assert estimate(replace(header, keys=keys), Serving()) == estimate(header, Serving())


def test_the_engine_loads_no_model_of_which_another_number_is_rotated(tmp_path: Path) -> None:
    model = replace(MODELS["llama"], layers=1)
    path = write(model, tmp_path / "model.gguf", None, rotated=model.each // 2)
    with pytest.raises(UnsatisfiableError, match=r"^llama\.rope\.dimension_count is 32"):
        estimate(header_of(path), Serving())
    with pytest.raises(AssertionError, match="invalid n_rot: 32, expected 64"):
        allocated(path, Serving(context=256))
