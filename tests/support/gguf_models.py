"""Writes models of any shape as GGUF files: as large as real ones where asked, with weights of 0.

An engine loads them, and answers with nonsense that is the same each time.
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BYTES = 256
"""Tokens that are a byte each, after three with a meaning of their own."""
_RECURRENT = ("mamba", "mamba2")
_PLAIN = (
    "shortconv.conv.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight",
    "time_mix_lerp_x.weight", "time_mix_lerp_fused.weight", "time_mix_first.weight",
    "channel_mix_lerp_k.weight", "channel_mix_lerp_r.weight",
)  # fmt: skip
"""Ends of the names of tensors that are never quantized."""
_STATES = 16
"""Numbers that a recurrent layer keeps for each of its own."""
_HEAD, _EXTRA = 64, 32
"""Of RWKV: numbers of a head, and of what mixes a token with the one before."""
RANK, NOPE, ROPE = 128, 64, 32
"""Of latent attention: numbers of a compressed row, and of a head without and with position."""


class Packed(IntEnum):
    """Types of tensors whose weights the package `gguf` cannot write: all are 0."""

    Q1_0 = 41
    Q2_0 = 42


_BLOCKS = {Packed.Q1_0: (128, 18), Packed.Q2_0: (64, 18)}
"""Weights in a block, and its bytes: as llama.cpp has them, which is asked in tests/serving."""
gguf.constants.GGML_QUANT_SIZES.update(_BLOCKS)  # pyright: ignore[reportArgumentType, reportCallIssue]


@dataclass(frozen=True)
class Model:
    """The shape of a model."""

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    key_heads: int | None = 2
    """None: the header does not say."""
    key: int | None = None
    """Numbers of a key of one head; None: width / heads, and the header does not say."""
    inner: int = 128
    vocabulary: int = 320
    context: int = 131_072
    window: int | None = None
    """None: the header does not say."""
    pattern: int | tuple[bool | int, ...] | None = None
    """Of so many layers the last attends to everything; or for each layer whether it has a window.
    None: the header does not say."""
    experts: int = 0
    used: int = 0
    type: Any = gguf.GGMLQuantizationType.F16
    tied: bool = False
    """No output of its own: the embedding serves as one."""
    latent: bool = True
    """Of deepseek2: one compressed row is kept; older files have heads instead."""

    @property
    def each(self) -> int:
        return self.key or self.width // self.heads


def write(
    model: Model, path: Path, seed: int | None = 0, *, tensors: int = 0, rotated: int | None = None
) -> Path:
    """Write a model, in files of so many `tensors` each where that is said; without a seed all
    weights are 0, which takes a tenth of the time. `rotated` is what the header says of the
    numbers of a key that have a position. Returns the first of its files."""
    writer = gguf.GGUFWriter(str(path), model.architecture, split_max_tensors=tensors)
    _keys(writer, model)
    if rotated is not None:
        writer.add_rope_dimension_count(rotated)
    _vocabulary(writer, model.vocabulary)
    rng = None if seed is None else np.random.default_rng(seed)
    for name, shape in _tensors(model):
        if len(shape) == 1 or name.endswith(_PLAIN):
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        weights = (
            np.zeros(shape, np.float32)
            if rng is None
            else rng.standard_normal(shape, np.float32) * np.float32(0.02)
        )
        if model.type is gguf.GGMLQuantizationType.F16:
            writer.add_tensor(name, weights.astype(np.float16))
        elif isinstance(model.type, Packed):
            block, size = _BLOCKS[model.type]
            writer.add_tensor(
                name, np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8),
                raw_dtype=model.type,  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
        else:
            writer.add_tensor(
                name, gguf.quants.quantize(weights, model.type), raw_dtype=model.type
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if tensors else path


def _keys(writer: Any, model: Model) -> None:
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.inner)
    writer.add_layer_norm_rms_eps(1e-5)
    if model.architecture == "cohere2":
        writer.add_layer_norm_eps(1e-5)
        writer.add_logit_scale(0.25)
    if model.architecture in _RECURRENT:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * model.width)
        writer.add_ssm_state_size(_STATES)
        writer.add_ssm_time_step_rank(model.width // 16)
        writer.add_head_count(0)
        if model.architecture == "mamba2":
            writer.add_ssm_group_count(1)
    elif model.architecture == "rwkv6":
        writer.add_layer_norm_eps(1e-5)
        writer.add_rescale_every_n_layers(6)
        writer.add_wkv_head_size(_HEAD)
        writer.add_time_mix_extra_dim(_EXTRA)
        writer.add_time_decay_extra_dim(_EXTRA)
        writer.add_head_count(0)
    elif model.architecture == "deepseek2":
        writer.add_head_count(model.heads)
        writer.add_head_count_kv(1 if model.latent else model.heads)
        writer.add_key_length(RANK + ROPE if model.latent else NOPE + ROPE)
        writer.add_value_length(RANK if model.latent else NOPE)
        if model.latent:
            writer.add_key_length_mla(NOPE + ROPE)
            writer.add_value_length_mla(NOPE)
        writer.add_kv_lora_rank(RANK)
        writer.add_q_lora_rank(RANK)
        writer.add_rope_dimension_count(ROPE)
        writer.add_leading_dense_block_count(0 if model.experts else model.layers)
        if not model.experts:
            writer.add_expert_count(8)
            writer.add_expert_used_count(2)
            writer.add_expert_feed_forward_length(64)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.0)
    else:
        writer.add_head_count(model.heads)
        writer.add_rope_freq_base(10_000.0)
        if model.architecture == "lfm2":
            of_layers = [(model.key_heads or 0) * (layer % 2) for layer in range(model.layers)]
            writer.add_head_count_kv(of_layers)
            writer.add_shortconv_l_cache(3)
        elif model.key_heads is not None:
            writer.add_head_count_kv(model.key_heads)
        if model.key is not None:
            writer.add_key_length(model.key)
            writer.add_value_length(model.key)
        writer.add_rope_dimension_count(model.each)
    if model.window is not None:
        writer.add_sliding_window(model.window)
    if model.pattern is not None:
        of_layers = model.pattern if isinstance(model.pattern, int) else list(model.pattern)
        writer.add_sliding_window_pattern(of_layers)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(model.used)
        writer.add_expert_feed_forward_length(model.inner)


def _vocabulary(writer: Any, size: int) -> None:
    words = size - 3 - _BYTES
    writer.add_tokenizer_model("llama")
    writer.add_token_list(
        ["<unk>", "<s>", "</s>"]
        + [f"<0x{byte:02X}>" for byte in range(_BYTES)]
        + [f"▁w{word}" for word in range(words)]
    )
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3] + [6] * _BYTES + [1] * words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of each tensor, the length of a row last (as numpy has it)."""
    width, inner = model.width, model.inner
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (model.vocabulary, width)),
        (
            "token_embd_norm.weight" if model.architecture == "lfm2" else "output_norm.weight",
            (width,),
        ),
    ]
    if model.architecture == "rwkv6":
        found += [(f"token_embd_norm.{end}", (width,)) for end in ("weight", "bias")]
        found.append(("output_norm.bias", (width,)))
    if not model.tied:
        found.append(("output.weight", (model.vocabulary, width)))
    for layer in range(model.layers):
        recurrent = model.architecture in (*_RECURRENT, "rwkv6")
        if model.architecture == "lfm2" and layer % 2 == 0:
            of_layer = _convolution(width)
        else:
            of_layer = _recurrent(model) if recurrent else _attention(model)
        if not recurrent:
            of_layer += _experts(model) if model.experts else _dense(width, inner, model)
        # That of exaone4 has its norms behind its parts alone.
        omitted = ("attn_norm.weight", "ffn_norm.weight") * (model.architecture == "exaone4")
        found += [
            (f"blk.{layer}.{name}", shape) for name, shape in of_layer if name not in omitted
        ]
    return found


