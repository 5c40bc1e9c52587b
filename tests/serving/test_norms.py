"""Norms of another length than what they are norms of: no engine loads such a model."""

from dataclasses import replace

import pytest

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader
from longshore.models.model_memory import Serving
from longshore.scheduling.serving.memory import estimate
from tests.serving.test_memory import MODELS, UNKNOWN, header_like


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