def _attention(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    width, each = model.width, model.each
    keys = (model.key_heads if model.key_heads is not None else model.heads) * each
    queries = model.heads * each
    if model.architecture == "deepseek2":
        return _latent(model)
    if model.architecture == "phi3":
        return [
            ("attn_norm.weight", (width,)),
            ("attn_qkv.weight", (queries + 2 * keys, width)),
            ("attn_output.weight", (width, queries)),
        ]
    found: list[tuple[str, tuple[int, ...]]] = [
        ("attn_norm.weight", (width,)),
        ("attn_q.weight", (queries, width)),
        ("attn_k.weight", (keys, width)),
        ("attn_v.weight", (keys, width)),
        ("attn_output.weight", (width, queries)),
    ]
    if model.architecture == "qwen2":
        found += [("attn_q.bias", (queries,)), ("attn_k.bias", (keys,)), ("attn_v.bias", (keys,))]
    if model.architecture in ("qwen3", "qwen3moe", "gemma3", "exaone4", "lfm2"):
        found += [("attn_q_norm.weight", (each,)), ("attn_k_norm.weight", (each,))]
    if model.architecture in ("gemma2", "gemma3", "exaone4"):
        found += [("post_attention_norm.weight", (width,)), ("post_ffw_norm.weight", (width,))]
    return found


def _latent(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    """Return what compresses keys and values into one row (multi-head latent attention)."""
    width, heads = model.width, model.heads
    decompress: list[tuple[str, tuple[int, ...]]] = (
        [("attn_k_b.weight", (heads, RANK, NOPE)), ("attn_v_b.weight", (heads, NOPE, RANK))]
        if model.latent
        else [("attn_kv_b.weight", (2 * heads * NOPE, RANK))]
    )
    return [
        ("attn_norm.weight", (width,)),
        ("attn_q_a.weight", (RANK, width)),
        ("attn_q_a_norm.weight", (RANK,)),
        ("attn_q_b.weight", (heads * (NOPE + ROPE), RANK)),
        ("attn_kv_a_mqa.weight", (RANK + ROPE, width)),
        ("attn_kv_a_norm.weight", (RANK,)),
        *decompress,
        ("attn_output.weight", (width, heads * NOPE)),
    ]


def _dense(width: int, inner: int, model: Model) -> list[tuple[str, tuple[int, ...]]]:
    if model.architecture == "cohere2":
        return [
            ("ffn_gate.weight", (inner, width)),
            ("ffn_up.weight", (inner, width)),
            ("ffn_down.weight", (width, inner)),
        ]
    if model.architecture == "phi3":
        return [
            ("ffn_norm.weight", (width,)),
            ("ffn_up.weight", (2 * inner, width)),
            ("ffn_down.weight", (width, inner)),
        ]
    return [
        ("ffn_norm.weight", (width,)),
        ("ffn_gate.weight", (inner, width)),
        ("ffn_up.weight", (inner, width)),
        ("ffn_down.weight", (width, inner)),
    ]


def _experts(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    width, inner, experts = model.width, model.inner, model.experts
    return [
        ("ffn_norm.weight", (width,)),
        ("ffn_gate_inp.weight", (experts, width)),
        ("ffn_gate_exps.weight", (experts, inner, width)),
        ("ffn_up_exps.weight", (experts, inner, width)),
        ("ffn_down_exps.weight", (experts, width, inner)),
        *(_shared(width, inner) if model.architecture == "deepseek2" else ()),
    ]


def _shared(width: int, inner: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the expert that each token has beside its own ones."""
    return [
        ("ffn_gate_shexp.weight", (inner, width)),
        ("ffn_up_shexp.weight", (inner, width)),
        ("ffn_down_shexp.weight", (width, inner)),
    ]


def _convolution(width: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("attn_norm.weight", (width,)),
        ("shortconv.conv.weight", (width, 3)),
        ("shortconv.in_proj.weight", (3 * width, width)),
        ("shortconv.out_proj.weight", (width, width)),
    ]


def _recurrent(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    if model.architecture == "rwkv6":
        return _rwkv(model.width, model.inner)
    width, inner, states, rank = model.width, 2 * model.width, _STATES, model.width // 16
    if model.architecture == "mamba2":
        return [
            ("attn_norm.weight", (width,)),
            ("ssm_in.weight", (2 * inner + 2 * states + rank, width)),
            ("ssm_conv1d.weight", (inner + 2 * states, 4)),
            ("ssm_conv1d.bias", (inner + 2 * states,)),
            ("ssm_dt.bias", (rank,)),
            ("ssm_a", (rank, 1)),
            ("ssm_d", (rank, 1)),
            ("ssm_norm.weight", (1, inner)),
            ("ssm_out.weight", (width, inner)),
        ]
    return [
        ("attn_norm.weight", (width,)),
        ("ssm_in.weight", (2 * inner, width)),
        ("ssm_conv1d.weight", (inner, 4)),
        ("ssm_conv1d.bias", (inner,)),
        ("ssm_x.weight", (rank + 2 * states, inner)),
        ("ssm_dt.weight", (inner, rank)),
        ("ssm_dt.bias", (inner,)),
        ("ssm_a", (inner, states)),
        ("ssm_d", (inner,)),
        ("ssm_out.weight", (width, inner)),
    ]


def _rwkv(width: int, inner: int) -> list[tuple[str, tuple[int, ...]]]:
    norms = ("attn_norm", "attn_norm_2", "time_mix_ln")
    matrices = ("key", "value", "receptance", "gate", "output")
    return [
        *((f"{norm}.{end}", (width,)) for norm in norms for end in ("weight", "bias")),
        *((f"time_mix_{name}.weight", (width, width)) for name in matrices),
        ("time_mix_w1.weight", (5 * _EXTRA, width)),
        ("time_mix_w2.weight", (5, width, _EXTRA)),
        ("time_mix_lerp_x.weight", (1, 1, width)),
        ("time_mix_lerp_fused.weight", (5, 1, 1, width)),
        ("time_mix_first.weight", (width // _HEAD, _HEAD)),
        ("time_mix_decay.weight", (width,)),
        ("time_mix_decay_w1.weight", (_EXTRA, width)),
        ("time_mix_decay_w2.weight", (width, _EXTRA)),
        ("channel_mix_lerp_k.weight", (1, 1, width)),
        ("channel_mix_lerp_r.weight", (1, 1, width)),
        ("channel_mix_key.weight", (inner, width)),
        ("channel_mix_value.weight", (width, inner)),
        ("channel_mix_receptance.weight", (width, width)),
    ]


def write_adapter(
    path: Path,
    architecture: str = "llama",
    *,
    kind: str = "adapter",
    form: str = "lora",
    strength: float = 1.0,
    width: int = 64,
) -> Path:
    """Write a LoRA adapter of rank 4 for the first layer of `Model()`, or of one of that width."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type(kind)
    writer.add_string("adapter.type", form)
    writer.add_float32("adapter.lora.alpha", 4.0)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((4, width), np.float32))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.full((width, 4), strength, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
